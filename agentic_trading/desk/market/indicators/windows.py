"""Looking back: the value some steps ago, and where a value stands among the latest ones."""

from bisect import bisect_left, bisect_right, insort
from collections import deque


class Lag:
    """The value that was put in `steps` updates ago; None before there was one."""

    __slots__ = ("_window",)

    def __init__(self, steps: int) -> None:
        self._window: deque[float | None] = deque(maxlen=steps + 1)

    @property
    def value(self) -> float | None:
        return self._window[0] if len(self._window) == self._window.maxlen else None

    def update(self, value: float | None) -> float | None:
        """Take the present value; return the old one."""
        self._window.append(value)
        return self.value


class PercentileRank:
    """Where the latest value stands among the last `period` ones, itself included, in 0..100.

    The mean rank: the share of values below it plus half the share of equal ones, as
    `scipy.stats.percentileofscore(kind="mean")` defines it. None before `period` values.
    """

    __slots__ = ("_period", "_sorted", "_window", "value")

    def __init__(self, period: int) -> None:
        self._period = period
        self._window: deque[float] = deque()
        self._sorted: list[float] = []
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Take the next value; return its rank."""
        if len(self._window) == self._period:
            del self._sorted[bisect_left(self._sorted, self._window.popleft())]
        self._window.append(value)
        insort(self._sorted, value)
        if len(self._window) == self._period:
            below, up_to = bisect_left(self._sorted, value), bisect_right(self._sorted, value)
            self.value = 100.0 * (below + up_to) / 2 / self._period
        return self.value
