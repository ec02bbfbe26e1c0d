"""The agent's own record: what became of its earlier calls, as far as that was known at the moment."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import fsum, sqrt
from typing import Any, Final

from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.rounding import ratio

HORIZON_BARS: Final = 4
LEAST_CALLS: Final = 10
CALLS_KEPT: Final = 100
LAST_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class DirectionForecast:
    """A direction that was called at `at`, when the price was `price`."""

    at: datetime
    direction: Direction
    price: float


@dataclass(frozen=True, slots=True)
class ForecastOutcome:
    """What a call came to: the move in its direction, in percent, known since `known_at`."""

    call: DirectionForecast
    known_at: datetime
    gain_pct: float


class TrackRecord:
    """Judge calls by the price a fixed number of bars later, whether they were traded or not.

    The outcome of a call is the close of the first bar of the decision timeframe that ends 4 bars of it later or
    more. Costs are not in it, and calls that lie closer than 4 bars share a part of the move. Feed it closes in
    order of time; it never looks at a later one. The last 100 outcomes are kept.
    """

    def __init__(self, timeframe: Timeframe) -> None:
        self._timeframe = timeframe
        self._open: deque[DirectionForecast] = deque()
        self._outcomes: deque[ForecastOutcome] = deque(maxlen=CALLS_KEPT)

    @property
    def outcomes(self) -> tuple[ForecastOutcome, ...]:
        """What is known, in the order of the calls."""
        return tuple(self._outcomes)

    def called(self, at: datetime, direction: Direction, price: float) -> None:
        """Keep a call until its outcome is known; a neutral one has none."""
        if direction is not Direction.NEUTRAL:
            self._open.append(DirectionForecast(at, direction, price))

    def see(self, at: datetime, price: float) -> None:
        """Take the close of a bar of the decision timeframe: calls that are old enough end with it."""
        while self._open and at >= self._open[0].at + HORIZON_BARS * self._timeframe.length:
            call = self._open.popleft()
            gain = 100.0 * call.direction.sign * (price / call.price - 1.0)
            self._outcomes.append(ForecastOutcome(call, at, gain))

    def told(self) -> dict[str, Any]:
        """Return the evidence of the ninth layer; before ten outcomes, how many there are."""
        if len(self._outcomes) < LEAST_CALLS:
            reason = f"not enough decisions ({len(self._outcomes)} of {LEAST_CALLS})"
            return {"not_available": {"record": reason}}
        gains = [outcome.gain_pct for outcome in self._outcomes]
        figures = {name: ratio(value) for name, value in figures_of(gains).items()}
        absent = {
            name: "no loss, or no spread, to measure it by"
            for name, value in figures.items()
            if value is None
        }
        return {
            "decisions": len(gains),
            "horizon": f"{HORIZON_BARS} bars of {self._timeframe}",
            **{name: value for name, value in figures.items() if value is not None},
            "last_pct": [ratio(gain) for gain in gains[-LAST_TOLD:]],
            **({"not_available": absent} if absent else {}),
        }


def figures_of(gains: Sequence[float]) -> dict[str, float | None]:
    """Return what at least two gains in percent come to, oldest first; None where a figure is not defined.

    `hit_rate_pct` counts gains above 0. `profit_factor` is the sum of gains over that of losses. `sharpe` is the
    mean over the sample deviation and `sortino` the mean over the root mean square of the losses, each of a single
    call and not of a year (William F. Sharpe, 1966; Frank A. Sortino, 1991). `max_drawdown_pct` is the deepest fall
    of the running sum from its peak, the start included; `calmar` is the sum over it. `runs_z` is the runs test of
    Abraham Wald and Jacob Wolfowitz (1940) over hits and misses: below 0 they come in streaks.
    """
    total, count = fsum(gains), len(gains)
    mean = total / count
    won, lost = fsum(gain for gain in gains if gain > 0), -fsum(gain for gain in gains if gain < 0)
    spread = sqrt(fsum((gain - mean) ** 2 for gain in gains) / (count - 1))
    downside = sqrt(fsum(gain**2 for gain in gains if gain < 0) / count)
    deepest = max_drawdown(gains)
    return {
        "hit_rate_pct": 100.0 * sum(gain > 0 for gain in gains) / count,
        "profit_factor": won / lost if lost else None,
        "sharpe": mean / spread if spread else None,
        "sortino": mean / downside if downside else None,
        "calmar": total / deepest if deepest else None,
        "max_drawdown_pct": deepest,
        "runs_z": runs_z([gain > 0 for gain in gains]),
    }


def max_drawdown(gains: Sequence[float]) -> float:
    """Return the deepest fall of the running sum from its peak so far, 0 or more."""
    at = peak = deepest = 0.0
    for gain in gains:
        at += gain
        peak = max(peak, at)
        deepest = max(deepest, peak - at)
    return deepest


def runs_z(hits: Sequence[bool]) -> float | None:
    """Return how far the number of runs is from that of a random order, in standard deviations; None if all are alike."""
    ones, count = sum(hits), len(hits)
    product = 2 * ones * (count - ones)
    if product in (0, count):
        return None
    runs = 1 + sum(one != other for one, other in pairwise(hits))
    expected = product / count + 1
    variance = product * (product - count) / (count**2 * (count - 1))
    return (runs - expected) / sqrt(variance)
