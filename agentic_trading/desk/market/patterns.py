"""Patterns and sentiment of one timeframe, updated bar by bar."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.indicators import structure
from agentic_trading.desk.market.indicators.averages import EMA
from agentic_trading.desk.market.indicators.volatility import BollingerBands

NARROW_BARS = 7
WIDE_ATR = 1.8
KELTNER_ATR = 1.5
DOUBLE_ATR = 0.5
SENTIMENT_BARS = 20


@dataclass(frozen=True, slots=True)
class Double:
    """A double top or bottom: two swings of one side at nearly the same price.

    Attributes:
        way: Down for a top, up for a bottom.
        neckline: The extreme price of the opposite swings between the two.
        confirmed: Whether the last close is beyond the neckline.

    """

    way: structure.Way
    price: float
    neckline: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class PatternReading:
    """The patterns of one timeframe as of its last bar. A value is None if there are not enough bars yet.

    Attributes:
        bar: The number of the last bar, from 1.
        candles: The candle shapes of the last bar.
        narrow_7: Whether the range of the last bar is the smallest of 7.
        wide_range: Whether the range of the last bar is at least 1.8 ATR.
        squeeze: Whether the Bollinger bands (20, 2) are within the Keltner channel (EMA 20, 1.5 ATR 14).

    """

    bar: int
    candles: tuple[structure.Candle, ...]
    narrow_7: bool | None
    wide_range: bool | None
    squeeze: bool | None
    double_top: Double | None
    double_bottom: Double | None
    last_break: structure.Break | None
    last_sweep: structure.Sweep | None
    blocks: tuple[structure.Zone, ...]
    gaps: tuple[structure.Zone, ...]


class PatternGauge:
    """Finds the patterns of one timeframe bar by bar.

    NR7 and the wide-range bar: Toby Crabel, Day Trading with Short Term Price Patterns, 1990 (his ranges,
    with 1.8 as a round number). Squeeze: John F. Carter, Mastering the Trade, 2005, with ATR 14. Double tops
    and bottoms: Robert D. Edwards and John Magee, Technical Analysis of Stock Trends, 1948, here as two
    swings in a row within half an ATR.
    """

    __slots__ = ("_bands", "_before", "_breaks", "_gaps", "_last", "_mean", "_spans")

    def __init__(self) -> None:
        self._before: structure.Prices | None = None
        self._last: structure.Prices | None = None
        self._spans: deque[float] = deque(maxlen=NARROW_BARS)
        self._bands = BollingerBands(20, 2.0)
        self._mean = EMA(20)
        self._gaps = structure.FairValueGaps()
        self._breaks = structure.StructureBreaks()

    def update(
        self, bar: structure.Prices, highs: Sequence[structure.Swing], lows: Sequence[structure.Swing]
    ) -> None:
        """Add the next bar, with the swings that are confirmed at its close, oldest first."""
        self._before, self._last = self._last, bar
        self._spans.append(bar.span)
        self._bands.update(bar.close)
        self._mean.update(bar.close)
        self._gaps.update(bar)
        self._breaks.update(bar, highs, lows)

    def read(
        self, atr: float | None, highs: Sequence[structure.Swing], lows: Sequence[structure.Swing]
    ) -> PatternReading:
        """Return the patterns as of the last bar. `atr` and the swings are of the same timeframe."""
        spans, close = self._spans, self._last.close if self._last else 0.0
        return PatternReading(
            bar=self._breaks.count,
            candles=structure.candles(self._before, self._last) if self._last else (),
            narrow_7=spans[-1] <= min(spans) if len(spans) == NARROW_BARS else None,
            wide_range=spans[-1] >= WIDE_ATR * atr if atr else None,
            squeeze=self._squeeze(atr),
            double_top=_double(structure.Way.DOWN, highs, lows, close, atr),
            double_bottom=_double(structure.Way.UP, lows, highs, close, atr),
            last_break=self._breaks.last_break,
            last_sweep=self._breaks.last_sweep,
            blocks=tuple(self._breaks.blocks[way] for way in structure.Way if way in self._breaks.blocks),
            gaps=self._gaps.open,
        )

    def _squeeze(self, atr: float | None) -> bool | None:
        bands, mean = self._bands.value, self._mean.value
        if bands is None or mean is None or not atr:
            return None
        return bands.upper < mean + KELTNER_ATR * atr and bands.lower > mean - KELTNER_ATR * atr


def _double(
    way: structure.Way,
    same: Sequence[structure.Swing],
    opposite: Sequence[structure.Swing],
    close: float,
    atr: float | None,
) -> Double | None:
    """Return the double top or bottom of a side's last two swings, unless the close has passed it."""
    if not atr or len(same) < 2:
        return None
    first, second = same[-2:]
    between = [swing.price for swing in opposite if first.at < swing.at < second.at]
    if not between or abs(first.price - second.price) > DOUBLE_ATR * atr:
        return None
    sign = 1 if way is structure.Way.UP else -1
    price = min(first.price, second.price) if way is structure.Way.UP else max(first.price, second.price)
    if sign * (close - price) < 0:
        return None
    neckline = max(between) if way is structure.Way.UP else min(between)
    return Double(way, price, neckline, confirmed=sign * (close - neckline) > 0)


