"""What every exchange promises, and that the suite sees an exchange that breaks its promise."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal

import pytest

from agentic_trading.desk.exchange import (
    Account,
    CancelReason,
    Exchange,
    ExecutionReport,
    Order,
    OrderRefusedError,
)
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.market.bar import Bar
from tests.desk.trade import BTC, CHEAP, FIVE_MINUTES, START, bar, fills_of, listed, order

MakeExchange = Callable[[], Exchange]
Promise = Callable[[Exchange], Awaitable[None]]

DECISION_BAR = bar(0, "100 101 99 100")


def paper_exchange() -> Exchange:
    """Return a paper exchange with 10,000 in cash."""
    return PaperExchange(listed(BTC), cash=Decimal(10_000), costs=CHEAP)


ADAPTERS = {"paper": paper_exchange}


async def no_fill_on_the_decision_bar(exchange: Exchange) -> None:
    """An order that is active from the close of a bar is not filled by that bar, even if it is told late."""
    await exchange.submit(order(active_from=DECISION_BAR.close_time))

    assert fills_of(await exchange.on_bar(DECISION_BAR)) == []
    assert fills_of(await exchange.on_bar(bar(1, "100 101 99 100"))) != []


async def no_fill_without_a_bar(exchange: Exchange) -> None:
    """To submit an order moves nothing."""
    await exchange.on_bar(DECISION_BAR)
    before = await exchange.account()
    await exchange.submit(order())

    assert await exchange.account() == before


async def no_fill_of_a_limit_that_is_only_touched(exchange: Exchange) -> None:
    """A bar that trades at the limit and not beyond it fills nothing."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99)))

    assert fills_of(await exchange.on_bar(bar(1, "100 101 99 100"))) == []


async def a_limit_is_filled_at_its_price_or_better(exchange: Exchange) -> None:
    """A bar that trades beyond the limit fills it."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(order_type="limit", limit_price=Decimal(99)))

    (fill,) = fills_of(await exchange.on_bar(bar(1, "100 101 98.99 100")))

    assert fill.price <= 99


async def cash_and_position_follow_from_the_fills(exchange: Exchange) -> None:
    """Cash is what it was plus every cash change, the position the sum of quantities, to the last digit."""
    start = (await exchange.account()).cash
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal("3.333"), stop_loss=Decimal("97.77")))
    await exchange.submit(order(order_id="o2", intent_id="i2", side="sell", quantity=Decimal("1.007")))
    fills = [
        *fills_of(await exchange.on_bar(bar(1, "100.03 101 99 100.01", volume="7"))),
        *fills_of(await exchange.on_bar(bar(2, "100.03 101 99 100.01", volume="9"))),
        *fills_of(await exchange.on_bar(bar(3, "99 99 97 97.5"))),
    ]
    account = await exchange.account()

    assert account.cash == start + sum(fill.cash_change for fill in fills)
    assert account.quantity("BTCUSDT") == sum(fill.side.sign * fill.quantity for fill in fills)
    assert len(fills) >= 3


async def an_order_is_never_filled_beyond_its_quantity(exchange: Exchange) -> None:
    """Partial fills of an order add up to its quantity at most."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal(5)))
    reports = [await exchange.on_bar(bar(number, "100 101 99 100", volume="8")) for number in range(1, 6)]

    assert sum(fill.quantity for report in reports for fill in fills_of(report)) == 5


async def an_order_lives_on_while_no_bar_comes(exchange: Exchange) -> None:
    """After a halt the order is still there, and nothing was filled meanwhile."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(active_from=START + FIVE_MINUTES, expires_at=START + timedelta(days=1)))

    (fill,) = fills_of(await exchange.on_bar(bar(17, "100 101 99 100")))

    assert fill.bar_open_time == START + 17 * FIVE_MINUTES


async def the_same_order_twice_is_one_order(exchange: Exchange) -> None:
    """A second submission of an order changes nothing."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())
    await exchange.submit(order())

    assert len(await exchange.open_orders()) == 1
    assert sum(fill.quantity for fill in fills_of(await exchange.on_bar(bar(1, "100 101 99 100")))) == 1


async def another_order_under_the_same_id_is_refused(exchange: Exchange) -> None:
    """An id belongs to one order for ever."""
    await exchange.submit(order())

    with pytest.raises(OrderRefusedError, match="order_id"):
        await exchange.submit(order(quantity=Decimal(2)))


