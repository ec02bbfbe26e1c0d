"""Round trips: the trades of a symbol from flat to flat, with their P&L and the cost of their inference."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal

from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.instrument import EXACT, ZERO

FEE_STEP = Decimal("1e-8")


@dataclass(frozen=True, slots=True)
class FillOnRecord:
    """A fill, and the id of its event."""

    event_id: str
    fill: Fill


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The trades of one symbol from a flat position to the next, or to the end of the run.

    Attributes:
        is_long: Whether the first trade was a purchase.
        quantity: The largest position.
        closed: The time of the last trade. None if the position is still open.
        ended_by: The cause of the last trade. Empty if the position is still open.
        pnl: The change of the account in the quote currency, after fees. An open position counts at the last
            close.
        fill_id: The event of the first fill.
        inference_nusd: The cost of the calls that led to its trades. A call that led to several round trips
            counts for the first of them.

    """

    symbol: str
    is_long: bool
    quantity: Decimal
    opened: datetime
    closed: datetime | None
    ended_by: str
    pnl: Decimal
    fees: Decimal
    fill_id: str
    inference_nusd: int


@dataclass(slots=True)
class _OpenTrip:
    """A round trip that has begun."""

    first: FillOnRecord
    is_long: bool
    held: Decimal = ZERO
    largest: Decimal = ZERO
    cash: Decimal = ZERO
    fees: Decimal = ZERO
    inference_nusd: int = 0

    def add(self, fill: Fill, quantity: Decimal, fee: Decimal, inference_nusd: int) -> None:
        """Add a signed quantity of a fill."""
        self.held = EXACT.add(self.held, quantity)
        self.largest = max(self.largest, self.held.copy_abs())
        self.cash = EXACT.subtract(EXACT.fma(quantity.copy_negate(), fill.price, self.cash), fee)
        self.fees = EXACT.add(self.fees, fee)
        self.inference_nusd += inference_nusd

    def trip(self, mark: Decimal, last: Fill | None) -> RoundTrip:
        """Return the round trip. `last` is None while it is open."""
        return RoundTrip(
            symbol=self.first.fill.symbol,
            is_long=self.is_long,
            quantity=self.largest,
            opened=self.first.fill.time,
            closed=None if last is None else last.time,
            ended_by="" if last is None else str(last.cause),
            pnl=EXACT.fma(self.held, mark, self.cash),
            fees=self.fees,
            fill_id=self.first.event_id,
            inference_nusd=self.inference_nusd,
        )


def trips_of(
    fills: Sequence[FillOnRecord], marks: Mapping[str, Decimal], costs: Counter[str]
) -> list[RoundTrip]:
    """Return the round trips of fills. `costs` are nano-dollars by trace."""
    unused, begun = Counter(costs), dict[str, _OpenTrip]()
    order, trips = [each.event_id for each in fills], list[RoundTrip]()
    for each in fills:
        fill, inference = each.fill, unused.pop(each.fill.trace_id, 0)
        signed = EXACT.multiply(fill.side.sign, fill.quantity)
        held = begun[fill.symbol].held if fill.symbol in begun else ZERO
        closing = signed if abs(signed) <= abs(held) else held.copy_negate()
        is_turn = bool(held) and held * signed < 0 and abs(signed) > abs(held)
        # A fill may turn a position. It is split, because it ends one round trip and begins another.
        share = EXACT.divide(EXACT.multiply(fill.fee, closing), signed).quantize(FEE_STEP, ROUND_HALF_EVEN)
        parts = [(closing, share), (EXACT.subtract(signed, closing), EXACT.subtract(fill.fee, share))]
        for quantity, fee in parts if is_turn else [(signed, fill.fee)]:
            trip = begun.setdefault(fill.symbol, _OpenTrip(each, signed > 0))
            trip.add(fill, quantity, fee, inference)
            inference = 0  # because the first part has it already
            if not trip.held:
                trips.append(begun.pop(fill.symbol).trip(ZERO, fill))
    trips += [trip.trip(marks[symbol], None) for symbol, trip in begun.items()]
    place = {event_id: number for number, event_id in enumerate(order)}
    return sorted(trips, key=lambda trip: (place[trip.fill_id], trip.closed is None))
