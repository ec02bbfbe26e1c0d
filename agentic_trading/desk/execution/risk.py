"""Size trades and check risk limits: before an intent, and again before an order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentic_trading.desk.exchange import Order
from agentic_trading.desk.execution.order import OrderIntent, SizedBy, Sizing
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Instrument, Side, round_down
from agentic_trading.ids import derived_id
from agentic_trading.llm.fields import Open
from agentic_trading.trading_limits import LossLimits

Percent = Annotated[Decimal, Field(gt=0, le=100)]


class RiskLimits(LossLimits, frozen=True, extra="ignore"):
    """The limits of all orders, and of the loss of the account. Notionals are in the quote currency.

    Size, halts, ticks and losses do not limit an exit.

    Attributes:
        max_exposure_pct: Bounds a position's value, in percent of the equity. Below 100 it leaves room for
            fees.
        max_gross_pct: Bounds the value of all positions and open entries of all symbols in the same way.
        price_collar_bps: The maximum distance of a price from the last close.
        max_tick_bps: The coarsest tick on which a position may be opened, in basis points of the last close.
        require_stop: Whether an entry must have a stop.
        nets_exits: Whether open market exits count as sold. For portfolios, whose purchases are paid by sales
            at the same open.

    """

    max_order_notional: Annotated[Decimal, Field(gt=0)] = Decimal(100_000)
    max_position_notional: Annotated[Decimal, Field(gt=0)] = Decimal(100_000)
    max_exposure_pct: Percent = Decimal(95)
    max_gross_pct: Percent = Decimal(95)
    price_collar_bps: Annotated[Decimal, Field(gt=0, lt=10_000)] = Decimal(500)
    max_tick_bps: Annotated[Decimal, Field(gt=0, lt=10_000)] = Decimal(10)
    max_orders_per_minute: Annotated[int, Field(ge=1)] = 60
    max_open_orders: Annotated[int, Field(ge=1)] = 40
    require_stop: bool = True
    nets_exits: bool = False

    def most_gross(self, equity: Decimal) -> Decimal:
        """Return the maximum value of all positions and open entries."""
        return _part(equity, self.max_gross_pct)


@dataclass(frozen=True, slots=True)
class RiskFacts:
    """The facts that limits are checked against.

    Attributes:
        equity: The equity at the last close.
        position: The signed position in the symbol.
        pending: The signed quantity that open entries would add to it.
        gross: The value of all positions and open entries of all symbols at their marks, long and short
            added.
        halted: Whether the last bar had no trades.
        entries_halted: The rule that halts the entries of the symbol. Empty without a halt.
        open_orders: The number of orders with an unfilled rest.
        orders_last_minute: The number of orders submitted in the last 60 seconds.

    """

    last_close: Decimal
    equity: Decimal
    position: Decimal = ZERO
    pending: Decimal = ZERO
    gross: Decimal = ZERO
    halted: bool = False
    entries_halted: str = ""
    open_orders: int = 0
    orders_last_minute: int = 0

    def with_approved(self, intents: Iterable[OrderIntent]) -> "RiskFacts":
        """Return the facts of any other symbol after the orders of these intents are open."""
        added = (EXACT.multiply(i.quantity, i.reference_price) for i in intents if i.kind == "entry")
        return replace(self, gross=EXACT.add(self.gross, sum(added, ZERO)))

    def sizing(
        self,
        sized_by: SizedBy,
        risk_pct: Decimal | None = None,
    ) -> Sizing:
        """Return the facts that are recorded with a quantity."""
        return Sizing(
            equity=self.equity,
            position=self.position,
            pending=self.pending,
            gross=self.gross,
            risk_pct=risk_pct,
            sized_by=sized_by,
        )


class Approved(BaseModel, frozen=True):
    """An intent that passed all limits, with its quantity in whole lots."""

    intent: OrderIntent


class Rejection(BaseModel, frozen=True):
    """The first rule that was broken, the value that broke it, and the allowed values.

    `side`, `quantity` and `sizing` are those of the rejected order or intent, if known.
    """

    rule: str
    was: str
    allowed: str
    side: Open[Side] | None = None
    quantity: Decimal | None = None
    sizing: Sizing | None = None

    def of(self, side: Side, quantity: Decimal, sizing: Sizing | None) -> "Rejection":
        """Return the same rejection with side, quantity and sizing."""
        return Rejection(
            rule=self.rule, was=self.was, allowed=self.allowed, side=side, quantity=quantity, sizing=sizing
        )


@dataclass(frozen=True, slots=True)
class Size:
    """A quantity in whole lots, and the bound that set it."""

    quantity: Decimal
    by: Literal["risk", "exposure", "notional"]


@dataclass(frozen=True, slots=True)
class EntryProposal:
    """An entry without a size.

    Attributes:
        entry: The limit price, or None to enter at the market.
        risk_pct: The percentage of the equity that may be lost between entry and stop.
        causation_id: The event that proposes it. The same cause and trace give the same intent id.

    """

    side: Side
    entry: Decimal | None
    stop: Decimal
    target: Decimal | None
    risk_pct: Decimal
    reason: str
    as_of: datetime
    expires_at: datetime
    trace_id: str
    causation_id: str


def propose_entry(
    proposal: EntryProposal, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Approved | Rejection:
    """Size a proposed entry, and check it.

    Prices are rounded to the grid first: the entry to its passive side, the stop away from the entry, and the
    target towards the entry.
    """
    side = proposal.side
    limit = None if proposal.entry is None else instrument.adverse_price(proposal.entry, side.opposite)
    stop = instrument.adverse_price(proposal.stop, side.opposite)
    entry = facts.last_close if limit is None else limit
    size = size_position(facts.equity, entry, stop, proposal.risk_pct, limits, instrument)
    sizing = facts.sizing(size.by, proposal.risk_pct)
    if size.quantity < instrument.min_quantity:
        allowed = f"at least {instrument.min_quantity}; a nearer stop or more equity gives more"
        small = Rejection(rule="min_quantity", was=str(size.quantity), allowed=allowed)
        return small.of(side, size.quantity, sizing)
    intent = OrderIntent(
        intent_id=derived_id("intent", proposal.trace_id, proposal.causation_id, "entry"),
        symbol=instrument.symbol,
        side=side,
        quantity=size.quantity,
        kind="entry",
        arrival_price=facts.last_close,
        limit_price=limit,
        stop_loss=stop,
        take_profit=None
        if proposal.target is None
        else instrument.adverse_price(proposal.target, side.opposite),
        sizing=sizing,
        reason=proposal.reason,
        as_of=proposal.as_of,
        expires_at=proposal.expires_at,
        trace_id=proposal.trace_id,
        causation_id=proposal.causation_id,
    )
    return _checked(intent, limits, instrument, facts)


def propose_exit(
    reason: str,
    limits: RiskLimits,
    instrument: Instrument,
    facts: RiskFacts,
    *,
    as_of: datetime,
    expires_at: datetime,
    trace_id: str,
    causation_id: str,
) -> Approved | Rejection:
    """Propose to close the whole position, or return a `Rejection` without a position."""
    if facts.position == 0:
        return Rejection(rule="reduce_only", was="flat", allowed="an exit where there is a position")
    intent = OrderIntent(
        intent_id=derived_id("intent", trace_id, causation_id, "exit"),
        symbol=instrument.symbol,
        side=Side.SELL if facts.position > 0 else Side.BUY,
        quantity=facts.position.copy_abs(),
        kind="exit",
        arrival_price=facts.last_close,
        sizing=facts.sizing("position"),
        reason=reason,
        as_of=as_of,
        expires_at=expires_at,
        trace_id=trace_id,
        causation_id=causation_id,
    )
    return _checked(intent, limits, instrument, facts)


def check_intent(
    intent: OrderIntent, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Approved | Rejection:
    """Round the quantity down to lots, and check the intent against every limit.

    An entry below the instrument's minimum quantity is rejected. An exit may be a single lot.
    """
    quantity = instrument.lots(intent.quantity)
    least = instrument.min_quantity if intent.kind == "entry" else instrument.lot_size
    if quantity < least:
        return Rejection(rule="min_quantity", was=str(quantity), allowed=f"at least {least}")
    rounded = OrderIntent.model_validate({**intent.model_dump(), "quantity": quantity})
    return next(_intent_rejections(rounded, limits, instrument, facts), None) or Approved(intent=rounded)


def check_order_risk(
    order: Order, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Rejection | None:
    """Check an order right before it is sent. Return None if it passes."""
    return next(_order_rejections(order, limits, instrument, facts), None)


def size_position(
    equity: Decimal,
    entry: Decimal,
    stop: Decimal,
    risk_pct: Decimal,
    limits: RiskLimits,
    instrument: Instrument,
) -> Size:
    """Return the quantity that loses `risk_pct` percent of `equity` at the stop.

    The loss is between `entry` and `stop`, without costs. The quantity is rounded down to lots, and bounded
    by the limits on notional and exposure. It is 0 if the stop is at the entry, or the equity is 0 or below.
    """
    distance = EXACT.subtract(entry, stop).copy_abs()
    if distance == 0 or equity <= 0:
        return Size(ZERO, "risk")
    at_risk = EXACT.multiply(equity, EXACT.divide(risk_pct, 100))
    bounds = (
        Size(EXACT.divide(at_risk, distance), "risk"),
        Size(EXACT.divide(_largest_position(limits, equity), entry), "exposure"),
        Size(EXACT.divide(limits.max_order_notional, entry), "notional"),
    )
    least = min(bounds, key=lambda bound: bound.quantity)
    return replace(least, quantity=instrument.lots(least.quantity))


def _checked(
    intent: OrderIntent, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Approved | Rejection:
    outcome = check_intent(intent, limits, instrument, facts)
    if isinstance(outcome, Rejection):
        return outcome.of(intent.side, intent.quantity, intent.sizing)
    return outcome


def _intent_rejections(
    intent: OrderIntent, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Iterator[Rejection]:
    # Size, halts and ticks do not limit an exit, because a limit must not lock a position in.
    if intent.kind == "entry":
        yield from _halt_rejections(facts)
        yield from _market_rejections(limits, instrument, facts)
        yield from _size_rejections(intent.side, intent.quantity, intent.reference_price, limits, facts)
        yield from _exit_price_rejections(intent, limits)
    elif intent.quantity > EXACT.multiply(-intent.side.sign, facts.position):
        allowed = f"at most the position of {facts.position}, against it"
        yield Rejection(rule="reduce_only", was=f"{intent.side} {intent.quantity}", allowed=allowed)
    limit = {"limit_price": intent.limit_price}
    exits = {"stop_loss": intent.stop_loss, "take_profit": intent.take_profit}
    yield from _tick_rejections({**limit, **exits}, instrument)
    yield from _collar_rejections({"arrival_price": intent.arrival_price, **limit}, limits, facts)
    yield from _count_rejections(limits, facts)


def _order_rejections(
    order: Order, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Iterator[Rejection]:
    if instrument.lots(order.quantity) != order.quantity:
        yield Rejection(
            rule="lot_size", was=str(order.quantity), allowed=f"multiples of {instrument.lot_size}"
        )
    if not order.reduce_only:
        yield from _halt_rejections(facts)
        price = order.limit_price or facts.last_close
        yield from _size_rejections(order.side, order.quantity, price, limits, facts)
    # The stop and the target are checked too, because the exchange would refuse them off the tick.
    limit = {"limit_price": order.limit_price}
    exits = {"stop_loss": order.stop_loss, "take_profit": order.take_profit}
    yield from _tick_rejections({**limit, **exits}, instrument)
    yield from _collar_rejections(limit, limits, facts)
    if order.peg_bps is not None and order.peg_bps.copy_abs() > limits.price_collar_bps:
        allowed = f"-{limits.price_collar_bps} to {limits.price_collar_bps} bps"
        yield Rejection(rule="price_collar", was=f"peg_bps {order.peg_bps}", allowed=allowed)
    yield from _count_rejections(limits, facts)


def _size_rejections(
    side: Side, quantity: Decimal, price: Decimal, limits: RiskLimits, facts: RiskFacts
) -> Iterator[Rejection]:
    notional = EXACT.multiply(quantity, price)
    if notional > limits.max_order_notional:
        yield Rejection(
            rule="max_order_notional", was=str(notional), allowed=f"at most {limits.max_order_notional}"
        )
    before = EXACT.add(facts.position, facts.pending)
    after = EXACT.fma(side.sign, quantity, before).copy_abs()
    worth, largest = EXACT.multiply(after, price), _largest_position(limits, facts.equity)
    if after > before.copy_abs() and worth > largest:
        yield Rejection(rule="max_position", was=str(worth), allowed=f"at most {largest}")
    added = EXACT.multiply(EXACT.subtract(after, before.copy_abs()), price)
    gross, most = EXACT.add(facts.gross, added), limits.most_gross(facts.equity)
    if added > 0 and gross > most:
        yield Rejection(rule="max_gross", was=str(gross), allowed=f"at most {most} over all symbols")


def _halt_rejections(facts: RiskFacts) -> Iterator[Rejection]:
    """Yield the rule that halts the entries of the symbol."""
    if facts.entries_halted:
        yield Rejection(rule=facts.entries_halted, was="an entry while entries are halted", allowed="exits")


def _market_rejections(limits: RiskLimits, instrument: Instrument, facts: RiskFacts) -> Iterator[Rejection]:
    """Yield reasons against any entry: a halted market, or a tick that is too coarse."""
    if facts.halted:
        yield Rejection(
            rule="halted", was="nothing traded in the last bar", allowed="an entry after a bar with trades"
        )
    # Prices on a coarser tick are too imprecise. A grid is coarse until its bars have shown their digits.
    tick_bps = EXACT.divide(EXACT.multiply(instrument.tick_size, BPS), facts.last_close)
    if tick_bps > limits.max_tick_bps:
        was = f"{instrument.tick_size} at a price of {facts.last_close}, {tick_bps:.4g} bps"
        yield Rejection(
            rule="coarse_tick", was=was, allowed=f"at most {limits.max_tick_bps} bps of the price"
        )


def _largest_position(limits: RiskLimits, equity: Decimal) -> Decimal:
    """Return the maximum value of a position, in the quote currency."""
    return min(limits.max_position_notional, _part(equity, limits.max_exposure_pct))


def _part(equity: Decimal, percent: Decimal) -> Decimal:
    return max(EXACT.multiply(equity, EXACT.divide(percent, 100)), ZERO)


def _exit_price_rejections(intent: OrderIntent, limits: RiskLimits) -> Iterator[Rejection]:
    """Yield a missing stop, and a stop or target on the wrong side of the price."""
    price = intent.reference_price
    below, above = (f"below {price}", f"above {price}")
    loss, gain = (below, above) if intent.side is Side.BUY else (above, below)
    if intent.stop_loss is None:
        if limits.require_stop:
            yield Rejection(rule="stop_loss", was="None", allowed=loss)
    elif not _is_gain(intent.side.opposite, price, intent.stop_loss):
        yield Rejection(rule="stop_loss", was=str(intent.stop_loss), allowed=loss)
    if intent.take_profit is not None and not _is_gain(intent.side, price, intent.take_profit):
        yield Rejection(rule="take_profit", was=str(intent.take_profit), allowed=gain)


def _is_gain(side: Side, entry: Decimal, leave: Decimal) -> bool:
    return leave > entry if side is Side.BUY else leave < entry


def _tick_rejections(prices: dict[str, Decimal | None], instrument: Instrument) -> Iterator[Rejection]:
    for name, price in prices.items():
        if price is not None and round_down(price, instrument.tick_size) != price:
            yield Rejection(
                rule="tick_size", was=f"{name} {price}", allowed=f"multiples of {instrument.tick_size}"
            )


def _collar_rejections(
    prices: dict[str, Decimal | None], limits: RiskLimits, facts: RiskFacts
) -> Iterator[Rejection]:
    width = EXACT.divide(EXACT.multiply(facts.last_close, limits.price_collar_bps), BPS)
    for name, price in prices.items():
        if price is not None and EXACT.subtract(price, facts.last_close).copy_abs() > width:
            allowed = f"within {limits.price_collar_bps} bps of the last close {facts.last_close}"
            yield Rejection(rule="price_collar", was=f"{name} {price}", allowed=allowed)


def _count_rejections(limits: RiskLimits, facts: RiskFacts) -> Iterator[Rejection]:
    if facts.orders_last_minute >= limits.max_orders_per_minute:
        was, allowed = (
            facts.orders_last_minute,
            f"fewer than {limits.max_orders_per_minute} in the minute before",
        )
        yield Rejection(rule="max_orders_per_minute", was=str(was), allowed=allowed)
    if facts.open_orders >= limits.max_open_orders:
        allowed = f"fewer than {limits.max_open_orders} open orders"
        yield Rejection(rule="max_open_orders", was=str(facts.open_orders), allowed=allowed)
