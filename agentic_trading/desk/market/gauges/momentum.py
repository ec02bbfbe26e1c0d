"""The oscillators that confirm or doubt a trend."""

from dataclasses import dataclass

from agentic_trading.desk.market.indicators.momentum import MACD, RSI
from agentic_trading.desk.market.indicators.trend import ADX
from agentic_trading.desk.market.indicators.volatility import BollingerBands
from agentic_trading.desk.market.indicators.windows import Lag


@dataclass(frozen=True, slots=True)
class MomentumReading:
    """Momentum on one timeframe; None is what the bars so far do not yet give.

    RSI, ADX and DI are in 0..100, MACD in units of price, %B is 0 on the lower and 1 on the upper band,
    the band width is in percent of the middle.
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


class MomentumGauge:
    """Measure momentum bar by bar."""

    __slots__ = ("_adx", "_bands", "_before", "_macd", "_rsi")

    def __init__(self) -> None:
        self._rsi = RSI(14)
        self._macd = MACD(12, 26, 9)
        self._before = Lag(1)
        self._adx = ADX(14)
        self._bands = BollingerBands(20, 2.0)

    def update(self, high: float, low: float, close: float) -> None:
        """Take the next bar."""
        self._rsi.update(close)
        self._macd.update(close)
        self._before.update(self._macd.histogram)
        self._adx.update(high, low, close)
        self._bands.update(close)

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
        )
