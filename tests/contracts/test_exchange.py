"""The suite of exchanges passes on the paper exchange, and finds exchanges that break one promise each."""

from datetime import timedelta
from decimal import Decimal
from typing import ClassVar

import pytest
from typing_extensions import override

from agentic_trading.desk.exchange import (
    Account,
    Cancellation,
    Exchange,
    ExecutionReport,
    Fill,
    OpenOrder,
    Order,
)
from agentic_trading.desk.exchanges.paper import PaperExchange
from agentic_trading.desk.instrument import Instrument
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import random_id
from agentic_trading.testing import ExchangeSuite
from tests.contracts.breaking import failures, unbroken
from tests.desk.trade import CHEAP, FIVE_MINUTES, listed


class TestPaperExchange(ExchangeSuite):
    @override
    def exchange(self) -> Exchange:
        return PaperExchange(listed(self.instrument), cash=self.cash, costs=CHEAP)


class TestPaperExchangeWithoutCosts(ExchangeSuite):
    @override
    def exchange(self) -> Exchange:
        free = CHEAP.model_copy(update=dict.fromkeys(type(CHEAP).model_fields, Decimal(0)))
        return PaperExchange(listed(self.instrument), cash=self.cash, costs=free)


class Broken(PaperExchange):
    """The paper exchange, which a subclass spoils."""

    def __init__(self, instrument: Instrument, cash: Decimal) -> None:
        super().__init__(listed(instrument), cash=cash, costs=CHEAP)
        self.start = cash


class Peeking(Broken):
    """Fills on the bar that the decision saw."""

    async def submit(self, order: Order) -> None:
        await super().submit(order.model_copy(update={"active_from": order.active_from - FIVE_MINUTES}))


class Predating(Broken):
    """Reports a fill at the open of its bar."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        reports = await super().on_bar(bar)
        return [
            report.model_copy(update={"time": report.bar_open_time}) if isinstance(report, Fill) else report
            for report in reports
        ]


class Reserving(Broken):
    """Takes the cash of an order when it is submitted."""

    async def account(self) -> Account:
        account = await super().account()
        waiting = Decimal(100 * len(await self.open_orders()))
        return account.model_copy(update={"cash": account.cash - waiting})


class Touching(Broken):
    """Fills limits that are only touched."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        tick = Decimal("0.01")
        return await super().on_bar(bar.model_copy(update={"low": bar.low - tick, "high": bar.high + tick}))


class Overpaying(Broken):
    """Fills a limit order at a worse price."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        reports = await super().on_bar(bar)
        return [
            report.model_copy(update={"price": report.price + 1}) if isinstance(report, Fill) else report
            for report in reports
        ]


class Leaking(Broken):
    """Loses a cent with the first fill."""

    async def account(self) -> Account:
        account = await super().account()
        lost = Decimal("0.01") if account.cash != self.start else Decimal(0)
        return account.model_copy(update={"cash": account.cash - lost})


class Overfilling(Broken):
    """Buys more than the order."""

    async def submit(self, order: Order) -> None:
        await super().submit(order.model_copy(update={"quantity": order.quantity * 2}))


class Overselling(Broken):
    """Sells the quantity of the order at its stop, filled or not."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        whole = {order_id: state.order.quantity for order_id, state in self._states.items()}
        return [
            report.model_copy(update={"quantity": whole[report.order_id]})
            if isinstance(report, Fill) and report.cause == "stop_loss"
            else report
            for report in await super().on_bar(bar)
        ]


