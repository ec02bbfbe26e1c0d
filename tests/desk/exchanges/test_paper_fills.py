"""Fills on paper, each computed by hand: half a spread of 1 bps, fees of 2 bps to make and 5 bps to take."""

from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.desk.exchange import Cancellation, CancelReason, Fill
from agentic_trading.desk.exchanges.account import TradingCosts
from tests.desk.trade import FIVE_MINUTES, START, bar, fills_of, order, paper

DECISION_BAR = bar(0, "100 101 99 100")
CALM = "100 101 99 100"


async def test_market_buy_pays_open_plus_spread() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())

    (fill,) = fills_of(await exchange.on_bar(bar(1, "100.50 102 100 101")))

    assert fill.price == Decimal("100.52")  # 100.50 + 1 bps = 100.51005, up to the tick
    assert fill.fee == Decimal("0.05026000")  # 5 bps of 100.52
    assert (fill.liquidity, fill.cause, fill.fee_currency) == ("taker", "order", "USDT")
    assert (fill.bar_open_time, fill.time) == (START + FIVE_MINUTES, START + 2 * FIVE_MINUTES)
    assert (await exchange.account()).cash == Decimal("9899.42974000")


async def test_market_sell_gets_open_less_spread() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell"))

    (fill,) = fills_of(await exchange.on_bar(bar(1, "100.50 102 100 101")))

    assert fill.price == Decimal("100.48")  # 100.50 - 1 bps = 100.48995, down to the tick
    assert (await exchange.account()).cash == Decimal("10100.42976000")
    assert (await exchange.account()).quantity("BTCUSDT") == -1


async def test_fee_rounds_up_to_eight_decimals() -> None:
    costs = TradingCosts(maker_fee_bps=Decimal("0.333"))

    assert costs.fee(Decimal("27953.83"), Decimal("0.00001"), "maker") == Decimal(
        "0.00000931"
    )  # 0.0000093086


async def test_touched_limit_is_not_filled() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99)))

    assert await exchange.on_bar(bar(1, CALM)) == []


async def test_traded_through_limit_fills_as_maker() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99)))

    (fill,) = fills_of(await exchange.on_bar(bar(1, "100 101 98.99 100")))

    assert (fill.price, fill.liquidity) == (99, "maker")
    assert fill.fee == Decimal("0.01980000")  # 2 bps of 99


async def test_sell_limit_fills_above_price() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(side="sell", order_type="limit", limit_price=Decimal(101)))

    assert await exchange.on_bar(bar(1, CALM)) == []
    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 101.01 99 100")))
    assert fill.price == 101


async def test_crossing_limit_takes_better_open() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(102)))

    (fill,) = fills_of(await exchange.on_bar(bar(1, CALM)))

    assert (fill.price, fill.liquidity) == (Decimal("100.01"), "taker")


async def test_crossing_limit_never_exceeds_price() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal("200.01")))

    (fill,) = fills_of(await exchange.on_bar(bar(1, "200 201 199 200")))

    assert fill.price == Decimal("200.01")  # the spread alone would make it 200.02


async def test_resting_limit_fills_at_own_price() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99)))
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "97 98 96 97")))

    assert (fill.price, fill.liquidity) == (99, "maker")


async def test_post_only_rests_at_limit_price() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="post_only", limit_price=Decimal(99)))

    (fill,) = fills_of(await exchange.on_bar(bar(1, "97 98 96 97")))

    assert (fill.price, fill.liquidity) == (99, "maker")


async def test_taking_post_only_is_cancelled() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="post_only", limit_price=Decimal("100.01")))

    (end,) = await exchange.on_bar(bar(1, CALM))

    assert isinstance(end, Cancellation)
    assert end.reason is CancelReason.WOULD_TAKE


async def test_pegged_order_follows_close_before_activation() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(
        order(order_type="post_only", peg_bps=Decimal(50), active_from=START + 2 * FIVE_MINUTES)
    )
    await exchange.on_bar(bar(1, "100 121 99 120"))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "120 121 119 120")))

    assert fill.price == Decimal("119.40")  # 120 - 50 bps


async def test_pegged_order_waits_for_first_close() -> None:
    exchange = paper()
    await exchange.submit(order(order_type="limit", peg_bps=Decimal(50)))

    assert await exchange.on_bar(bar(1, "100 101 90 100")) == []
    (fill,) = fills_of(await exchange.on_bar(bar(2, "100 101 90 100")))
    assert fill.price == Decimal("99.50")


async def test_order_takes_share_of_each_bar() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal("2.5"), max_participation=Decimal("0.1")))

    taken = [
        fill.quantity
        for number in (1, 2, 3)
        for fill in fills_of(await exchange.on_bar(bar(number, CALM, volume="10.0099")))
    ]

    assert taken == [Decimal(1), Decimal(1), Decimal("0.5")]  # 1.00099 down to lots of 0.001


async def test_orders_together_respect_participation_limit() -> None:
    exchange = paper(max_participation=Decimal("0.15"))
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(max_participation=Decimal("0.1")))
    await exchange.submit(order(order_id="o2", max_participation=Decimal("0.1")))

    first, second = fills_of(await exchange.on_bar(bar(1, CALM, volume="10")))

    assert (first.quantity, second.quantity) == (1, Decimal("0.5"))


