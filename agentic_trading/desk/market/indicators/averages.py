"""Averages that everything else is made of: simple, exponential, Wilder's."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import islice
from math import fsum


class SMA:
    """Simple moving average: the mean of the last `period` values; None before that many.

    Added up again at every step (`math.fsum`), so that a long run does not drift.
    """

    __slots__ = ("_window", "value")

    def __init__(self, period: int) -> None:
        self._window: deque[float] = deque(maxlen=period)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Take the next value; return the average."""
        self._window.append(value)
        if len(self._window) == self._window.maxlen:
            self.value = fsum(self._window) / len(self._window)
        return self.value


class EMA:
    """Exponential moving average with weight 2 / (period + 1); None before `period` values.

    Starts as the simple average of the first `period` values, as TA-Lib does; what the start adds to
    the value fades by a factor of about e^-2 every `period` steps.
    """

    __slots__ = ("_seed", "_weight", "value")

    def __init__(self, period: int) -> None:
        self._seed = SMA(period)
        self._weight = 2.0 / (period + 1)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Take the next value; return the average."""
        if self.value is None:
            self.value = self._seed.update(value)
        else:
            self.value += (value - self.value) * self._weight
        return self.value


class WilderAverage:
    """Wilder's smoothing, an exponential average with weight 1 / period; None before `period` values.

    Starts as the simple average of the first `period` values. Source: J. Welles Wilder, New Concepts in
    Technical Trading Systems, 1978.
    """

    __slots__ = ("_period", "_seed", "value")

    def __init__(self, period: int) -> None:
        self._period = period
        self._seed = SMA(period)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Take the next value; return the average."""
        if self.value is None:
            self.value = self._seed.update(value)
        else:
            self.value = (self.value * (self._period - 1) + value) / self._period
        return self.value


class WilderSum:
    """Wilder's running sum: the last sum less its `period`-th part, plus the new value.

    Starts as the plain sum of the first `period - 1` values and counts from the value after them, as
    TA-Lib does; None before `period` values. Source: as `WilderAverage`.
    """

    __slots__ = ("_period", "_seed", "value")

    def __init__(self, period: int) -> None:
        self._period = period
        self._seed: list[float] = []
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Take the next value; return the sum."""
        if self.value is not None:
            self.value += value - self.value / self._period
        elif len(self._seed) < self._period - 1:
            self._seed.append(value)
        else:
            start = fsum(self._seed)
            self.value = start - start / self._period + value
        return self.value


class SlopedMean:
    """The mean of the last `period` values, and what it gained a step since `steps` values ago.

    `value` is None before `period` values, `slope` before `period + steps`. Both are added up when they are asked for.
    """

    __slots__ = ("_period", "_steps", "_window")

    def __init__(self, period: int, steps: int) -> None:
        self._period = period
        self._steps = steps
        self._window: deque[float] = deque(maxlen=period + steps)

    @property
    def value(self) -> float | None:
        before = len(self._window) - self._period
        return None if before < 0 else fsum(islice(self._window, before, None)) / self._period

    @property
    def slope(self) -> float | None:
        now = self.value
        if now is None or len(self._window) < self._period + self._steps:
            return None
        return (now - fsum(islice(self._window, self._period)) / self._period) / self._steps

    def update(self, value: float) -> None:
        """Take the next value."""
        self._window.append(value)


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

    __slots__ = ("_period", "_sorted", "_window")

    def __init__(self, period: int) -> None:
        self._period = period
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def value(self) -> float | None:
        """The rank; looked up when it is asked for."""
        if len(self._window) < self._period:
            return None
        value = self._window[-1]
        below, up_to = bisect_left(self._sorted, value), bisect_right(self._sorted, value)
        return 100.0 * (below + up_to) / 2 / self._period

    def update(self, value: float) -> None:
        """Take the next value."""
        if len(self._window) == self._period:
            del self._sorted[bisect_left(self._sorted, self._window.popleft())]
        self._window.append(value)
        insort(self._sorted, value)
