"""Volatility indicators: true range, Bollinger bands, realised volatility."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import fsum, log, sqrt
from operator import mul

from agentic_trading.desk.market.indicators.averages import WilderAverage

FLAT = 1e-12  # of the price. A narrower band counts as closed, because it is only the rounding of a mean.


def true_range(high: float, low: float, last_close: float) -> float:
    """Return the largest of high - low and the distances of both from the last close (Wilder 1978)."""
    return max(high - low, abs(high - last_close), abs(low - last_close))


class ATR:
    """Average true range in units of price: Wilder's average of the true range.

    The first bar has no range, because there is no close before it (as in TA-Lib). So `value` is None before
    `period + 1` bars. Source: J. Welles Wilder, New Concepts in Technical Trading Systems, 1978.
    """

    __slots__ = ("_average", "_last_close")

    def __init__(self, period: int = 14) -> None:
        self._average = WilderAverage(period)
        self._last_close: float | None = None

    @property
    def value(self) -> float | None:
        return self._average.value

    def update(self, high: float, low: float, close: float) -> float | None:
        """Add the next bar, and return the average."""
        last_close, self._last_close = self._last_close, close
        if last_close is None:
            return None
        return self._average.update(true_range(high, low, last_close))


@dataclass(frozen=True, slots=True)
class Bands:
    """Bollinger bands in units of price, and the position of the latest price in them.

    Attributes:
        percent_b: 0 on the lower band and 1 on the upper band. None if the bands touch.
        width: The distance of the bands divided by the middle.

    """

    lower: float
    middle: float
    upper: float
    percent_b: float | None
    width: float


class BollingerBands:
    """The mean of the last `period` prices and bands `deviations` population standard deviations away.

    The value is None before `period` prices. Source: John Bollinger, Bollinger on Bollinger Bands, 2001.
    """

    __slots__ = ("_deviations", "_window")

    def __init__(self, period: int = 20, deviations: float = 2.0) -> None:
        self._window: deque[float] = deque(maxlen=period)
        self._deviations = deviations

    @property
    def value(self) -> Bands | None:
        """The bands, computed on access."""
        count = len(self._window)
        if count != self._window.maxlen:
            return None
        middle, squares = _spread(self._window)
        reach = self._deviations * sqrt(squares / count)
        lower, upper = middle - reach, middle + reach
        price = self._window[-1]
        return Bands(
            lower=lower,
            middle=middle,
            upper=upper,
            percent_b=(price - lower) / (upper - lower) if reach > FLAT * middle else None,
            width=2 * reach / middle,
        )

    def update(self, price: float) -> None:
        """Add the next price."""
        self._window.append(price)


class SampleDeviation:
    """Sample standard deviation (n - 1) of the last `period` values, or None before `period` values."""

    __slots__ = ("_window",)

    def __init__(self, period: int) -> None:
        self._window: deque[float] = deque(maxlen=period)

    @property
    def value(self) -> float | None:
        """The deviation, computed on access."""
        count = len(self._window)
        if count != self._window.maxlen:
            return None
        _, squares = _spread(self._window)
        return sqrt(squares / (count - 1))

    @property
    def relative(self) -> float | None:
        """The deviation divided by the mean, or None if the mean is zero."""
        deviation = self.value
        mean = fsum(self._window) / len(self._window) if self._window else 0.0
        return None if deviation is None or mean == 0.0 else deviation / mean

    def update(self, value: float) -> None:
        """Add the next value."""
        self._window.append(value)


def _spread(values: Collection[float]) -> tuple[float, float]:
    """Return the mean, and the sum of squared distances from the mean."""
    # Not as a difference of squares, because that would lose half of the digits to cancellation.
    mean = fsum(values) / len(values)
    distances = [value - mean for value in values]
    return mean, fsum(map(mul, distances, distances))


class RealisedVolatility:
    """Sample standard deviation of the last `period` log returns: the volatility of one bar, as a fraction.

    The value is None before `period + 1` prices. Multiplied by the square root of the bars in a year, it is
    the annual volatility. Source: John C. Hull, Options, Futures, and Other Derivatives, "Estimating
    volatility from historical data".
    """

    __slots__ = ("_deviation", "_last")

    def __init__(self, period: int) -> None:
        self._deviation = SampleDeviation(period)
        self._last: float | None = None

    @property
    def value(self) -> float | None:
        """The volatility, computed on access."""
        return self._deviation.value

    def update(self, price: float) -> None:
        """Add the next price, which must be above zero."""
        last, self._last = self._last, price
        if last is not None:
            self._deviation.update(log(price / last))