async def test_bar_without_volume_fills_no_order() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())

    assert await exchange.on_bar(bar(1, "100 100 100 100", volume="0")) == []
    assert len(await exchange.open_orders()) == 1


async def test_ioc_order_ends_with_first_bar() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(time_in_force="ioc", max_participation=Decimal("0.1")))

    fill, end = await exchange.on_bar(bar(1, CALM, volume="6"))

    assert isinstance(fill, Fill)
    assert isinstance(end, Cancellation)
    assert (fill.quantity, end.quantity, end.reason) == (
        Decimal("0.6"),
        Decimal("0.4"),
        CancelReason.IMMEDIATE_OR_CANCEL,
    )


async def test_deadline_cancels_remaining_quantity() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(
        order(order_type="limit", limit_price=Decimal(90), expires_at=START + 2 * FIVE_MINUTES)
    )

    assert await exchange.on_bar(bar(1, CALM)) == []
    (end,) = await exchange.on_bar(bar(2, "100 101 80 100"))
    assert isinstance(end, Cancellation)
    assert (end.reason, end.quantity) == (CancelReason.DEADLINE, 1)


async def test_deadline_crosses_remaining_quantity_at_open() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    deadline = START + 2 * FIVE_MINUTES
    await exchange.submit(
        order(order_type="post_only", limit_price=Decimal(90), expires_at=deadline, on_expiry="cross")
    )
    await exchange.on_bar(bar(1, CALM))

    (fill,) = fills_of(await exchange.on_bar(bar(2, "105 106 104 105")))

    assert (fill.price, fill.cause, fill.liquidity) == (Decimal("105.02"), "deadline", "taker")


async def test_crossing_order_continues_until_filled() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    deadline = START + FIVE_MINUTES + FIVE_MINUTES / 2
    await exchange.submit(order(expires_at=deadline, on_expiry="cross", max_participation=Decimal("0.1")))

    reports = [await exchange.on_bar(bar(number, CALM, volume="4")) for number in (1, 2, 3)]

    causes = [(fill.quantity, fill.cause) for report in reports for fill in fills_of(report)]
    assert causes == [(Decimal("0.4"), "order"), (Decimal("0.4"), "deadline"), (Decimal("0.2"), "deadline")]


async def test_resting_order_not_filled_past_deadline() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(
        order(order_type="limit", limit_price=Decimal(99), expires_at=START + 1.5 * FIVE_MINUTES)
    )

    assert await exchange.on_bar(bar(1, "100 101 90 100")) == []


async def test_halt_defers_fills_and_deadline() -> None:
    exchange = paper()
    await exchange.on_bar(DECISION_BAR)
    deadline = START + 3 * FIVE_MINUTES
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99), expires_at=deadline))
    await exchange.submit(order(order_id="o2", expires_at=START + 40 * FIVE_MINUTES))

    end, fill = await exchange.on_bar(bar(17, "90 91 89 90"))

    assert isinstance(end, Cancellation)
    assert isinstance(fill, Fill)
    assert (end.order_id, end.reason) == ("o1", CancelReason.DEADLINE)
    assert (fill.order_id, fill.price) == ("o2", Decimal("90.01"))


async def test_cancellation_time_uses_bar_or_start() -> None:
    exchange = paper()
    await exchange.submit(order())
    await exchange.submit(order(order_id="o2"))

    before = await exchange.cancel("o1")
    await exchange.on_bar(DECISION_BAR)
    after = await exchange.cancel("o2")

    assert before
    assert after
    assert (before.time, after.time) == (START + FIVE_MINUTES, START + FIVE_MINUTES)
    assert await exchange.cancel("never submitted") is None


@pytest.mark.parametrize("on_expiry", ["cancel", "cross"])
@pytest.mark.parametrize(
    "kind", [{"order_type": "market"}, {"order_type": "limit", "limit_price": Decimal(90)}]
)
async def test_expired_intent_cancels_entry_after_halt(kind: dict[str, Any], on_expiry: str) -> None:
    exchange = paper()
    await exchange.on_bar(bar(0, "100 101 99 100"))
    expiry = START + 12 * FIVE_MINUTES
    await exchange.submit(
        order(**kind, on_expiry=on_expiry, expires_at=START + 4 * FIVE_MINUTES, void_from=expiry)
    )

    (end,) = await exchange.on_bar(bar(12, "100 101 80 100"))

    assert isinstance(end, Cancellation)
    assert (end.reason, end.quantity) == (CancelReason.INTENT_EXPIRED, 1)


async def test_crossing_before_intent_expiry_is_filled() -> None:
    exchange = paper()
    await exchange.on_bar(bar(0, "100 101 99 100"))
    deadline, expiry = START + 4 * FIVE_MINUTES, START + 6 * FIVE_MINUTES
    await exchange.submit(order(on_expiry="cross", expires_at=deadline, void_from=expiry))

    (fill,) = fills_of(await exchange.on_bar(bar(5, "100 101 99 100")))

    assert fill.cause == "deadline"