@dataclass(frozen=True, slots=True)
class SentimentReading:
    """The behaviour of traders on one timeframe.

    A value is None if there are not enough bars or the source lacks it.

    Attributes:
        taker_buy_pct: The share of the last bar's volume that buyers took from the book, in percent.
        taker_buy_20_pct: The same share for the last 20 bars together.
        trades: The number of trades in the last bar.
        trades_z: The distance of `trades` from the mean of the last 20 bars (with the last one), in sample
            standard deviations of these bars.
        volume_z: The same distance for the volume.
        streak: The number of closes in a row above the close before (positive) or below it (negative).
        gap: The open minus the close before, in units of price.
        has_takers: Whether the last bar has a taker volume.
        has_trades: Whether the last bar has a trade count.

    """

    taker_buy_pct: float | None
    taker_buy_20_pct: float | None
    trades: int | None
    trades_z: float | None
    volume_z: float | None
    streak: int | None
    gap: float | None
    has_takers: bool
    has_trades: bool


class SentimentGauge:
    """Measures the behaviour of traders bar by bar."""

    __slots__ = ("_close", "_gap", "_streak", "_takers", "_trades", "_volumes")

    def __init__(self) -> None:
        self._volumes: deque[float] = deque(maxlen=SENTIMENT_BARS)
        self._takers: deque[float | None] = deque(maxlen=SENTIMENT_BARS)
        self._trades: deque[int | None] = deque(maxlen=SENTIMENT_BARS)
        self._close: float | None = None
        self._gap: float | None = None
        self._streak = 0

    def update(self, bar: Bar) -> None:
        """Add the next bar."""
        close, before = float(bar.close), self._close
        self._volumes.append(float(bar.volume))
        self._takers.append(None if bar.taker_buy_volume is None else float(bar.taker_buy_volume))
        self._trades.append(bar.trades)
        if before is not None:
            self._gap = float(bar.open) - before
            step = (close > before) - (close < before)
            self._streak = self._streak + step if step * self._streak > 0 else step
        self._close = close

    def read(self) -> SentimentReading:
        """Return the measures as of the last bar."""
        return SentimentReading(
            taker_buy_pct=_share_pct(list(self._takers)[-1:], list(self._volumes)[-1:]),
            taker_buy_20_pct=_share_pct(self._takers, self._volumes)
            if len(self._volumes) == SENTIMENT_BARS
            else None,
            trades=self._trades[-1] if self._trades else None,
            trades_z=_z_score(self._trades),
            volume_z=_z_score(self._volumes),
            streak=None if self._gap is None else self._streak,
            gap=self._gap,
            has_takers=bool(self._takers) and self._takers[-1] is not None,
            has_trades=bool(self._trades) and self._trades[-1] is not None,
        )


def _share_pct(
    parts: deque[float | None] | list[float | None], wholes: deque[float] | list[float]
) -> float | None:
    known = [part for part in parts if part is not None]
    whole = fsum(wholes)
    return 100.0 * fsum(known) / whole if known and len(known) == len(parts) and whole > 0.0 else None


def _z_score(values: deque[float] | deque[int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    if len(known) < SENTIMENT_BARS:
        return None
    mean = fsum(known) / SENTIMENT_BARS
    deviation = sqrt(fsum((value - mean) ** 2 for value in known) / (SENTIMENT_BARS - 1))
    return (known[-1] - mean) / deviation if deviation > 0.0 else None
