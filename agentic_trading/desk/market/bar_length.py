"""Find the length of bars from their open times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from agentic_trading.desk.market.bar import LENGTHS, Timeframe

HEAD_ROWS: Final = 1_000
"""The number of first bars of a file that determine their length."""

CLOCK_CHANGE: Final = timedelta(hours=1)
"""The most by which a day is longer or shorter where clocks change."""

_DAY: Final = LENGTHS[Timeframe.D1]
_LONGEST_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class FileHead:
    """The open times of the first bars of a file, and the symbols of rows that were skipped."""

    times: tuple[datetime, ...]
    others: tuple[str, ...]


class BarLength:
    """The length of bars by the step rule: the shortest distance between two of them.

    Args:
        times: Open times in the order of the source, without repetitions in a row.

    """

    def __init__(self, times: Sequence[datetime]) -> None:
        self._steps = Counter(later - earlier for earlier, later in pairwise(times) if later != earlier)

    @property
    def is_newest_first(self) -> bool:
        """Whether each bar is earlier than the one before."""
        return bool(self._steps) and max(self._steps) < timedelta()

    @property
    def timeframe(self) -> Timeframe | None:
        """The length, or None if no timeframe fits the steps. A single bar has no step."""
        shortest = self._shortest
        if shortest is None:
            return None
        if abs(shortest - _DAY) <= CLOCK_CHANGE:
            return Timeframe.D1
        found = next((each for each, length in LENGTHS.items() if length == shortest), None)
        # With as many other steps, several lengths would fit, such as bars of 5 minutes that are 15 and 20
        # minutes apart. A few come from clocks that change.
        others = sum(count for step, count in self._steps.items() if step > timedelta() and step % shortest)
        return found if others < self._steps[shortest] else None

    @property
    def has_steps(self) -> bool:
        """Whether there are two different times."""
        return bool(self._steps)

    @property
    def description(self) -> str:
        """The length or the steps in words, for an error."""
        shortest = self._shortest
        if shortest is None:
            return "whose bars are not in order of time"
        if any(step % shortest for step in self._steps):
            steps = sorted(step for step in self._steps if step > timedelta())
            return f"whose bars are {', '.join(map(length_text, steps[:_LONGEST_LISTED]))} apart"
        return f"which looks like bars of {length_text(shortest)}"

    @property
    def _shortest(self) -> timedelta | None:
        return min((step for step in self._steps if step > timedelta()), default=None)


def length_text(step: timedelta) -> str:
    """Return a length such as `90m`, in the longest unit that gives a whole number."""
    seconds = int(step.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
