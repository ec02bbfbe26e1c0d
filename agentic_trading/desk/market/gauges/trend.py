"""Averages, their slopes and the shape of the latest range."""

from collections import deque
from dataclasses import dataclass
from math import fsum

from agentic_trading.desk.market.indicators.averages import EMA, SMA
from agentic_trading.desk.market.indicators.windows import Lag, PercentileRank

SLOPE_BARS = 5
RANGE_BARS = 20
RANK_BARS = 100


@dataclass(frozen=True, slots=True)
class TrendReading:
    """Trend on one timeframe; None is what the bars so far do not yet give.

    Averages are in units of price, slopes in price per bar over the last 5 bars. `range_width_pct` is the
    span of the last 20 bars in percent of the close, `range_width_percentile` its rank among the last 100.
    `volume_skew` is the volume of rising bars less that of falling ones over all volume of the last 20 bars,
    -1 to 1.
    """

    ema_21: float | None
    sma_50: float | None
    sma_200: float | None
    ema_21_slope: float | None
    sma_50_slope: float | None
    sma_200_slope: float | None
    range_width_pct: float | None
    range_width_percentile: float | None
    volume_skew: float | None


class Sloped:
    """An average and what it gained per bar over the last 5 bars."""

    __slots__ = ("_average", "_earlier")

    def __init__(self, average: EMA | SMA) -> None:
        self._average = average
        self._earlier = Lag(SLOPE_BARS)

    @property
    def value(self) -> float | None:
        return self._average.value

    @property
    def slope(self) -> float | None:
        now, earlier = self._average.value, self._earlier.value
        return None if now is None or earlier is None else (now - earlier) / SLOPE_BARS

    def update(self, price: float) -> None:
        """Take the next price."""
        self._earlier.update(self._average.update(price))


class TrendGauge:
    """Measure the trend bar by bar."""

    __slots__ = (
        "_ema_21", "_highs", "_lows", "_rank", "_signed_volumes", "_sma_50", "_sma_200", "_volumes", "_width_pct",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ema_21 = Sloped(EMA(21))
        self._sma_50 = Sloped(SMA(50))
        self._sma_200 = Sloped(SMA(200))
        self._highs: deque[float] = deque(maxlen=RANGE_BARS)
        self._lows: deque[float] = deque(maxlen=RANGE_BARS)
        self._volumes: deque[float] = deque(maxlen=RANGE_BARS)
        self._signed_volumes: deque[float] = deque(maxlen=RANGE_BARS)
        self._rank = PercentileRank(RANK_BARS)
        self._width_pct: float | None = None

    def update(self, opened: float, high: float, low: float, close: float, volume: float) -> None:
        """Take the next bar."""
        for average in (self._ema_21, self._sma_50, self._sma_200):
            average.update(close)
        self._highs.append(high)
        self._lows.append(low)
        self._volumes.append(volume)
        self._signed_volumes.append(((close > opened) - (close < opened)) * volume)
        if len(self._highs) == RANGE_BARS:
            self._width_pct = 100.0 * (max(self._highs) - min(self._lows)) / close
            self._rank.update(self._width_pct)

    def read(self) -> TrendReading:
        """Return the measures as of the last bar."""
        return TrendReading(
            ema_21=self._ema_21.value,
            sma_50=self._sma_50.value,
            sma_200=self._sma_200.value,
            ema_21_slope=self._ema_21.slope,
            sma_50_slope=self._sma_50.slope,
            sma_200_slope=self._sma_200.slope,
            range_width_pct=self._width_pct,
            range_width_percentile=self._rank.value,
            volume_skew=self._volume_skew(),
        )

    def _volume_skew(self) -> float | None:
        total = fsum(self._volumes)
        if len(self._volumes) < RANGE_BARS or total <= 0.0:
            return None
        return fsum(self._signed_volumes) / total