class Halting(Broken):
    """Drops orders when bars are missing."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        last = self._last.get(bar.symbol)
        if last is not None and last.close_time < bar.open_time:
            self._states.clear()
        return await super().on_bar(bar)


class Doubling(Broken):
    """Takes each submission for another order."""

    async def submit(self, order: Order) -> None:
        if order.order_id in self._taken:
            order = order.model_copy(update={"order_id": f"{order.order_id}-again"})
        await super().submit(order)


class Forgetful(Broken):
    """Forgets the ids of its orders."""

    async def submit(self, order: Order) -> None:
        self._taken.clear()
        await super().submit(order)


class Unstoppable(Broken):
    """Reports a cancellation, and keeps the order."""

    async def cancel(self, order_id: str) -> Cancellation | None:
        state = self._states.get(order_id)
        ended = await super().cancel(order_id)
        if state is not None and ended is not None:
            state.left = ended.quantity
            self._states[order_id] = state
        return ended


class Raising(Broken):
    """Raises for an order that it does not have."""

    async def cancel(self, order_id: str) -> Cancellation | None:
        if order_id not in self._taken:
            raise KeyError(order_id)
        return await super().cancel(order_id)


class Sorting(Broken):
    """Lists open orders by id."""

    async def open_orders(self) -> tuple[OpenOrder, ...]:
        return tuple(sorted(await super().open_orders(), key=lambda each: each.order.order_id))


class Rewinding(Broken):
    """Accepts bars from the past."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        self._last.clear()
        return await super().on_bar(bar)


class Lenient(Broken):
    """Ignores other symbols."""

    async def submit(self, order: Order) -> None:
        if order.symbol in self._instruments:
            await super().submit(order)


class Rounding(Broken):
    """Rounds values to its grid."""

    async def submit(self, order: Order) -> None:
        lots = order.quantity.quantize(Decimal("0.001"))
        stop = None if order.stop_loss is None else order.stop_loss.quantize(Decimal("0.01"))
        await super().submit(order.model_copy(update={"quantity": lots, "stop_loss": stop}))


class Drawing(Broken):
    """Reports fills under random ids."""

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        return [
            report.model_copy(update={"fill_id": random_id()}) if isinstance(report, Fill) else report
            for report in await super().on_bar(bar)
        ]


class BrokenSuite(ExchangeSuite):
    """The suite on an exchange class."""

    make: ClassVar[type[Broken]]

    @override
    def exchange(self) -> Exchange:
        return type(self).make(self.instrument, self.cash)


BROKEN: dict[type[Broken], set[str]] = {
    Peeking: {"test_bar_of_the_decision_fills_no_order"},
    Predating: {"test_fill_has_the_time_of_its_bar"},
    Reserving: {"test_submission_changes_no_account"},
    Touching: {"test_touched_limit_is_not_filled"},
    Overpaying: {"test_limit_is_filled_at_its_price_or_better"},
    Leaking: {"test_account_follows_from_the_fills"},
    Overfilling: {"test_fills_never_exceed_the_order"},
    Overselling: {"test_stop_closes_at_most_the_filled_quantity"},
    Halting: {"test_order_stays_open_while_no_bar_comes"},
    Doubling: {"test_order_submitted_twice_is_one_order"},
    Forgetful: {
        "test_filled_order_submitted_again_is_not_filled_again",
        "test_another_order_under_a_used_id_is_refused",
    },
    Unstoppable: {"test_cancelled_order_is_not_filled"},
    Raising: {"test_unknown_order_has_no_rest_to_cancel"},
    Sorting: {"test_open_orders_are_in_order_of_submission"},
    Rewinding: {"test_bar_from_the_past_is_refused"},
    Lenient: {"test_unknown_symbol_is_refused"},
    Rounding: {"test_values_off_the_grid_are_refused"},
    Drawing: {"test_equal_sessions_give_equal_reports"},
}


@pytest.mark.parametrize("exchange", BROKEN)
def test_broken_exchange_is_found(exchange: type[Broken]) -> None:
    assert BROKEN[exchange] <= failures(type("Suite", (BrokenSuite,), {"make": exchange}))


def test_each_check_finds_a_broken_exchange() -> None:
    assert unbroken(ExchangeSuite, BROKEN) == set()


def test_missing_hook_names_itself() -> None:
    with pytest.raises(TypeError, match="override `exchange`"):
        ExchangeSuite().test_submission_changes_no_account()


def test_bars_of_the_suite_are_five_minutes_apart() -> None:
    suite = ExchangeSuite()

    assert suite.bar(2).open_time - suite.bar(1).open_time == timedelta(minutes=5)
