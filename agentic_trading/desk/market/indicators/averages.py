"""Averages, which the other indicators are made of: simple, exponential, Wilder's."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import islice
from math import fsum


class SMA:
    """Simple moving average: the mean of the last `period` values, or None before `period` values."""

    __slots__ = ("_window", "value")

    def __init__(self, period: int) -> None:
        self._window: deque[float] = deque(maxlen=period)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Add the next value, and return the average."""
        self._window.append(value)
        if len(self._window) == self._window.maxlen:
            # Summed again at every step, so that rounding errors do not add up over a long run.
            self.value = fsum(self._window) / len(self._window)
        return self.value


class EMA:
    """Exponential moving average with weight 2 / (period + 1). The value is None before `period` values.

    It starts with the simple average of the first `period` values, as in TA-Lib. The weight of the start
    falls by a factor of about e^-2 every `period` steps.
    """

    __slots__ = ("_seed", "_weight", "value")

    def __init__(self, period: int) -> None:
        self._seed = SMA(period)
        self._weight = 2.0 / (period + 1)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Add the next value, and return the average."""
        if self.value is None:
            self.value = self._seed.update(value)
        else:
            self.value += (value - self.value) * self._weight
        return self.value


class WilderAverage:
    """Wilder's smoothing, an exponential average with weight 1 / period.

    The value is None before `period` values.

    It starts with the simple average of the first `period` values. Source: J. Welles Wilder, New Concepts in
    Technical Trading Systems, 1978.
    """

    __slots__ = ("_period", "_seed", "value")

    def __init__(self, period: int) -> None:
        self._period = period
        self._seed = SMA(period)
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Add the next value, and return the average."""
        if self.value is None:
            self.value = self._seed.update(value)
        else:
            self.value = (self.value * (self._period - 1) + value) / self._period
        return self.value


class WilderSum:
    """Wilder's running sum: the last sum minus its `period`-th part, plus the new value.

    It starts with the plain sum of the first `period - 1` values, and has a value from the value after them
    on, as in TA-Lib. The value is None before `period` values. Source: as for `WilderAverage`.
    """

    __slots__ = ("_period", "_seed", "value")

    def __init__(self, period: int) -> None:
        self._period = period
        self._seed: list[float] = []
        self.value: float | None = None

    def update(self, value: float) -> float | None:
        """Add the next value, and return the sum."""
        if self.value is not None:
            self.value += value - self.value / self._period
        elif len(self._seed) < self._period - 1:
            self._seed.append(value)
        else:
            start = fsum(self._seed)
            self.value = start - start / self._period + value
        return self.value


class SlopedMean:
    """The mean of the last `period` values, and its change per step over the last `steps` values.

    `value` is None before `period` values, and `slope` before `period + steps` values. Both are computed on
    access.
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
        """Add the next value."""
        self._window.append(value)


class Lag:
    """The value of `steps` updates ago, or None if there were fewer updates."""

    __slots__ = ("_window",)

    def __init__(self, steps: int) -> None:
        self._window: deque[float | None] = deque(maxlen=steps + 1)

    @property
    def value(self) -> float | None:
        return self._window[0] if len(self._window) == self._window.maxlen else None

    def update(self, value: float | None) -> float | None:
        """Add the current value, and return the old value."""
        self._window.append(value)
        return self.value


class PercentileRank:
    """The rank of the latest value among the last `period` values, including itself, in 0..100.

    The rank is the share of lower values plus half the share of equal values, as in
    `scipy.stats.percentileofscore(kind="mean")`. It is None before `period` values.
    """

    __slots__ = ("_period", "_sorted", "_window")

    def __init__(self, period: int) -> None:
        self._period = period
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def value(self) -> float | None:
        """The rank, computed on access."""
        if len(self._window) < self._period:
            return None
        value = self._window[-1]
        below, up_to = bisect_left(self._sorted, value), bisect_right(self._sorted, value)
        return 100.0 * (below + up_to) / 2 / self._period

    def update(self, value: float) -> None:
        """Add the next value."""
        if len(self._window) == self._period:
            del self._sorted[bisect_left(self._sorted, self._window.popleft())]
        self._window.append(value)
        insort(self._sorted, value)
