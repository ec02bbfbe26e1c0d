"""An exchange on paper: deterministic fills from closed bars, assuming the worse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from agentic_trading.desk import exchange as exchange_api
from agentic_trading.desk import instrument as instrument_api
from agentic_trading.desk.exchanges.account import PaperAccount, TradingCosts
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import derived_id


@dataclass(frozen=True, slots=True)
class FillPrice:
    """The price at which a bar fills an order, and whether it is maker or taker."""

    price: Decimal
    liquidity: exchange_api.Liquidity


@dataclass(slots=True)
class OrderState:
    """An order and its state.

    Attributes:
        left: The unfilled quantity.
        guarded: The filled quantity that the order's stop or target must still close.
        limit: The limit price, known from the first bar that could fill the order.
        resting: Whether an earlier bar could have filled the order.
        crossing: Whether its deadline made it a market order.
        stopped: Whether its stop was triggered.

    """

    order: exchange_api.Order
    left: Decimal
    guarded: Decimal = instrument_api.ZERO
    limit: Decimal | None = None
    resting: bool = False
    crossing: bool = False
    stopped: bool = False
    fills: int = 0

    @property
    def is_open(self) -> bool:
        return self.left > 0 or self.guarded > 0

    @property
    def is_guarding(self) -> bool:
        return self.order.stop_loss is not None or self.order.take_profit is not None

    @property
    def at_market(self) -> bool:
        return self.order.order_type == "market" or self.crossing

    def has_passed(self, price: Decimal) -> bool:
        """Return whether a position opened at `price` would be past its stop or target.

        A price at the stop or target counts too.
        """
        if self.order.reduce_only:
            return False
        low, high = self.order.stop_loss, self.order.take_profit
        if self.order.side is instrument_api.Side.SELL:
            low, high = high, low
        return (low is not None and price <= low) or (high is not None and price >= high)

    def end(self, reason: exchange_api.CancelReason, at: datetime) -> exchange_api.Cancellation:
        """Cancel the unfilled rest, which must not be 0. The filled part stays guarded."""
        left, self.left = self.left, instrument_api.ZERO
        return exchange_api.Cancellation(
            order_id=self.order.order_id,
            intent_id=self.order.intent_id,
            symbol=self.order.symbol,
            quantity=left,
            reason=reason,
            time=at,
            trace_id=self.order.trace_id,
        )


@dataclass(frozen=True, slots=True)
class Market:
    """The grid, the costs, and the share of a bar that all orders together may take."""

    instrument: instrument_api.Instrument
    costs: TradingCosts
    max_participation: Decimal


class Matching:
    """The events of one bar, in the order in which they are assumed to happen.

    1. Before the open: An order whose intent has expired ends. An order whose deadline has passed ends, or
       becomes a market order. New orders get their price.
    2. At the open: Stops that the open is beyond come first. Then come market orders, and limit orders that
       are new to the market.
    3. Inside the bar: Stops come first, then targets, then resting limit orders, each followed by its own
       stop.
    4. At the close: Orders that must be filled at once or not at all are cancelled.

    Within a step, orders are in order of submission. A bar does not show its order of events, so the worse is
    assumed: a stop comes before a target, and a resting order that is filled in a bar does not reach its
    target in that bar. A resting order is not filled by a bar that closes after its deadline. No order opens
    a position at or beyond its own stop or target.
    """

    def __init__(
        self,
        bar: Bar,
        market: Market,
        account: PaperAccount,
        states: Sequence[OrderState],
        last_close: Decimal | None,
    ) -> None:
        self._bar = bar
        self._market = market
        self._account = account
        self._states = states
        self._last_close = last_close
        self._volume_left = self._share_of_bar(market.max_participation)
        self._shares: dict[str, Decimal] = {}
        self._reports: list[exchange_api.ExecutionReport] = []

    def run(self) -> list[exchange_api.ExecutionReport]:
        """Process the bar: change orders and account, and return the reports in order."""
        active = [state for state in self._states if state.order.active_from <= self._bar.open_time]
        for state in active:
            self._before_open(state)
        for state in active:
            self._stop_loss(state, at_open=True)
        for state in active:
            self._take_at_open(state)
        for state in active:
            self._stop_loss(state, at_open=False)
        # Stops come before targets, because a bar does not show what came first, and the worse is assumed.
        for state in active:
            self._take_profit(state)
        for state in active:
            self._fill_resting(state)
        for state in active:
            self._at_close(state)
        return self._reports

    def _before_open(self, state: OrderState) -> None:
        if state.order.void_from is not None and state.order.void_from <= self._bar.open_time:
            self._end(state, exchange_api.CancelReason.INTENT_EXPIRED)
        if state.left > 0 and state.order.expires_at <= self._bar.open_time:
            if state.order.on_expiry == "cancel":
                self._end(state, exchange_api.CancelReason.DEADLINE)
            state.crossing = True
        if state.order.reduce_only and self._reducible(state) == 0:
            self._end(state, exchange_api.CancelReason.NOTHING_TO_REDUCE)
        if state.limit is None:
            state.limit = self._limit(state)
            if state.order.order_type == "post_only" and not state.crossing and self._would_take(state):
                self._end(state, exchange_api.CancelReason.WOULD_TAKE)

    def _take_at_open(self, state: OrderState) -> None:
        if state.at_market:
            taken = price_at_market(state.order.side, self._bar, self._market.costs, self._market.instrument)
            self._fill(state, taken, "deadline" if state.crossing else "order")
        elif state.order.order_type == "limit" and state.limit is not None and not state.resting:
            fill_price = price_on_arrival(
                state.order.side, state.limit, self._bar, self._market.costs, self._market.instrument
            )
            self._fill(state, fill_price, "order")

    def _fill_resting(self, state: OrderState) -> None:
        if state.at_market or state.limit is None or state.order.expires_at < self._bar.close_time:
            return
        if self._fill(state, price_at_rest(state.order.side, state.limit, self._bar), "order"):
            self._stop_loss(state, at_open=False)

    def _stop_loss(self, state: OrderState, *, at_open: bool) -> None:
        if state.guarded == 0 or state.order.stop_loss is None:
            return
        side = state.order.side.opposite
        costs, instrument = self._market.costs, self._market.instrument
        if state.stopped:
            fill_price = price_at_market(side, self._bar, costs, instrument) if at_open else None
        else:
            fill_price = price_of_stop(
                side, state.order.stop_loss, self._bar, costs, instrument, at_open=at_open
            )
        if fill_price is not None:
            state.stopped = True
            self._exit(state, fill_price, "stop_loss")

    def _take_profit(self, state: OrderState) -> None:
        if state.guarded == 0 or state.order.take_profit is None:
            return
        fill_price = price_at_rest(state.order.side.opposite, state.order.take_profit, self._bar)
        if fill_price is not None:
            self._exit(state, fill_price, "take_profit")

    def _at_close(self, state: OrderState) -> None:
        if state.order.reduce_only and self._reducible(state) == 0:
            self._end(state, exchange_api.CancelReason.NOTHING_TO_REDUCE)
        if state.order.time_in_force == "ioc" and (state.at_market or state.limit is not None):
            self._end(state, exchange_api.CancelReason.IMMEDIATE_OR_CANCEL)
        state.resting = state.limit is not None

    def _fill(self, state: OrderState, fill_price: FillPrice | None, cause: exchange_api.FillCause) -> bool:
        """Trade as much as volume, position and money allow. Return whether it traded."""
        if fill_price is None or state.left == 0:
            return False
        # The plan has passed: a position that is opened here would be at or beyond its own stop or target.
        if state.has_passed(fill_price.price):
            self._end(state, exchange_api.CancelReason.PLAN_PASSED)
            return False
        wanted = self._wanted(state)
        if wanted == 0:
            return False
        quantity, against = self._account.affordable(
            self._market.instrument, state.order.side, wanted, fill_price.price, fill_price.liquidity
        )
        if quantity > 0:
            self._trade(state, state.order.side, quantity, fill_price, cause)
            state.left = instrument_api.EXACT.subtract(state.left, quantity)
            self._shares[state.order.order_id] = instrument_api.EXACT.subtract(self._share(state), quantity)
            self._guard(state, quantity)
        if against is not None:
            self._end(state, against)
        return quantity > 0

    def _exit(self, state: OrderState, fill_price: FillPrice, cause: exchange_api.FillCause) -> None:
        """Close the guarded quantity as far as volume allows. Cancel the intent's rest."""
        quantity = min(state.guarded, self._volume_left)
        if quantity > 0:
            state.guarded = instrument_api.EXACT.subtract(state.guarded, quantity)
            self._trade(state, state.order.side.opposite, quantity, fill_price, cause)
        for other in self._states:
            if other.order.intent_id == state.order.intent_id:
                self._end(other, exchange_api.CancelReason.EXITED)

    def _trade(
        self,
        state: OrderState,
        side: instrument_api.Side,
        quantity: Decimal,
        fill_price: FillPrice,
        cause: exchange_api.FillCause,
    ) -> None:
        state.fills += 1
        fill = exchange_api.Fill(
            fill_id=derived_id("fill", state.order.order_id, state.fills),
            intent_id=state.order.intent_id,
            order_id=state.order.order_id,
            symbol=state.order.symbol,
            side=side,
            price=fill_price.price,
            quantity=quantity,
            fee=self._market.costs.fee(fill_price.price, quantity, fill_price.liquidity),
            fee_currency=self._market.instrument.quote_currency,
            liquidity=fill_price.liquidity,
            cause=cause,
            time=self._bar.close_time,
            bar_open_time=self._bar.open_time,
            trace_id=state.order.trace_id,
        )
        self._account.apply(fill)
        self._volume_left = instrument_api.EXACT.subtract(self._volume_left, quantity)
        self._reports.append(fill)
        # Otherwise a stop could sell more than is held, and so open a position on the other side.
        for other in self._states:
            other.guarded = min(other.guarded, self._account.on_side(other.order.symbol, other.order.side))

    def _wanted(self, state: OrderState) -> Decimal:
        """Return how much of the order this bar has room for."""
        room = min(state.left, self._share(state), self._volume_left)
        return min(room, self._reducible(state)) if state.order.reduce_only else room

    def _share(self, state: OrderState) -> Decimal:
        """Return the quantity that the order may still take of this bar."""
        if state.order.order_id not in self._shares:
            self._shares[state.order.order_id] = self._share_of_bar(state.order.max_participation)
        return self._shares[state.order.order_id]

    def _guard(self, state: OrderState, quantity: Decimal) -> None:
        if state.is_guarding:
            held = self._account.on_side(state.order.symbol, state.order.side)
            state.guarded = min(instrument_api.EXACT.add(state.guarded, quantity), held)

    def _end(self, state: OrderState, reason: exchange_api.CancelReason) -> None:
        if state.left > 0:
            self._reports.append(state.end(reason, self._bar.close_time))

    def _reducible(self, state: OrderState) -> Decimal:
        return self._account.on_side(state.order.symbol, state.order.side.opposite)

    def _limit(self, state: OrderState) -> Decimal | None:
        if state.order.peg_bps is None or self._last_close is None:
            return state.order.limit_price
        return instrument_api.limit_from(
            self._last_close, state.order.peg_bps, state.order.side, self._market.instrument.tick_size
        )

    def _would_take(self, state: OrderState) -> bool:
        """Return whether a post-only order would trade at once, beyond the last close."""
        if state.limit is None or self._last_close is None:
            return False
        return (
            state.limit > self._last_close
            if state.order.side is instrument_api.Side.BUY
            else state.limit < self._last_close
        )

    def _share_of_bar(self, share: Decimal) -> Decimal:
        return self._market.instrument.lots(instrument_api.EXACT.multiply(self._bar.volume, share))


