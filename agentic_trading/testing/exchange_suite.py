"""The contract suite of exchanges."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from agentic_trading.desk.exchange import (
    CancelReason,
    Exchange,
    ExecutionReport,
    Fill,
    Order,
    OrderRefusedError,
)
from agentic_trading.desk.instrument import Instrument
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.testing.suite import Suite, raised_by, require, require_equal

_START: Final = datetime(2026, 1, 2, tzinfo=UTC)
_FIVE_MINUTES: Final = timedelta(minutes=5)

_Check = Callable[[Exchange], Coroutine[Any, Any, None]]


class ExchangeSuite(Suite):
    """The promises of `Exchange`, tested on your adapter. Override `exchange`.

    Bars are five minutes long, with prices around 100. The exchange may charge any fees and spread.

    Attributes:
        instrument: The only instrument of the exchange under test.
        cash: The starting cash of its account.

    Example:
        class TestHouseExchange(ExchangeSuite):
            def exchange(self):
                return HouseExchange(self.instrument, cash=self.cash)

    """

    instrument: Instrument = Instrument(
        symbol="BTCUSDT", lot_size=Decimal("0.001"), min_quantity=Decimal("0.001")
    )
    cash: Decimal = Decimal(10_000)

    def exchange(self) -> Exchange:
        """Return a new exchange with `instrument` and `cash`. It is called within an event loop."""
        raise TypeError("override `exchange`: return your adapter with an empty account")

    def bar(self, place: int, prices: str = "100 101 99 100", volume: str = "1000") -> Bar:
        """Return the bar at a place, from 0. `prices` are open, high, low and close."""
        opened, high, low, close = map(Decimal, prices.split())
        return Bar(
            symbol=self.instrument.symbol,
            timeframe=Timeframe.M5,
            open_time=_START + place * _FIVE_MINUTES,
            open=opened,
            high=high,
            low=low,
            close=close,
            volume=Decimal(volume),
        )

    def order(self, **changes: Any) -> Order:
        """Return a market order to buy 1 from bar 1 on. `changes` are fields of `Order`."""
        fields: dict[str, Any] = {
            "order_id": "o1",
            "intent_id": "i1",
            "symbol": self.instrument.symbol,
            "side": "buy",
            "quantity": Decimal(1),
            "order_type": "market",
            "active_from": _START + _FIVE_MINUTES,
            "expires_at": _START + timedelta(hours=2),
            "trace_id": "t1",
        }
        return Order.model_validate({**fields, **changes})

    def test_bar_of_the_decision_fills_no_order(self) -> None:
        """A fill by the bar that a decision was made on would be a look into the future."""

        async def check(exchange: Exchange) -> None:
            await exchange.submit(self.order())
            early = _fills(await exchange.on_bar(self.bar(0)))
            require_equal("a bar that opens before active_from fills no order", early, [])
            require("the next bar fills it", "no fill", kept=bool(_fills(await exchange.on_bar(self.bar(1)))))

        self._run(check)

    def test_fill_has_the_time_of_its_bar(self) -> None:
        """A fill is known at the close of its bar, and has no negative fee."""

        async def check(exchange: Exchange) -> None:
            (fill,) = await self._filled(exchange, self.order(), self.bar(1))
            found = (fill.bar_open_time, fill.time)
            expected = (self.bar(1).open_time, self.bar(1).close_time)
            require_equal("a fill has the open and the close of its bar", found, expected)
            require("a fee is not negative", fill.fee, kept=fill.fee >= 0)

        self._run(check)

    def test_submission_changes_no_account(self) -> None:
        """Only bars fill orders."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(0))
            before = await exchange.account()
            await exchange.submit(self.order())
            require_equal(
                "a submission does not change the account", (await exchange.account()).cash, before.cash
            )
            found = (await exchange.account()).quantity(self.instrument.symbol)
            require_equal("a submission does not change a position", found, 0)

        self._run(check)

    def test_touched_limit_is_not_filled(self) -> None:
        """The queue before an order is unknown, so that a touch may fill others only."""

        async def check(exchange: Exchange) -> None:
            limit = self.order(order_type="limit", limit_price=Decimal(99))
            require_equal(
                "a limit that is only touched is not filled",
                await self._filled(exchange, limit, self.bar(1)),
                [],
            )

        self._run(check)

    def test_limit_is_filled_at_its_price_or_better(self) -> None:
        """A bar beyond the limit fills it."""

        async def check(exchange: Exchange) -> None:
            limit = self.order(order_type="limit", limit_price=Decimal(99))
            fills = await self._filled(exchange, limit, self.bar(1, "100 101 98.99 100"))
            require("a bar beyond the limit fills it", "no fill", kept=bool(fills))
            require("a limit is filled at its price or better", fills[0].price, kept=fills[0].price <= 99)

        self._run(check)

    def test_account_follows_from_the_fills(self) -> None:
        """Cash and position are exact sums of all fills."""

        async def check(exchange: Exchange) -> None:
            start = (await exchange.account()).cash
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order(quantity=Decimal("3.333"), stop_loss=Decimal("97.77")))
            sale = self.order(order_id="o2", intent_id="i2", side="sell", quantity=Decimal("1.007"))
            await exchange.submit(sale)
            fills: list[Fill] = []
            for place, prices, volume in (
                (1, "100.03 101 99 100.01", "7"),
                (2, "100.03 101 99 100.01", "9"),
                (3, "99 99 97 97.5", "1000"),
            ):
                fills += _fills(await exchange.on_bar(self.bar(place, prices, volume)))
            account = await exchange.account()
            require("orders within the cash are filled", f"{len(fills)} fills", kept=len(fills) >= 2)
            cash = start + sum(fill.cash_change for fill in fills)
            require_equal("cash is the start plus the cash changes of all fills", account.cash, cash)
            held = sum(fill.side.sign * fill.quantity for fill in fills)
            found = account.quantity(self.instrument.symbol)
            require_equal("a position is the signed sum of its fills", found, held)

        self._run(check)

    def test_fills_never_exceed_the_order(self) -> None:
        """Partial fills add up to the quantity of the order."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order(quantity=Decimal(5)))
            fills: list[Fill] = []
            for place in range(1, 6):
                fills += _fills(await exchange.on_bar(self.bar(place, volume="8")))
            filled = sum(fill.quantity for fill in fills)
            require_equal("partial fills add up to the quantity of the order", filled, 5)

        self._run(check)

    def test_stop_closes_at_most_the_filled_quantity(self) -> None:
        """A stop of a partly filled order must not open a position on the other side."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order(quantity=Decimal(5), stop_loss=Decimal(98)))
            bought = _fills(await exchange.on_bar(self.bar(1, volume="8")))
            sold = _fills(await exchange.on_bar(self.bar(2, "97 97 96 96")))
            sold += _fills(await exchange.on_bar(self.bar(3, "96 96 95 95")))
            require("a stop that is passed trades", sold, kept=any(fill.side == "sell" for fill in sold))
            left = sum(fill.side.sign * fill.quantity for fill in [*bought, *sold])
            require("a stop closes at most the filled quantity", f"a position of {left}", kept=left == 0)

        self._run(check)

    def test_order_stays_open_while_no_bar_comes(self) -> None:
        """A halt of the market ends no order."""

        async def check(exchange: Exchange) -> None:
            order = self.order(expires_at=_START + timedelta(days=1))
            fills = await self._filled(exchange, order, self.bar(17))
            opened = [fill.bar_open_time for fill in fills]
            require_equal("an order stays open while no bar comes", opened, [_START + 17 * _FIVE_MINUTES])

        self._run(check)

    def test_order_submitted_twice_is_one_order(self) -> None:
        """After an unknown outcome, the same order can be submitted again."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order())
            await exchange.submit(self.order())
            orders = await exchange.open_orders()
            require_equal("an order that is submitted twice is one order", len(orders), 1)
            filled = sum(fill.quantity for fill in _fills(await exchange.on_bar(self.bar(1))))
            require_equal("an order that is submitted twice is filled once", filled, 1)

        self._run(check)

    def test_filled_order_submitted_again_is_not_filled_again(self) -> None:
        """A repetition may come after the fill."""

        async def check(exchange: Exchange) -> None:
            require_equal(
                "a market order is filled", len(await self._filled(exchange, self.order(), self.bar(1))), 1
            )
            await exchange.submit(self.order())
            again = _fills(await exchange.on_bar(self.bar(2)))
            require_equal("an order that was filled is not filled again", again, [])

        self._run(check)

    def test_another_order_under_a_used_id_is_refused(self) -> None:
        """An id belongs to one order for ever."""

        async def check(exchange: Exchange) -> None:
            await exchange.submit(self.order())
            other = self.order(quantity=Decimal(2))
            await self._require_refusal("another order under a used id is refused", exchange.submit(other))

        self._run(check)

    def test_cancelled_order_is_not_filled(self) -> None:
        """A cancellation reports the unfilled rest, once."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order())
            ended = await exchange.cancel("o1")
            found = ended and (ended.reason, ended.quantity)
            require_equal("a cancellation has its reason and the rest", found, (CancelReason.REQUESTED, 1))
            again = await exchange.cancel("o1")
            require_equal("a cancelled order has no rest to cancel", again, None)
            require_equal("a cancelled order is not open", list(await exchange.open_orders()), [])
            reports = await exchange.on_bar(self.bar(1))
            require_equal("a cancelled order is not filled", reports, [])

        self._run(check)

    def test_unknown_order_has_no_rest_to_cancel(self) -> None:
        """A cancellation may cross a fill."""

        async def check(exchange: Exchange) -> None:
            found = await exchange.cancel("unknown")
            require_equal("the cancellation of an unknown order is None", found, None)

        self._run(check)

    def test_open_orders_are_in_order_of_submission(self) -> None:
        """A session reads them to continue after a restart."""

        async def check(exchange: Exchange) -> None:
            for number in (2, 1, 3):
                far = self.order(order_id=f"o{number}", order_type="limit", limit_price=Decimal(50))
                await exchange.submit(far)
            found = [each.order.order_id for each in await exchange.open_orders()]
            require_equal("open orders are in order of submission", found, ["o2", "o1", "o3"])

        self._run(check)

    def test_bar_from_the_past_is_refused(self) -> None:
        """Bars come in order of time."""

        async def check(exchange: Exchange) -> None:
            await exchange.on_bar(self.bar(1))
            past = exchange.on_bar(self.bar(0))
            await self._require_refusal("a bar from the past is refused", past)

        self._run(check)

    def test_unknown_symbol_is_refused(self) -> None:
        """Orders and bars of other symbols are errors of the caller."""

        async def check(exchange: Exchange) -> None:
            order = exchange.submit(self.order(symbol="UNKNOWN"))
            await self._require_refusal("an order of an unknown symbol is refused", order)
            bar = exchange.on_bar(self.bar(0).model_copy(update={"symbol": "UNKNOWN"}))
            await self._require_refusal("a bar of an unknown symbol is refused", bar)

        self._run(check)

    def test_values_off_the_grid_are_refused(self) -> None:
        """A value that the instrument cannot have is not rounded without notice."""
        half_lot, half_tick = self.instrument.lot_size / 2, self.instrument.tick_size / 2

        async def check(exchange: Exchange) -> None:
            before = await exchange.account()
            for wrong in (
                self.order(quantity=1 + half_lot),
                self.order(stop_loss=99 - half_tick),
                self.order(order_type="limit", limit_price=99 + half_tick),
            ):
                refused = exchange.submit(wrong)
                await self._require_refusal("a value off the grid is refused", refused)
            require_equal("a refused order is not open", list(await exchange.open_orders()), [])
            require_equal("a refused order changes no account", await exchange.account(), before)

        self._run(check)

    def test_equal_sessions_give_equal_reports(self) -> None:
        """A replay depends on it."""

        async def session(exchange: Exchange) -> list[ExecutionReport]:
            await exchange.on_bar(self.bar(0))
            await exchange.submit(self.order(quantity=Decimal(5), stop_loss=Decimal(98)))
            await exchange.submit(self.order(order_id="o2", order_type="limit", peg_bps=Decimal(50)))
            bars = [self.bar(1, volume="8"), self.bar(2, "100 100 97 98")]
            return [report for bar in bars for report in await exchange.on_bar(bar)]

        async def check(exchange: Exchange) -> None:
            first = await session(exchange)
            require("an order is filled", "no report", kept=bool(first))
            second = await session(self.exchange())
            require_equal("equal orders and bars give equal reports", second, first)

        self._run(check)

    def _run(self, check: _Check) -> None:
        async def checked() -> None:
            await check(self.exchange())

        self.run_check(checked())

    async def _filled(self, exchange: Exchange, order: Order, bar: Bar) -> list[Fill]:
        """Return the fills of an order by the first bar after its decision."""
        await exchange.on_bar(self.bar(0))
        await exchange.submit(order)
        return _fills(await exchange.on_bar(bar))

    async def _require_refusal(self, promise: str, attempt: Coroutine[Any, Any, object]) -> None:
        await raised_by(attempt, OrderRefusedError, f"{promise} with an OrderRefusedError")


def _fills(reports: Sequence[ExecutionReport]) -> list[Fill]:
    return [report for report in reports if isinstance(report, Fill)]
