"""Stops, targets and positions on paper: what guards a fill, and what money and position allow."""

from decimal import Decimal

import pytest

from agentic_trading.desk.exchange import Cancellation, CancelReason, Fill, OrderRefusedError
from agentic_trading.desk.instrument import Instrument
from tests.desk.trade import BTC, FIVE_MINUTES, START, bar, fills_of, listed, order, paper

DECISION_BAR = bar(0, "100 101 99 100")
CALM = "100 101 99 100"
GUARDED = {"stop_loss": Decimal(98), "take_profit": Decimal(104)}


async def test_stop_sells_at_stop_less_spread() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 100 98 99")))

    assert (fill.side, fill.price, fill.cause) == ("sell", Decimal("97.99"), "stop_loss")
    assert (await exchange.account()).positions == ()
    assert await exchange.open_orders() == ()


async def test_gapped_stop_sells_at_open() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "95 105 94 95")))

    assert (fill.price, fill.cause) == (Decimal("94.99"), "stop_loss")


async def test_target_sells_when_traded_through() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))

    assert await exchange.on_bar(bar(2, "100 104 99 100")) == []
    (fill,) = fills_of(await exchange.on_bar(bar(3, "100 104.01 99 100")))
    assert (fill.price, fill.cause, fill.liquidity) == (104, "take_profit", "maker")


async def test_stop_precedes_target_in_bar() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 110 90 105")))

    assert fill.cause == "stop_loss"


async def test_short_stop_buys_before_target() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell", stop_loss=Decimal(102), take_profit=Decimal(96)))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 102 95 100")))

    assert (fill.side, fill.price, fill.cause) == ("buy", Decimal("102.02"), "stop_loss")


async def test_open_fill_reaches_target_same_bar() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))

    bought, sold = fills_of(await exchange.on_bar(bar(1, "100 105 99 104")))

    assert (bought.price, sold.price, sold.cause) == (Decimal("100.01"), 104, "take_profit")


async def test_resting_fill_reaches_stop_not_target() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    for number, stop in enumerate(("98", "90")):
        await exchange.submit(
            order(
                order_id=f"o{number}",
                intent_id=f"i{number}",
                order_type="post_only",
                limit_price=Decimal(99),
                stop_loss=Decimal(stop),
                take_profit=Decimal(104),
            )
        )

    first, stopped, second = fills_of(await exchange.on_bar(bar(1, "100 105 97 100")))

    assert (first.side, stopped.cause, second.side) == ("buy", "stop_loss", "buy")
    assert (first.order_id, stopped.order_id, second.order_id) == ("o0", "o0", "o1")


@pytest.mark.parametrize(
    "opens",
    ["95 99 94 95", "97.99 99 97 98", "103.99 105 103 104", "106 107 105 106"],
    ids=["beyond the stop", "taken at the stop", "taken at the target", "beyond the target"],
)
async def test_entry_beyond_guards_is_cancelled(opens: str) -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))

    (end,) = await exchange.on_bar(bar(1, opens))

    assert isinstance(end, Cancellation)
    assert (end.reason, end.quantity) == (CancelReason.PLAN_PASSED, 1)
    assert await exchange.open_orders() == ()


async def test_short_entry_beyond_target_is_cancelled() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell", stop_loss=Decimal(102), take_profit=Decimal(96)))

    (end,) = await exchange.on_bar(bar(1, "95 99 94 95"))

    assert isinstance(end, Cancellation)
    assert end.reason is CancelReason.PLAN_PASSED


async def test_passed_plan_keeps_partial_fill_guarded() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED, max_participation=Decimal("0.0004")))
    await exchange.on_bar(bar(1, CALM))

    stopped, *_ = await exchange.on_bar(bar(2, "95 99 94 95"))

    assert isinstance(stopped, Fill)
    assert (stopped.cause, stopped.quantity) == ("stop_loss", Decimal("0.4"))
    assert (await exchange.account()).positions == ()


async def test_large_stop_continues_at_next_open() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))

    reports = [
        await exchange.on_bar(bar(2, "100 100 97 97", volume="2.4")),
        await exchange.on_bar(bar(3, "99 110 99 110")),
    ]

    quantities = [(fill.quantity, fill.price) for report in reports for fill in fills_of(report)]
    assert quantities == [(Decimal("0.6"), Decimal("97.99")), (Decimal("0.4"), Decimal("98.99"))]


async def test_stop_cancels_unfilled_orders_of_intent() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.submit(order(order_id="o2", active_from=START + 3 * FIVE_MINUTES, **GUARDED))
    await exchange.submit(order(order_id="o3", intent_id="i2", active_from=START + 3 * FIVE_MINUTES))
    await exchange.on_bar(bar(1, CALM))

    fill, end = await exchange.on_bar(bar(2, "100 100 97 97"))

    assert isinstance(fill, Fill)
    assert isinstance(end, Cancellation)
    assert (end.order_id, end.reason) == ("o2", CancelReason.EXITED)
    assert [entry.order.order_id for entry in await exchange.open_orders()] == ["o3"]


async def test_exit_ends_entry_guard() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.on_bar(bar(1, CALM))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", reduce_only=True))

    await exchange.on_bar(bar(2, CALM))

    assert (await exchange.account()).positions == ()
    assert await exchange.on_bar(bar(3, "90 110 80 90")) == []


async def test_guard_sells_at_most_remaining_position() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(**GUARDED))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", quantity=Decimal("0.4")))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 100 97 97")))

    assert fill.quantity == Decimal("0.6")


