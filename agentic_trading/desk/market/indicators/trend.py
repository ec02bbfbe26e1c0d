"""How strong a trend is and which way it points: Wilder's directional movement."""

from agentic_trading.desk.market.indicators.averages import WilderAverage, WilderSum
from agentic_trading.desk.market.indicators.volatility import true_range


class ADX:
    """Average directional index, and the two directional indicators it is made of, all in 0..100.

    `plus_di` and `minus_di` need `period + 1` bars, `value` needs `2 * period`; both are None while the
    summed true range is zero. Where neither side has moved, the index keeps its last value. Source:
    J. Welles Wilder, New Concepts in Technical Trading Systems, 1978; seeded as TA-Lib.
    """

    __slots__ = ("_average", "_last", "_minus", "_plus", "_range")

    def __init__(self, period: int = 14) -> None:
        self._plus = WilderSum(period)
        self._minus = WilderSum(period)
        self._range = WilderSum(period)
        self._average = WilderAverage(period)
        self._last: tuple[float, float, float] | None = None

    @property
    def value(self) -> float | None:
        return self._average.value

    @property
    def plus_di(self) -> float | None:
        return _share(self._plus.value, self._range.value)

    @property
    def minus_di(self) -> float | None:
        return _share(self._minus.value, self._range.value)

    def update(self, high: float, low: float, close: float) -> float | None:
        """Take the next bar; return the index."""
        last, self._last = self._last, (high, low, close)
        if last is None:
            return None
        last_high, last_low, last_close = last
        up, down = high - last_high, last_low - low
        self._plus.update(up if up > max(down, 0.0) else 0.0)
        self._minus.update(down if down > max(up, 0.0) else 0.0)
        self._range.update(true_range(high, low, last_close))
        plus, minus = self.plus_di, self.minus_di
        if plus is not None and minus is not None and plus + minus > 0.0:
            self._average.update(100.0 * abs(plus - minus) / (plus + minus))
        return self.value


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100.0 * part / whole
