"""Trend, momentum and volatility of one timeframe, updated bar by bar."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import fsum, sqrt

from agentic_trading.desk.market.indicators import momentum
from agentic_trading.desk.market.indicators.averages import EMA, Lag, PercentileRank, SlopedMean
from agentic_trading.desk.market.indicators.structure import Swing
from agentic_trading.desk.market.indicators.volatility import (
    ATR,
    BollingerBands,
    RealisedVolatility,
    SampleDeviation,
)
from agentic_trading.desk.market.indicators.volume import MFI, OBV, RollingVWAP

SLOPE_BARS = 5
RANGE_BARS = 20
RANK_BARS = 100

BARS_NEEDED = {
    "direction": 26,
    "ema_21": 21,
    "sma_50": 50,
    "sma_200": 200,
    "close_vs_ema_21_atr": 21,
    "close_vs_sma_50_atr": 50,
    "close_vs_sma_200_atr": 200,
    "ema_21_slope_atr": 26,
    "sma_50_slope_atr": 55,
    "sma_200_slope_atr": 205,
    "range_width_pct": 20,
    "range_width_percentile": 119,
    "volume_skew": 20,
    "rsi_14": 15,
    "macd": 26,
    "macd_signal": 34,
    "macd_histogram": 34,
    "macd_histogram_change": 35,
    "adx_14": 28,
    "plus_di_14": 15,
    "minus_di_14": 15,
    "percent_b": 20,
    "band_width_pct": 20,
    "stochastic_k": 16,
    "stochastic_d": 18,
    "trix_15": 44,
    "obv_slope": 21,
    "mfi_14": 15,
    "close_vs_vwap_20_atr": 20,
    "atr_14": 15,
    "atr_pct": 15,
    "atr_percentile": 114,
    "realised_20_annual_pct": 21,
    "realised_96_annual_pct": 97,
    "realised_percentile": 120,
    "vol_of_vol": 40,
    "regime": 120,
    "next_bar_low": 21,
    "next_bar_high": 21,
    "narrow_7": 7,
    "wide_range": 15,
    "squeeze": 20,
    "taker_buy_pct": 1,
    "taker_buy_20_pct": 20,
    "trades": 1,
    "trades_z": 20,
    "volume_z": 20,
    "streak": 2,
    "gap_atr": 15,
}
"""The number of bars of its timeframe that each measure needs, if the prices of the bars change."""


@dataclass(frozen=True, slots=True)
class TrendReading:
    """The trend of one timeframe. A value is None if there are not enough bars yet.

    Averages are in units of price, and slopes are in price per bar over the last 5 bars.

    Attributes:
        range_width_pct: The range of the last 20 bars, in percent of the close.
        range_width_percentile: The rank of `range_width_pct` among its last 100 values, 0 to 100.
        volume_skew: The volume of rising bars minus that of falling bars, divided by the volume of all of the
            last 20 bars, -1 to 1.

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


class TrendGauge:
    """Measures the trend bar by bar."""

    __slots__ = (
        "_ema_21", "_ema_21_before", "_highs", "_lows", "_rank", "_signed_volumes", "_sma_50", "_sma_200", "_volumes", "_width_pct",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ema_21 = EMA(21)
        self._ema_21_before = Lag(SLOPE_BARS)
        self._sma_50 = SlopedMean(50, SLOPE_BARS)
        self._sma_200 = SlopedMean(200, SLOPE_BARS)
        self._highs: deque[float] = deque(maxlen=RANGE_BARS)
        self._lows: deque[float] = deque(maxlen=RANGE_BARS)
        self._volumes: deque[float] = deque(maxlen=RANGE_BARS)
        self._signed_volumes: deque[float] = deque(maxlen=RANGE_BARS)
        self._rank = PercentileRank(RANK_BARS)
        self._width_pct: float | None = None

    def update(self, opened: float, high: float, low: float, close: float, volume: float) -> None:
        """Add the next bar."""
        self._ema_21_before.update(self._ema_21.update(close))
        self._sma_50.update(close)
        self._sma_200.update(close)
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
            ema_21_slope=self._ema_21_slope(),
            sma_50_slope=self._sma_50.slope,
            sma_200_slope=self._sma_200.slope,
            range_width_pct=self._width_pct,
            range_width_percentile=self._rank.value,
            volume_skew=self._volume_skew(),
        )

    def _ema_21_slope(self) -> float | None:
        now, before = self._ema_21.value, self._ema_21_before.value
        return None if now is None or before is None else (now - before) / SLOPE_BARS

    def _volume_skew(self) -> float | None:
        total = fsum(self._volumes)
        if len(self._volumes) < RANGE_BARS or total <= 0.0:
            return None
        return fsum(self._signed_volumes) / total


@dataclass(frozen=True, slots=True)
class MomentumReading:
    """The momentum of one timeframe. A value is None if there are not enough bars yet.

    RSI, stochastic, MFI, ADX and DI are in 0..100. MACD and VWAP are in units of price. %B is 0 on the lower
    band and 1 on the upper band. The band width is in percent of the middle, TRIX is in percent per bar, and
    `obv_slope` is in -1..1.
    """

    rsi_14: float | None
    macd: float | None
    macd_signal: float | None
    macd_histogram: float | None
    macd_histogram_change: float | None
    adx_14: float | None
    plus_di_14: float | None
    minus_di_14: float | None
    percent_b: float | None
    band_width_pct: float | None
    stochastic_k: float | None
    stochastic_d: float | None
    trix_15: float | None
    obv_slope: float | None
    mfi_14: float | None
    vwap_20: float | None
    divergences: tuple[tuple[momentum.Divergence, str], ...]


