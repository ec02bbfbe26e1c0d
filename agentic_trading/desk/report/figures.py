"""Figures of a recorded run: round trips, drawdown, days and months."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate

from agentic_trading.desk.inference import InferenceRate
from agentic_trading.desk.instrument import EXACT
from agentic_trading.desk.report.record import ClosePoint, RunOnRecord, cost_by
from agentic_trading.desk.session.round_trips import RoundTrip, trips_of
from agentic_trading.llm.limits import NANO

AN_INSTANT = timedelta(microseconds=1)


def round_trips(run: RunOnRecord) -> list[RoundTrip]:
    """Return the round trips of a run in order of their first fill. Their P&L adds up to that of the run."""
    costs = cost_by(run.attempts, "trace_id")
    return trips_of(run.fills, run.result.marks, costs)


def inference_at_closes(run: RunOnRecord) -> Iterator[Decimal]:
    """Yield the cost of all calls up to each close, in dollars."""
    costs = sorted((each.as_of, each.first_cost_nusd) for each in run.attempts if each.as_of)
    # Calls without a time count from the start, so that the last close has the cost of all calls.
    spent, done = sum(each.first_cost_nusd for each in run.attempts if not each.as_of), 0
    for point in run.points:
        while done < len(costs) and costs[done][0] <= point.at:
            spent += costs[done][1]
            done += 1
        yield EXACT.divide(spent, NANO)


def net_equity(run: RunOnRecord, rate: InferenceRate) -> list[Decimal]:
    """Return the equity at each close, less the cost of all calls up to it. Empty without any cost."""
    costs = [EXACT.multiply(usd, rate.per_usd) for usd in inference_at_closes(run)]
    if not any(costs):
        return []
    return [EXACT.subtract(point.equity, cost) for point, cost in zip(run.points, costs, strict=True)]


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