async def a_cancelled_order_is_not_filled(exchange: Exchange) -> None:
    """What is taken back ends once, with what was left of it."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order())

    cancellation = await exchange.cancel("o1")

    assert cancellation
    assert (cancellation.reason, cancellation.quantity) == (CancelReason.REQUESTED, 1)
    assert await exchange.cancel("o1") is None
    assert await exchange.on_bar(bar(1, "100 101 99 100")) == []


async def a_bar_from_the_past_is_refused(exchange: Exchange) -> None:
    """Bars come in order of time."""
    await exchange.on_bar(bar(1, "100 101 99 100"))

    with pytest.raises(OrderRefusedError, match="open_time"):
        await exchange.on_bar(DECISION_BAR)


async def an_unknown_symbol_is_refused(exchange: Exchange) -> None:
    """Orders and bars of another symbol have no place here."""
    with pytest.raises(OrderRefusedError, match="BTCUSDT"):
        await exchange.submit(order(symbol="DOGEUSDT"))
    with pytest.raises(OrderRefusedError, match="BTCUSDT"):
        await exchange.on_bar(bar(0, "1 1 1 1", symbol="DOGEUSDT"))


async def prices_and_quantities_off_the_grid_are_refused(exchange: Exchange) -> None:
    """What the instrument cannot spell is not rounded silently."""
    with pytest.raises(OrderRefusedError, match="quantity"):
        await exchange.submit(order(quantity=Decimal("0.0005")))
    with pytest.raises(OrderRefusedError, match="stop_loss"):
        await exchange.submit(order(stop_loss=Decimal("99.999")))


PROMISES: list[Promise] = [
    no_fill_on_the_decision_bar,
    no_fill_without_a_bar,
    no_fill_of_a_limit_that_is_only_touched,
    a_limit_is_filled_at_its_price_or_better,
    cash_and_position_follow_from_the_fills,
    an_order_is_never_filled_beyond_its_quantity,
    an_order_lives_on_while_no_bar_comes,
    the_same_order_twice_is_one_order,
    another_order_under_the_same_id_is_refused,
    a_cancelled_order_is_not_filled,
    a_bar_from_the_past_is_refused,
    an_unknown_symbol_is_refused,
    prices_and_quantities_off_the_grid_are_refused,
]


@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_exchange_keeps_promise(promise: Promise, make: MakeExchange) -> None:
    await promise(make())


@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
async def test_equal_sessions_give_equal_reports(make: MakeExchange) -> None:
    assert await session(make()) == await session(make())


async def session(exchange: Exchange) -> list[ExecutionReport]:
    """Trade a little; return every report."""
    await exchange.on_bar(DECISION_BAR)
    await exchange.submit(order(quantity=Decimal(5), stop_loss=Decimal(98)))
    await exchange.submit(order(order_id="o2", order_type="limit", peg_bps=Decimal(50)))
    bars = [bar(1, "100 101 99 100", volume="8"), bar(2, "100 100 97 98")]
    return [report for closed in bars for report in await exchange.on_bar(closed)]


class PeekingExchange(PaperExchange):
    """Fills on the bar that the decision saw."""

    async def submit(self, order: Order) -> None:
        await super().submit(order.model_copy(update={"active_from": order.active_from - FIVE_MINUTES}))


class TouchingExchange(PaperExchange):
    """Fills limits that are only touched."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        wider = {"low": bar.low - BTC.tick_size, "high": bar.high + BTC.tick_size}
        return await super().on_bar(bar.model_copy(update=wider))


class LeakingExchange(PaperExchange):
    """Loses a cent with the first fill."""

    async def account(self) -> Account:
        account = await super().account()
        lost = Decimal("0.01") if account.cash != 10_000 else Decimal(0)
        return account.model_copy(update={"cash": account.cash - lost})


class ForgetfulExchange(PaperExchange):
    """Takes an order again after it was filled: no memory of ids."""

    async def submit(self, order: Order) -> None:
        self._taken.clear()
        await super().submit(order)


class HaltingExchange(PaperExchange):
    """Drops orders when bars are missing."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        last = self._last.get(bar.symbol)
        if last is not None and last.close_time < bar.open_time:
            self._states.clear()
        return await super().on_bar(bar)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (PeekingExchange, no_fill_on_the_decision_bar),
        (TouchingExchange, no_fill_of_a_limit_that_is_only_touched),
        (LeakingExchange, cash_and_position_follow_from_the_fills),
        (ForgetfulExchange, another_order_under_the_same_id_is_refused),
        (HaltingExchange, an_order_lives_on_while_no_bar_comes),
    ],
)
async def test_broken_exchange_is_detected(broken: type[PaperExchange], promise: Promise) -> None:
    exchange = broken(listed(BTC), cash=Decimal(10_000), costs=CHEAP)

    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        await promise(exchange)
