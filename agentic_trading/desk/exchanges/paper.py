"""An exchange on paper: deterministic fills from closed bars, assumed for the worse where a bar does not say."""

from collections.abc import Mapping
from decimal import Decimal

from agentic_trading.desk.exchange import (
    Account,
    Cancellation,
    CancelReason,
    ExecutionReport,
    OpenOrder,
    Order,
    OrderRefusedError,
)
from agentic_trading.desk.exchanges.account import PaperAccount, TradingCosts
from agentic_trading.desk.exchanges.matching import Market, Matching, OrderState
from agentic_trading.desk.instrument import EXACT, ZERO, Instrument, Price, round_down
from agentic_trading.desk.market.bar import Bar

DEFAULT_COSTS = TradingCosts()


class PaperExchange:
    """Keep the promise of `Exchange` with bars alone; `Matching` says in which order things happen in a bar.

    `instruments` are looked up for each bar and order, so that their grids may become finer. `cash` is the
    starting balance in the quote currency that all of them share. `max_participation` is the share of a bar's
    volume that all orders together may take, in 0 to 1. Shorts are allowed unless `allow_short` is False; no
    position is worth more than the equity when it is opened (see `PaperAccount`). With `shares_cash` entries at the market for
    which the cash is not enough get the same part each, as of the last closes, whichever of them comes first.
    """

    def __init__(
        self,
        instruments: Mapping[str, Instrument],
        *,
        cash: Decimal,
        costs: TradingCosts = DEFAULT_COSTS,
        max_participation: Decimal = Decimal("0.25"),
        allow_short: bool = True,
        shares_cash: bool = False,
    ) -> None:
        self._instruments = instruments
        self._costs = costs
        self._max_participation = max_participation
        self._shares_cash = shares_cash
        currencies = sorted({instrument.quote_currency for instrument in instruments.values()})
        if len(currencies) != 1:
            raise OrderRefusedError("quote currencies", currencies, "one that all instruments share")
        self._account = PaperAccount(cash, currencies[0], costs, allow_short=allow_short)
        self._taken: dict[str, Order] = {}
        self._states: dict[str, OrderState] = {}
        self._last: dict[str, Bar] = {}

    async def submit(self, order: Order) -> None:
        """Take an order; see `Exchange.submit`."""
        known = self._taken.get(order.order_id)
        if known == order:
            return
        if known is not None:
            raise OrderRefusedError("order_id", order.order_id, "an id that no other order has")
        self._check_grid(order, self._market(order.symbol).instrument)
        self._taken[order.order_id] = order
        self._states[order.order_id] = OrderState(order, left=order.quantity)

    async def cancel(self, order_id: str) -> Cancellation | None:
        """Take back what is left of an order; the time is that of the last bar, or when the order became active."""
        state = self._states.get(order_id)
        if state is None or state.left == 0:
            return None
        last = self._last.get(state.order.symbol)
        at = state.order.active_from if last is None else last.close_time
        cancellation = state.end(CancelReason.REQUESTED, at)
        self._forget_ended()
        return cancellation

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        """Let a closed bar fill orders; see `Exchange.on_bar`."""
        market = self._market(bar.symbol)
        last = self._last.get(bar.symbol)
        if last is not None and bar.open_time < last.close_time:
            allowed = f"at or after the close of the last bar, {last.close_time.isoformat()}"
            raise OrderRefusedError("bar open_time", bar.open_time.isoformat(), allowed)
        states = [state for state in self._states.values() if state.order.symbol == bar.symbol]
        reports: list[ExecutionReport] = []
        if states:
            if self._shares_cash:
                self._account.claims = self._wanted_beside(bar)
            reports = Matching(bar, market, self._account, states, last.close if last else None).run()
            self._forget_ended()
        self._account.mark(bar.symbol, bar.close)
        self._last[bar.symbol] = bar
        return reports

    async def account(self) -> Account:
        """Return cash and positions."""
        return self._account.snapshot()

    async def open_orders(self) -> tuple[OpenOrder, ...]:
        """Return what can still trade, in order of submission."""
        return tuple(OpenOrder(state.order, state.left, state.guarded) for state in self._states.values())

    def _wanted_beside(self, bar: Bar) -> Decimal:
        """Return what open entries at the market of other symbols would be worth at their last closes."""
        worth = ZERO
        for state in self._states.values():
            order, last = state.order, self._last.get(state.order.symbol)
            is_rival = order.symbol != bar.symbol and state.at_market and not order.reduce_only
            if is_rival and last is not None and order.active_from <= bar.open_time:
                worth = EXACT.fma(state.left, last.close, worth)
        return worth

    def _forget_ended(self) -> None:
        self._states = {order_id: state for order_id, state in self._states.items() if state.is_open}

    def _market(self, symbol: str) -> Market:
        if symbol not in self._instruments:
            raise OrderRefusedError("symbol", symbol, ", ".join(sorted(self._instruments)))
        return Market(self._instruments[symbol], self._costs, self._max_participation)

    def _check_grid(self, order: Order, instrument: Instrument) -> None:
        prices: dict[str, Price | None] = {
            "limit_price": order.limit_price,
            "stop_loss": order.stop_loss,
            "take_profit": order.take_profit,
        }
        if instrument.lots(order.quantity) != order.quantity:
            raise OrderRefusedError("quantity", order.quantity, f"multiples of {instrument.lot_size}")
        for name, price in prices.items():
            if price is not None and round_down(price, instrument.tick_size) != price:
                raise OrderRefusedError(name, price, f"multiples of {instrument.tick_size}")
