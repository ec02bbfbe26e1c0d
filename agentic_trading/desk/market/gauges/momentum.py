"""The oscillators that confirm or doubt a trend."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agentic_trading.desk.market.indicators.divergence import Divergence, Divergences
from agentic_trading.desk.market.indicators.flow import MFI, OBV, RollingVWAP
from agentic_trading.desk.market.indicators.momentum import MACD, RSI, TRIX, Stochastic
from agentic_trading.desk.market.indicators.swings import Swing
from agentic_trading.desk.market.indicators.trend import ADX
from agentic_trading.desk.market.indicators.volatility import BollingerBands
from agentic_trading.desk.market.indicators.windows import Lag


@dataclass(frozen=True, slots=True)
class MomentumReading:
    """Momentum on one timeframe; None is what the bars so far do not yet give.

    RSI, stochastic, MFI, ADX and DI are in 0..100, MACD and VWAP in units of price, %B is 0 on the lower and 1 on
    the upper band, the band width is in percent of the middle, TRIX in percent a bar, `obv_slope` in -1..1.
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
    divergences: tuple[tuple[Divergence, str], ...]


class MomentumGauge:
    """Measure momentum bar by bar."""

    __slots__ = (
        "_adx", "_bands", "_before", "_divergences", "_macd", "_mfi", "_obv", "_rsi", "_stochastic", "_trix", "_vwap",
    )  # fmt: skip

    def __init__(self) -> None:
        self._rsi = RSI(14)
        self._macd = MACD(12, 26, 9)
        self._before = Lag(1)
        self._adx = ADX(14)
        self._bands = BollingerBands(20, 2.0)
        self._stochastic = Stochastic(14, 3)
        self._trix = TRIX(15)
        self._obv = OBV(20)
        self._mfi = MFI(14)
        self._vwap = RollingVWAP(20)
        self._divergences = Divergences()

    def update(self, high: float, low: float, close: float, volume: float) -> None:
        """Take the next bar."""
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
        """Look for divergences at the swings that are confirmed with the bar taken last, which closed at `at`."""
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