def price_at_market(
    side: instrument_api.Side, bar: Bar, costs: TradingCosts, instrument: instrument_api.Instrument
) -> FillPrice:
    """Return the price of a market order: half a spread worse than the open."""
    return FillPrice(costs.taken_at(bar.open, side, instrument), "taker")


def price_on_arrival(
    side: instrument_api.Side,
    limit: Decimal,
    bar: Bar,
    costs: TradingCosts,
    instrument: instrument_api.Instrument,
) -> FillPrice | None:
    """Return the price of a limit order that is new to the market, or None.

    It trades only if the bar opens beyond its limit. It takes half a spread worse than the open, and never
    worse than its limit.
    """
    if not _is_beyond(side, bar.open, limit):
        return None
    taken = costs.taken_at(bar.open, side, instrument)
    return FillPrice(limit if _is_beyond(side, limit, taken) else taken, "taker")


def price_at_rest(side: instrument_api.Side, limit: Decimal, bar: Bar) -> FillPrice | None:
    """Return the limit of a resting order if the bar traded beyond it, otherwise None."""
    # A touched limit fills no order, because the queue before the order is unknown.
    return FillPrice(limit, "maker") if _is_beyond(side, _farthest(side, bar), limit) else None


def price_of_stop(
    side: instrument_api.Side,
    stop: Decimal,
    bar: Bar,
    costs: TradingCosts,
    instrument: instrument_api.Instrument,
    *,
    at_open: bool,
) -> FillPrice | None:
    """Return the price of a stop that leaves a position by `side`, or None.

    It is None if the bar has not touched the stop. The stop takes like a market order, at its price, or at
    the open if that is worse.
    """
    touched = bar.open if at_open else _farthest(side.opposite, bar)
    if _is_beyond(side, touched, stop):
        return None
    worse = bar.open if _is_beyond(side, stop, bar.open) else stop
    return FillPrice(costs.taken_at(worse, side, instrument), "taker")


