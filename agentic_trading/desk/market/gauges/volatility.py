"""How much prices swing now, and against what is usual."""

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from agentic_trading.desk.market.indicators.volatility import ATR, RealisedVolatility, SampleDeviation
from agentic_trading.desk.market.indicators.windows import PercentileRank

RANK_BARS = 100


class VolatilityRegime(StrEnum):
    """Realised volatility against its last 100 values: below 20, up to 80, up to 95, above, in percentiles."""

    QUIET = "quiet"
    NORMAL = "normal"
    ELEVATED = "elevated"
    EXTREME = "extreme"


@dataclass(frozen=True, slots=True)
class VolatilityReading:
    """Volatility on one timeframe; None is what the bars so far do not yet give.

    `atr_14` is in units of price and `atr_pct` in percent of the close; realised volatility is that of
    one bar as a fraction (`realised_20`, `realised_96`). Percentiles rank the present value among the last
    100. `vol_of_vol` is the standard deviation of the last 20 values of `realised_20` over their mean.
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
    """Return the name of a percentile in 0..100."""
    if percentile < 20.0:
        return VolatilityRegime.QUIET
    if percentile <= 80.0:
        return VolatilityRegime.NORMAL
    return VolatilityRegime.ELEVATED if percentile <= 95.0 else VolatilityRegime.EXTREME


def annual_pct(per_bar: float | None, bars_per_year: float) -> float | None:
    """Return the volatility of one bar as percent a year, by the square root of time."""
    return None if per_bar is None else 100.0 * per_bar * sqrt(bars_per_year)


class VolatilityGauge:
    """Measure volatility bar by bar."""

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
        """Take the next bar."""
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
