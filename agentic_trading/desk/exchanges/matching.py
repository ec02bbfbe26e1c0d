"""One closed bar against the working orders of its symbol."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from agentic_trading.desk.exchange import (
    Cancellation,
    CancelReason,
    ExecutionReport,
    Fill,
    FillCause,
    Liquidity,
    Order,
)
from agentic_trading.desk.exchanges.account import PaperAccount, TradingCosts
from agentic_trading.desk.instrument import EXACT, ZERO, Instrument, Side, limit_from
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import derived_id


@dataclass(frozen=True, slots=True)
class FillPrice:
    """The price at which a bar fills an order, and on which side of the trade the order stands."""

    price: Decimal
    liquidity: Liquidity


def reach_at_market(side: Side, bar: Bar, costs: TradingCosts, instrument: Instrument) -> FillPrice:
    """Take at the open of the bar, half a spread worse."""
    return FillPrice(costs.taken_at(bar.open, side, instrument), "taker")


def reach_on_arrival(
    side: Side, limit: Decimal, bar: Bar, costs: TradingCosts, instrument: Instrument
) -> FillPrice | None:
    """Fill a limit order that is new to the market and finds it open beyond the limit.

    It takes half a spread worse than the open, and never worse than its limit.
    """
    if not _is_beyond(side, bar.open, limit):
        return None
    taken = costs.taken_at(bar.open, side, instrument)
    return FillPrice(limit if _is_beyond(side, limit, taken) else taken, "taker")


def reach_at_rest(side: Side, limit: Decimal, bar: Bar) -> FillPrice | None:
    """Fill a resting limit order if the bar traded beyond it, at the limit.

    A bar that only touches the limit fills nothing: how much stood before us in the queue is not known.
    """
    return FillPrice(limit, "maker") if _is_beyond(side, _farthest(side, bar), limit) else None


def reach_of_stop(
    side: Side, stop: Decimal, bar: Bar, costs: TradingCosts, instrument: Instrument, *, at_open: bool
) -> FillPrice | None:
    """Trigger a stop that leaves a position by `side`: to touch it is enough, and it takes like a market order.

    It trades at the stop, or at the open where that is worse.
    """
    touched = bar.open if at_open else _farthest(side.opposite, bar)
    if _is_beyond(side, touched, stop):
        return None
    worse = bar.open if _is_beyond(side, stop, bar.open) else stop
    return FillPrice(costs.taken_at(worse, side, instrument), "taker")


def _is_beyond(side: Side, price: Decimal, limit: Decimal) -> bool:
    """Tell whether `price` is strictly better for `side` than `limit`: lower to buy, higher to sell."""
    return price < limit if side is Side.BUY else price > limit


def _farthest(side: Side, bar: Bar) -> Decimal:
    """Return the price of the bar that is best for `side`."""
    return bar.low if side is Side.BUY else bar.high


@dataclass(slots=True)
class OrderState:
    """An order and what has become of it.

    `left` is unfilled. `guarded` is filled and still to be closed by the order's stop or target. `limit` is
    known from the first bar on that could fill the order, and from the second one on the order is `resting`.
    `crossing` says that its deadline made it a market order, `stopped` that its stop was triggered.
    """

    order: Order
    left: Decimal
    guarded: Decimal = ZERO
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
        """Tell whether to open at `price` would be at or beyond the order's own stop or target."""
        if self.order.reduce_only:
            return False
        low, high = self.order.stop_loss, self.order.take_profit
        if self.order.side is Side.SELL:
            low, high = high, low
        return (low is not None and price <= low) or (high is not None and price >= high)

    def end(self, reason: CancelReason, at: datetime) -> Cancellation:
        """Give up what is left, which must be something; what was filled stays guarded."""
        left, self.left = self.left, ZERO
        return Cancellation(
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
    """What does not change from bar to bar: the grid, the costs, and the share of a bar that all orders may take."""

    instrument: Instrument
    costs: TradingCosts
    max_participation: Decimal


class Matching:
    """What one bar does, in the order in which it is assumed to have happened.

    1. Before the open: an order whose intent has expired ends, deadlines that have passed end an order or make it
       a market order, new orders get their price.
    2. At the open: stops that the open is beyond, then market orders and limit orders new to the market.
    3. Inside the bar: stops, then targets, then resting limit orders, each followed by its own stop.
    4. At the close: what must be filled at once or not at all is cancelled.

    Within a step orders go in order of submission. Nobody knows what came first inside a bar, so the worse is
    assumed: a stop before a target, and no target for what a resting order filled in the same bar. A resting
    order is not filled by a bar that closes after its deadline, and none opens a position at or beyond its own
    stop or target: the plan has passed.
    """

    def __init__(
        self,
        bar: Bar,
        market: Market,
        holdings: PaperAccount,
        working: Sequence[OrderState],
        last_close: Decimal | None,
    ) -> None:
        self._bar = bar
        self._market = market
        self._holdings = holdings
        self._working = working
        self._last_close = last_close
        self._pool = self._share_of_bar(market.max_participation)
        self._shares: dict[str, Decimal] = {}
        self._reports: list[ExecutionReport] = []

    def run(self) -> list[ExecutionReport]:
        """Change the working orders and the holdings, and tell what happened."""
        active = [w for w in self._working if w.order.active_from <= self._bar.open_time]
        for w in active:
            self._wake(w)
        for w in active:
            self._stop(w, at_open=True)
        for w in active:
            self._take(w)
        for w in active:
            self._stop(w, at_open=False)
        for w in active:
            self._leave_at_target(w)
        for w in active:
            self._rest(w)
        for w in active:
            self._close(w)
        return self._reports

    def _wake(self, w: OrderState) -> None:
        if w.order.void_from is not None and w.order.void_from <= self._bar.open_time:
            self._end(w, CancelReason.INTENT_EXPIRED)
        if w.left > 0 and w.order.expires_at <= self._bar.open_time:
            if w.order.on_expiry == "cancel":
                self._end(w, CancelReason.DEADLINE)
            w.crossing = True
        if w.order.reduce_only and self._reducible(w) == 0:
            self._end(w, CancelReason.NOTHING_TO_REDUCE)
        if w.limit is None:
            w.limit = self._limit(w)
            if w.order.order_type == "post_only" and not w.crossing and self._would_take(w):
                self._end(w, CancelReason.WOULD_TAKE)

    def _take(self, w: OrderState) -> None:
        if w.at_market:
            reach = reach_at_market(w.order.side, self._bar, self._market.costs, self._market.instrument)
            self._fill(w, reach, "deadline" if w.crossing else "order")
        elif w.order.order_type == "limit" and w.limit is not None and not w.resting:
            reached = reach_on_arrival(
                w.order.side, w.limit, self._bar, self._market.costs, self._market.instrument
            )
            self._fill(w, reached, "order")

    def _rest(self, w: OrderState) -> None:
        if w.at_market or w.limit is None or w.order.expires_at < self._bar.close_time:
            return
        if self._fill(w, reach_at_rest(w.order.side, w.limit, self._bar), "order"):
            self._stop(w, at_open=False)

    def _stop(self, w: OrderState, *, at_open: bool) -> None:
        if w.guarded == 0 or w.order.stop_loss is None:
            return
        side = w.order.side.opposite
        costs, instrument = self._market.costs, self._market.instrument
        if w.stopped:
            reach = reach_at_market(side, self._bar, costs, instrument) if at_open else None
        else:
            reach = reach_of_stop(side, w.order.stop_loss, self._bar, costs, instrument, at_open=at_open)
        if reach is not None:
            w.stopped = True
            self._exit(w, reach, "stop_loss")

    def _leave_at_target(self, w: OrderState) -> None:
        if w.guarded == 0 or w.order.take_profit is None:
            return
        reach = reach_at_rest(w.order.side.opposite, w.order.take_profit, self._bar)
        if reach is not None:
            self._exit(w, reach, "take_profit")

    def _close(self, w: OrderState) -> None:
        if w.order.reduce_only and self._reducible(w) == 0:
            self._end(w, CancelReason.NOTHING_TO_REDUCE)
        if w.order.time_in_force == "ioc" and (w.at_market or w.limit is not None):
            self._end(w, CancelReason.IMMEDIATE_OR_CANCEL)
        w.resting = w.limit is not None

    def _fill(self, w: OrderState, reach: FillPrice | None, cause: FillCause) -> bool:
        """Trade as much of the order as volume, position and money allow; tell whether anything was."""
        if reach is None or w.left == 0:
            return False
        if w.has_passed(reach.price):
            self._end(w, CancelReason.PLAN_PASSED)
            return False
        wanted = self._wanted(w)
        if wanted == 0:
            return False
        quantity, against = self._holdings.affordable(
            self._market.instrument, w.order.side, wanted, reach.price, reach.liquidity
        )
        if quantity > 0:
            self._trade(w, w.order.side, quantity, reach, cause)
            w.left = EXACT.subtract(w.left, quantity)
            self._shares[w.order.order_id] = EXACT.subtract(self._share(w), quantity)
            self._guard(w, quantity)
        if against is not None:
            self._end(w, against)
        return quantity > 0

    def _exit(self, w: OrderState, reach: FillPrice, cause: FillCause) -> None:
        """Close what is guarded as far as volume allows, and give up what the intent has not filled yet."""
        quantity = min(w.guarded, self._pool)
        if quantity > 0:
            w.guarded = EXACT.subtract(w.guarded, quantity)
            self._trade(w, w.order.side.opposite, quantity, reach, cause)
        for other in self._working:
            if other.order.intent_id == w.order.intent_id:
                self._end(other, CancelReason.EXITED)

    def _trade(
        self, w: OrderState, side: Side, quantity: Decimal, reach: FillPrice, cause: FillCause
    ) -> None:
        w.fills += 1
        fill = Fill(
            fill_id=derived_id("fill", w.order.order_id, w.fills),
            intent_id=w.order.intent_id,
            order_id=w.order.order_id,
            symbol=w.order.symbol,
            side=side,
            price=reach.price,
            quantity=quantity,
            fee=self._market.costs.fee(reach.price, quantity, reach.liquidity),
            fee_currency=self._market.instrument.quote_currency,
            liquidity=reach.liquidity,
            cause=cause,
            time=self._bar.close_time,
            bar_open_time=self._bar.open_time,
            trace_id=w.order.trace_id,
        )
        self._holdings.apply(fill)
        self._pool = EXACT.subtract(self._pool, quantity)
        self._reports.append(fill)
        for other in self._working:
            other.guarded = min(other.guarded, self._holdings.on_side(other.order.symbol, other.order.side))

    def _wanted(self, w: OrderState) -> Decimal:
        """Return how much of the order this bar has room for."""
        room = min(w.left, self._share(w), self._pool)
        return min(room, self._reducible(w)) if w.order.reduce_only else room

    def _share(self, w: OrderState) -> Decimal:
        """Return what the order may still take of this bar."""
        if w.order.order_id not in self._shares:
            self._shares[w.order.order_id] = self._share_of_bar(w.order.max_participation)
        return self._shares[w.order.order_id]

    def _guard(self, w: OrderState, quantity: Decimal) -> None:
        if w.is_guarding:
            held = self._holdings.on_side(w.order.symbol, w.order.side)
            w.guarded = min(EXACT.add(w.guarded, quantity), held)

    def _end(self, w: OrderState, reason: CancelReason) -> None:
        if w.left > 0:
            self._reports.append(w.end(reason, self._bar.close_time))

    def _reducible(self, w: OrderState) -> Decimal:
        return self._holdings.on_side(w.order.symbol, w.order.side.opposite)

    def _limit(self, w: OrderState) -> Decimal | None:
        if w.order.peg_bps is None or self._last_close is None:
            return w.order.limit_price
        return limit_from(self._last_close, w.order.peg_bps, w.order.side, self._market.instrument.tick_size)

    def _would_take(self, w: OrderState) -> bool:
        """Tell whether a post-only order would find a trade at once: it stands beyond the last close."""
        if w.limit is None or self._last_close is None:
            return False
        return w.limit > self._last_close if w.order.side is Side.BUY else w.limit < self._last_close

    def _share_of_bar(self, share: Decimal) -> Decimal:
        return self._market.instrument.lots(EXACT.multiply(self._bar.volume, share))
