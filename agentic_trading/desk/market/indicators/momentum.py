"""Momentum indicators: RSI, MACD, stochastic, TRIX and ADX, and their divergences from the price."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from math import fsum

from agentic_trading.desk.market.indicators.averages import EMA, WilderAverage, WilderSum
from agentic_trading.desk.market.indicators.structure import Swing
from agentic_trading.desk.market.indicators.volatility import true_range


class RSI:
    """Relative strength index in 0..100: Wilder's average gain divided by average gain plus average loss.

    The value is None before `period + 1` prices, and until a price changes. Source: J. Welles Wilder, New
    Concepts in Technical Trading Systems, 1978, started as in TA-Lib.
    """

    __slots__ = ("_gain", "_last", "_loss", "value")

    def __init__(self, period: int = 14) -> None:
        self._gain = WilderAverage(period)
        self._loss = WilderAverage(period)
        self._last: float | None = None
        self.value: float | None = None

    def update(self, price: float) -> float | None:
        """Add the next price, and return the index."""
        last, self._last = self._last, price
        if last is None:
            return None
        gain = self._gain.update(max(price - last, 0.0))
        loss = self._loss.update(max(last - price, 0.0))
        if gain is not None and loss is not None:
            self.value = 100.0 * (gain / (gain + loss)) if gain + loss > 0.0 else None
        return self.value


class MACD:
    """Moving average convergence divergence: fast EMA minus slow EMA, in units of price.

    `value` needs `slow` prices. `signal` (an EMA of `value`) and `histogram` (`value - signal`) need
    `slow + smooth - 1` prices. Source: Gerald Appel, The Moving Average Convergence-Divergence Method, 1979.
    """

    __slots__ = ("_fast", "_signal", "_skip", "_slow", "value")

    def __init__(self, fast: int = 12, slow: int = 26, smooth: int = 9) -> None:
        self._fast = EMA(fast)
        self._slow = EMA(slow)
        self._signal = EMA(smooth)
        self._skip = slow - fast
        self.value: float | None = None

    @property
    def signal(self) -> float | None:
        return self._signal.value

    @property
    def histogram(self) -> float | None:
        if self.value is None or self.signal is None:
            return None
        return self.value - self.signal

    def update(self, price: float) -> float | None:
        """Add the next price, and return the difference of the averages."""
        slow = self._slow.update(price)
        # The fast average skips the first prices, so that both averages start on the same bar, as in TA-Lib.
        if self._skip > 0:
            self._skip -= 1
            return None
        fast = self._fast.update(price)
        if fast is not None and slow is not None:
            self.value = fast - slow
            self._signal.update(self.value)
        return self.value


class Stochastic:
    """Slow stochastic in 0..100: the smoothed position of the close in the range of the last `period` bars.

    Fast %K is 100 (close - lowest low) / (highest high - lowest low). `k` is the mean of the last `smooth`
    values of fast %K, and `d` is the mean of the last `smooth` values of `k`. `k` is None before `period +
    smooth - 1` bars, and `d` before `period + 2 smooth - 2` bars. Both are None if a range that they need has
    no height.

    Source: George C. Lane, Lane's Stochastics, 1984, as TA-Lib's STOCH with simple averages.
    """

    __slots__ = ("_fast", "_highs", "_lows", "_slow")

    def __init__(self, period: int = 14, smooth: int = 3) -> None:
        self._highs: deque[float] = deque(maxlen=period)
        self._lows: deque[float] = deque(maxlen=period)
        self._fast: deque[float | None] = deque(maxlen=smooth)
        self._slow: deque[float | None] = deque(maxlen=smooth)

    @property
    def k(self) -> float | None:
        return self._slow[-1] if self._slow else None

    @property
    def d(self) -> float | None:
        return _mean(self._slow)

    def update(self, high: float, low: float, close: float) -> float | None:
        """Add the next bar, and return `k`."""
        self._highs.append(high)
        self._lows.append(low)
        if len(self._highs) == self._highs.maxlen:
            top, bottom = max(self._highs), min(self._lows)
            self._fast.append(100.0 * (close - bottom) / (top - bottom) if top > bottom else None)
            self._slow.append(_mean(self._fast))
        return self.k


class TRIX:
    """The change of a triple exponential average since the bar before, in percent.

    The value is None before `3 * period - 1` prices. Source: Jack K. Hutson, Good TRIX, Technical Analysis of
    Stocks & Commodities, 1983, started as in TA-Lib: each average starts on the values of the average before
    it.
    """

    __slots__ = ("_averages", "_last", "value")

    def __init__(self, period: int = 15) -> None:
        self._averages = (EMA(period), EMA(period), EMA(period))
        self._last: float | None = None
        self.value: float | None = None

    def update(self, price: float) -> float | None:
        """Add the next price, which must be above zero, and return the change."""
        smoothed: float | None = price
        for average in self._averages:
            smoothed = None if smoothed is None else average.update(smoothed)
        if smoothed is not None:
            last, self._last = self._last, smoothed
            self.value = None if last is None else 100.0 * (smoothed / last - 1.0)
        return self.value


def _mean(window: deque[float | None]) -> float | None:
    """Return the mean of a window, or None if it is not full or has a missing value."""
    known = [value for value in window if value is not None]
    return fsum(known) / len(known) if len(known) == window.maxlen else None


class ADX:
    """Average directional index, and the two directional indicators that it is made of, all in 0..100.

    `plus_di` and `minus_di` need `period + 1` bars, and are None if the sum of the true range is zero.
    `value` needs `2 * period` bars. If neither side has moved, it keeps its last value. Source: J. Welles
    Wilder, New Concepts in Technical Trading Systems, 1978, started as in TA-Lib.
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
        """Add the next bar, and return the index."""
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