def _is_beyond(side: instrument_api.Side, price: Decimal, limit: Decimal) -> bool:
    """Return whether `price` is strictly better for `side` than `limit`."""
    return price < limit if side is instrument_api.Side.BUY else price > limit


def _farthest(side: instrument_api.Side, bar: Bar) -> Decimal:
    """Return the price of the bar that is best for `side`."""
    return bar.low if side is instrument_api.Side.BUY else bar.high


DEFAULT_COSTS = TradingCosts()


class PaperExchange:
    """An `Exchange` that fills orders from closed bars, in the order of `Matching`.

    Args:
        instruments: The instruments. They are looked up for each bar and order, so that their grids may
            become finer.
        cash: The starting balance in the quote currency that all instruments share.
        costs: The spread and the fees.
        max_participation: The share of a bar's volume that all orders together may take, in 0 to 1.
        allow_short: Whether shorts are allowed. No position is worth more than the equity when it is opened.
        shares_cash: Whether market entries share the cash if it is too low for all. Each then gets the same
            fraction, by values at the last closes, whichever comes first.

    Raises:
        OrderRefusedError: If the instruments do not have exactly one quote currency.

    """

    def __init__(
        self,
        instruments: Mapping[str, instrument_api.Instrument],
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
            raise exchange_api.OrderRefusedError(
                "quote currencies", currencies, "one that all instruments share"
            )
        self._account = PaperAccount(cash, currencies[0], costs, allow_short=allow_short)
        self._taken: dict[str, exchange_api.Order] = {}
        self._states: dict[str, OrderState] = {}
        self._last: dict[str, Bar] = {}

    async def submit(self, order: exchange_api.Order) -> None:
        """Submit an order. See `Exchange.submit`."""
        known = self._taken.get(order.order_id)
        if known == order:
            return
        if known is not None:
            raise exchange_api.OrderRefusedError("order_id", order.order_id, "an id that no other order has")
        self._check_grid(order, self._market(order.symbol).instrument)
        self._taken[order.order_id] = order
        self._states[order.order_id] = OrderState(order, left=order.quantity)

    async def cancel(self, order_id: str) -> exchange_api.Cancellation | None:
        """Cancel the unfilled rest of an order.

        The time of the cancellation is the last close of any symbol, or `active_from` before the first bar.
        """
        state = self._states.get(order_id)
        if state is None or state.left == 0:
            return None
        # Not the last close of the order's symbol, because it may have had no bar for hours.
        closes = (bar.close_time for bar in self._last.values())
        at = max(closes, default=state.order.active_from)
        cancellation = state.end(exchange_api.CancelReason.REQUESTED, at)
        self._forget_ended()
        return cancellation

    async def on_bar(self, bar: Bar) -> list[exchange_api.ExecutionReport]:
        """Process a closed bar. See `Exchange.on_bar`."""
        market = self._market(bar.symbol)
        last = self._last.get(bar.symbol)
        if last is not None and bar.open_time < last.close_time:
            allowed = f"at or after the close of the last bar, {last.close_time.isoformat()}"
            raise exchange_api.OrderRefusedError("bar open_time", bar.open_time.isoformat(), allowed)
        states = [state for state in self._states.values() if state.order.symbol == bar.symbol]
        reports: list[exchange_api.ExecutionReport] = []
        if states:
            if self._shares_cash:
                self._account.claims = self._wanted_beside(bar)
            reports = Matching(bar, market, self._account, states, last.close if last else None).run()
            self._forget_ended()
        self._account.mark(bar.symbol, bar.close)
        self._last[bar.symbol] = bar
        return reports

    async def account(self) -> exchange_api.Account:
        """Return cash and positions."""
        return self._account.snapshot()

    async def open_orders(self) -> tuple[exchange_api.OpenOrder, ...]:
        """Return the orders that can still trade, in order of submission."""
        return tuple(
            exchange_api.OpenOrder(state.order, state.left, state.guarded) for state in self._states.values()
        )

    def _wanted_beside(self, bar: Bar) -> Decimal:
        """Return the value of other symbols' open market entries, at their last closes."""
        worth = instrument_api.ZERO
        for state in self._states.values():
            order, last = state.order, self._last.get(state.order.symbol)
            is_rival = order.symbol != bar.symbol and state.at_market and not order.reduce_only
            if is_rival and last is not None and order.active_from <= bar.open_time:
                worth = instrument_api.EXACT.fma(state.left, last.close, worth)
        return worth

    def _forget_ended(self) -> None:
        self._states = {order_id: state for order_id, state in self._states.items() if state.is_open}

    def _market(self, symbol: str) -> Market:
        if symbol not in self._instruments:
            raise exchange_api.OrderRefusedError("symbol", symbol, ", ".join(sorted(self._instruments)))
        return Market(self._instruments[symbol], self._costs, self._max_participation)

    def _check_grid(self, order: exchange_api.Order, instrument: instrument_api.Instrument) -> None:
        prices: dict[str, instrument_api.Price | None] = {
            "limit_price": order.limit_price,
            "stop_loss": order.stop_loss,
            "take_profit": order.take_profit,
        }
        if instrument.lots(order.quantity) != order.quantity:
            raise exchange_api.OrderRefusedError(
                "quantity", order.quantity, f"multiples of {instrument.lot_size}"
            )
        for name, price in prices.items():
            if price is not None and instrument_api.round_down(price, instrument.tick_size) != price:
                raise exchange_api.OrderRefusedError(name, price, f"multiples of {instrument.tick_size}")