class MomentumGauge:
    """Measures momentum bar by bar."""

    __slots__ = (
        "_adx", "_bands", "_before", "_divergences", "_macd", "_mfi", "_obv", "_rsi", "_stochastic", "_trix", "_vwap",
    )  # fmt: skip

    def __init__(self) -> None:
        self._rsi = momentum.RSI(14)
        self._macd = momentum.MACD(12, 26, 9)
        self._before = Lag(1)
        self._adx = momentum.ADX(14)
        self._bands = BollingerBands(20, 2.0)
        self._stochastic = momentum.Stochastic(14, 3)
        self._trix = momentum.TRIX(15)
        self._obv = OBV(20)
        self._mfi = MFI(14)
        self._vwap = RollingVWAP(20)
        self._divergences = momentum.Divergences()

    def update(self, high: float, low: float, close: float, volume: float) -> None:
        """Add the next bar."""
        self._rsi.update(close)
        self._macd.update(close)
        self._before.update(self._macd.histogram)
        self._adx.update(high, low, close)
        self._bands.update(close)
        self._stochastic.update(high, low, close)
        self._trix.update(close)
        self._obv.update(close, volume)
        self._mfi.update(high, low, close, volume)
        self._vwap.update(high, low, close, volume)

    def compare(self, at: datetime, highs: Sequence[Swing], lows: Sequence[Swing]) -> None:
        """Look for divergences at the swings that the last bar has confirmed. The last bar closed at `at`."""
        oscillators = {"rsi": self._rsi.value, "macd_histogram": self._macd.histogram}
        self._divergences.update(at, oscillators, highs, lows)

    def read(self) -> MomentumReading:
        """Return the measures as of the last bar."""
        bands, histogram, before = self._bands.value, self._macd.histogram, self._before.value
        return MomentumReading(
            rsi_14=self._rsi.value,
            macd=self._macd.value,
            macd_signal=self._macd.signal,
            macd_histogram=histogram,
            macd_histogram_change=None if histogram is None or before is None else histogram - before,
            adx_14=self._adx.value,
            plus_di_14=self._adx.plus_di,
            minus_di_14=self._adx.minus_di,
            percent_b=bands.percent_b if bands else None,
            band_width_pct=100.0 * bands.width if bands else None,
            stochastic_k=self._stochastic.k,
            stochastic_d=self._stochastic.d,
            trix_15=self._trix.value,
            obv_slope=self._obv.slope,
            mfi_14=self._mfi.value,
            vwap_20=self._vwap.value,
            divergences=self._divergences.found,
        )


class VolatilityRegime(StrEnum):
    """The percentile of realised volatility in its last 100 values: below 20, up to 80, up to 95, above."""

    QUIET = "quiet"
    NORMAL = "normal"
    ELEVATED = "elevated"
    EXTREME = "extreme"


@dataclass(frozen=True, slots=True)
class VolatilityReading:
    """The volatility of one timeframe. A value is None if there are not enough bars yet.

    Attributes:
        atr_14: The average true range, in units of price.
        atr_pct: The average true range, in percent of the close.
        atr_percentile: The rank of `atr_pct` among its last 100 values, 0 to 100.
        realised_20: The realised volatility of one bar over 20 returns, as a fraction.
        realised_96: The realised volatility of one bar over 96 returns, as a fraction.
        realised_percentile: The rank of `realised_20` among its last 100 values, 0 to 100.
        vol_of_vol: The standard deviation of the last 20 values of `realised_20`, divided by their mean.

    """

    atr_14: float | None
    atr_pct: float | None
    atr_percentile: float | None
    realised_20: float | None
    realised_96: float | None
    realised_percentile: float | None
    vol_of_vol: float | None

    @property
    def regime(self) -> VolatilityRegime | None:
        return None if self.realised_percentile is None else regime_of(self.realised_percentile)


def regime_of(percentile: float) -> VolatilityRegime:
    """Return the regime of a percentile in 0..100."""
    if percentile < 20.0:
        return VolatilityRegime.QUIET
    if percentile <= 80.0:
        return VolatilityRegime.NORMAL
    return VolatilityRegime.ELEVATED if percentile <= 95.0 else VolatilityRegime.EXTREME


def annual_pct(per_bar: float | None, bars_per_year: float) -> float | None:
    """Return the volatility of one bar in percent per year, by the square root of time."""
    return None if per_bar is None else 100.0 * per_bar * sqrt(bars_per_year)


class VolatilityGauge:
    """Measures volatility bar by bar."""

    __slots__ = ("_atr", "_atr_pct", "_atr_rank", "_long", "_of_short", "_short", "_short_rank")

    def __init__(self) -> None:
        self._atr = ATR(14)
        self._atr_pct: float | None = None
        self._atr_rank = PercentileRank(RANK_BARS)
        self._short = RealisedVolatility(20)
        self._long = RealisedVolatility(96)
        self._short_rank = PercentileRank(RANK_BARS)
        self._of_short = SampleDeviation(20)

    def update(self, high: float, low: float, close: float) -> None:
        """Add the next bar."""
        atr = self._atr.update(high, low, close)
        if atr is not None:
            self._atr_pct = 100.0 * atr / close
            self._atr_rank.update(self._atr_pct)
        self._long.update(close)
        self._short.update(close)
        short = self._short.value
        if short is not None:
            self._short_rank.update(short)
            self._of_short.update(short)

    def read(self) -> VolatilityReading:
        """Return the measures as of the last bar."""
        return VolatilityReading(
            atr_14=self._atr.value,
            atr_pct=self._atr_pct,
            atr_percentile=self._atr_rank.value,
            realised_20=self._short.value,
            realised_96=self._long.value,
            realised_percentile=self._short_rank.value,
            vol_of_vol=self._of_short.relative,
        )
