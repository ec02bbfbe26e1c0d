"""Figures of a recorded run: round trips with their inference, drawdown, days and months."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import accumulate

from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.report.record import ClosePoint, FillOnRecord, RunOnRecord, cost_by

FEE_STEP = Decimal("1e-8")
AN_INSTANT = timedelta(microseconds=1)


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


def round_trips(run: RunOnRecord) -> list[RoundTrip]:
    """Return the round trips of a run in order of their first fill. Their P&L adds up to that of the run."""
    costs = cost_by(run.attempts, "trace_id")
    return trips_of(run.fills, run.result.marks, costs)


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


def drawdowns(equity: Sequence[Decimal]) -> list[float]:
    """Return the fall from the highest equity so far at each close, 0 or below, as a fraction."""
    peaks = accumulate(equity, max)
    return [float(now / peak) - 1 if peak > 0 else 0.0 for now, peak in zip(equity, peaks, strict=True)]


@dataclass(frozen=True, slots=True)
class EquityPeriod:
    """The change of the equity in one day or month, in UTC."""

    name: str
    pnl: Decimal
    share: float


def days(points: Sequence[ClosePoint], start: Decimal) -> list[EquityPeriod]:
    """Return the change of each day with a close. `start` is the equity before the first bar."""
    return list(_periods(points, start, lambda at: f"{at:%a %d %b %Y}"))


def months(points: Sequence[ClosePoint], start: Decimal) -> list[EquityPeriod]:
    """Return the change of each month with a close."""
    return list(_periods(points, start, lambda at: f"{at:%b %Y}"))


def _periods(
    points: Sequence[ClosePoint], before: Decimal, name_of: Callable[[datetime], str]
) -> Iterator[EquityPeriod]:
    # An instant is taken off, because a bar that closes at midnight belongs to the day that ends there.
    ends = {name_of(point.at - AN_INSTANT): point.equity for point in points}
    for name, equity in ends.items():
        yield EquityPeriod(
            name, EXACT.subtract(equity, before), float(equity / before) - 1 if before else 0.0
        )
        before = equity