Oscillators = Mapping[str, float | None]


class Divergence(StrEnum):
    """The direction of a divergence."""

    BEARISH = "bearish"
    BULLISH = "bullish"


class Divergences:
    """Divergences: the price and an oscillator compared at the last two swings of a side.

    A divergence is bearish if the later of the last two confirmed swing highs is higher in price and lower in
    the oscillator, both at the close of the swing's bar. A bullish divergence is the mirror at swing lows. A
    divergence starts when its second swing is confirmed, never on the bar of the swing, and lasts until the
    next swing of its side is confirmed.

    Source: J. Welles Wilder, New Concepts in Technical Trading Systems, 1978, for RSI, and Gerald Appel for
    MACD. Fractal swings replace the judgement of an eye.
    """

    __slots__ = ("_at_swings", "_recent")

    def __init__(self, wing: int = 3) -> None:
        self._recent: deque[tuple[datetime, Oscillators]] = deque(maxlen=wing + 1)
        self._at_swings: dict[Divergence, deque[tuple[Swing, Oscillators]]] = {
            side: deque(maxlen=2) for side in Divergence
        }

    def update(
        self, at: datetime, oscillators: Oscillators, highs: Sequence[Swing], lows: Sequence[Swing]
    ) -> None:
        """Add the oscillators of the bar that closed at `at`, and the swings so far, oldest first."""
        self._recent.append((at, oscillators))
        for side, swings in ((Divergence.BEARISH, highs), (Divergence.BULLISH, lows)):
            if swings and swings[-1].confirmed_at == at:
                then = dict(self._recent)[swings[-1].at]
                self._at_swings[side].append((swings[-1], then))

    @property
    def found(self) -> tuple[tuple[Divergence, str], ...]:
        """The current divergences with their oscillators, ordered by `Divergence`, then by oscillator."""
        return tuple(
            (side, name)
            for side, pair in self._at_swings.items()
            if len(pair) == 2
            for name in pair[1][1]
            if _diverges(side, pair[0], pair[1], name)
        )


def _diverges(
    side: Divergence, first: tuple[Swing, Oscillators], second: tuple[Swing, Oscillators], name: str
) -> bool:
    before, after = first[1].get(name), second[1].get(name)
    if before is None or after is None:
        return False
    sign = 1 if side is Divergence.BEARISH else -1
    return sign * (second[0].price - first[0].price) > 0 and sign * (after - before) < 0