async def test_reduce_only_never_reverses_position() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal("0.3")))
    await exchange.on_bar(bar(1, CALM))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", reduce_only=True))

    fill, end = await exchange.on_bar(bar(2, CALM))

    assert isinstance(fill, Fill)
    assert isinstance(end, Cancellation)
    assert (fill.quantity, end.quantity, end.reason) == (
        Decimal("0.3"),
        Decimal("0.7"),
        CancelReason.NOTHING_TO_REDUCE,
    )


async def test_reduce_only_without_position_ends_immediately() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell", reduce_only=True))

    (end,) = await exchange.on_bar(bar(1, CALM))

    assert isinstance(end, Cancellation)
    assert end.reason is CancelReason.NOTHING_TO_REDUCE


async def test_purchase_limited_by_cash_and_fees() -> None:
    exchange = paper(cash=Decimal("100.00"))
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal(2)))

    fill, end = await exchange.on_bar(bar(1, CALM))

    assert isinstance(fill, Fill)
    assert isinstance(end, Cancellation)
    assert fill.quantity == Decimal("0.999")  # 0.999 x 100.01 x 1.0005 = 99.96; one lot more costs 100.06
    assert end.reason is CancelReason.NO_FUNDS
    assert (await exchange.account()).cash >= 0


async def test_fee_rounding_never_overdraws_account() -> None:
    exchange = paper(cash=Decimal("99.959944995"))  # 0.999 x 100.01 x 1.0005 before the fee is rounded up
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal(2)))

    fill, _ = await exchange.on_bar(bar(1, CALM))

    assert isinstance(fill, Fill)
    assert fill.quantity == Decimal("0.998")


async def test_purchase_without_cash_is_cancelled() -> None:
    exchange = paper(cash=Decimal(0))
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())

    (end,) = await exchange.on_bar(bar(1, CALM))

    assert isinstance(end, Cancellation)
    assert end.reason is CancelReason.NO_FUNDS


async def test_short_value_limited_by_equity() -> None:
    exchange = paper(cash=Decimal("100.00"))
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell", quantity=Decimal(2)))

    fill, _ = await exchange.on_bar(bar(1, CALM))

    assert isinstance(fill, Fill)
    assert fill.quantity == Decimal("0.999")


async def test_forbidden_short_sale_ends_at_position() -> None:
    exchange = paper(allow_short=False)
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal("0.3")))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell"))

    bought, sold, end = await exchange.on_bar(bar(1, CALM))

    assert isinstance(bought, Fill)
    assert isinstance(sold, Fill)
    assert isinstance(end, Cancellation)
    assert (sold.quantity, end.reason) == (Decimal("0.3"), CancelReason.SHORT_NOT_ALLOWED)


async def test_oversized_sale_reverses_position() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())
    await exchange.on_bar(bar(1, CALM))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", quantity=Decimal(3)))

    await exchange.on_bar(bar(2, "110 111 109 110"))

    (held,) = (await exchange.account()).positions
    assert (held.quantity, held.average_price) == (-2, Decimal("109.98"))


async def test_reversal_limited_by_equity_after_fee() -> None:
    exchange = paper(instruments=listed(Instrument(symbol="BTCUSDT")), cash=Decimal(100))
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal("0.5")))
    await exchange.on_bar(bar(1, CALM))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", quantity=Decimal(5)))

    fill, _ = await exchange.on_bar(bar(2, CALM))

    assert isinstance(fill, Fill)
    # 49.9699975 in cash and 0.5 at 99.99, less 0.0249975 for closing, over 99.99 x 1.0005: 0.99900 in lots
    assert fill.quantity == Decimal("1.49900")


async def test_average_price_covers_open_quantity() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())
    await exchange.on_bar(bar(1, CALM))
    await exchange.submit(order(order_id="o2", intent_id="i2", quantity=Decimal(2)))
    await exchange.on_bar(bar(2, "110 111 109 110"))
    await exchange.submit(order(order_id="o3", intent_id="i3", side="sell"))
    await exchange.on_bar(bar(3, CALM))

    (held,) = (await exchange.account()).positions

    assert held.quantity == 2
    assert held.average_price == Decimal("106.683333333333")  # (100.01 + 2 x 110.02) / 3


async def test_account_holds_several_symbols() -> None:
    ether = Instrument(symbol="ETHUSDT")
    exchange = paper(instruments=listed(BTC, ether), cash=Decimal(100))
    await exchange.on_bar(DECISION_BAR)
    await exchange.on_bar(bar(0, "10 10 10 10", symbol="ETHUSDT"))
    await exchange.submit(order(quantity=Decimal("0.9")))
    await exchange.submit(order(order_id="o2", intent_id="i2", symbol="ETHUSDT", quantity=Decimal(5)))
    await exchange.on_bar(bar(1, CALM))
    await exchange.on_bar(bar(1, "10 10 10 10", symbol="ETHUSDT"))

    account = await exchange.account()

    assert [held.symbol for held in account.positions] == ["BTCUSDT", "ETHUSDT"]
    assert 0 <= account.cash < Decimal("0.01")
    assert account.equity({"BTCUSDT": Decimal(100), "ETHUSDT": Decimal(10)}) <= 100


def test_account_rejects_second_currency() -> None:
    with pytest.raises(OrderRefusedError, match="EUR"):
        paper(instruments=listed(BTC, Instrument(symbol="BTCEUR", quote_currency="EUR")))
