"""One timeframe: its last closed bar and all measures of it."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agentic_trading.desk.market.bar import ClosedBar, Timeframe, TradingYear
from agentic_trading.desk.market.gauges import (
    MomentumGauge,
    MomentumReading,
    TrendGauge,
    TrendReading,
    VolatilityGauge,
    VolatilityReading,
)
from agentic_trading.desk.market.indicators.structure import Prices, Structure, Swing, Swings
from agentic_trading.desk.market.patterns import (
    PatternGauge,
    PatternReading,
    SentimentGauge,
    SentimentReading,
)

SWING_WING = 3
SWINGS_KEPT = 8
TOUCH_BARS = 100


class Trend(StrEnum):
    """The direction of a timeframe."""

    UP = "up"
    DOWN = "down"
    SIDEWAYS = "sideways"


@dataclass(frozen=True, slots=True)
class Frame:
    """All measures of one timeframe when `last` has closed.

    Measures ignore gaps in the data: the bars on both sides of a gap count as neighbours.

    Attributes:
        bars: The number of bars so far.
        bars_per_year: The estimated number of bars in a year (`TradingYear`).
        touch_highs: The highs of the last 100 bars, oldest first.
        touch_lows: The lows of the last 100 bars, oldest first.

    """

    timeframe: Timeframe
    last: ClosedBar
    bars: int
    bars_per_year: int
    trend: TrendReading
    momentum: MomentumReading
    volatility: VolatilityReading
    patterns: PatternReading
    sentiment: SentimentReading
    swing_highs: tuple[Swing, ...]
    swing_lows: tuple[Swing, ...]
    structure: Structure | None
    touch_highs: tuple[float, ...]
    touch_lows: tuple[float, ...]

    @property
    def close(self) -> float:
        return float(self.last.bar.close)

    @property
    def close_time(self) -> datetime:
        return self.last.bar.close_time

    @property
    def direction(self) -> Trend | None:
        """The direction by votes: up or down if the votes differ by 2 or more, else sideways.

        Swing structure, close against EMA 21, slope of EMA 21 and close against SMA 50 have one vote each, as
        soon as they have a value. None until EMA 21 has a slope.
        """
        if self.trend.ema_21 is None or self.trend.ema_21_slope is None:
            return None
        votes = _sign(self.close - self.trend.ema_21) + _sign(self.trend.ema_21_slope)
        if self.trend.sma_50 is not None:
            votes += _sign(self.close - self.trend.sma_50)
        votes += (self.structure is Structure.UP) - (self.structure is Structure.DOWN)
        if abs(votes) < 2:
            return Trend.SIDEWAYS
        return Trend.UP if votes > 0 else Trend.DOWN

    def in_atr(self, distance: float | None) -> float | None:
        """Return a distance in price as a multiple of this timeframe's ATR, or None if there is no ATR."""
        atr = self.volatility.atr_14
        return distance / atr if distance is not None and atr else None


class FrameGauge:
    """Measures one timeframe bar by bar."""

    __slots__ = (
        "_bars", "_frame", "_last", "_momentum", "_patterns", "_sentiment", "_swings", "_timeframe",
        "_touch_highs", "_touch_lows", "_trend", "_volatility", "_year",
    )  # fmt: skip

    def __init__(self, timeframe: Timeframe) -> None:
        self._timeframe = timeframe
        self._bars = 0
        self._year = TradingYear(timeframe)
        self._last: ClosedBar | None = None
        self._trend = TrendGauge()
        self._momentum = MomentumGauge()
        self._volatility = VolatilityGauge()
        self._patterns = PatternGauge()
        self._sentiment = SentimentGauge()
        self._swings = Swings(SWING_WING, SWINGS_KEPT)
        self._touch_highs: deque[float] = deque(maxlen=TOUCH_BARS)
        self._touch_lows: deque[float] = deque(maxlen=TOUCH_BARS)
        self._frame: Frame | None = None

    def update(self, closed: ClosedBar) -> None:
        """Add the next closed bar of this timeframe."""
        bar = closed.bar
        opened, high, low, close = map(float, (bar.open, bar.high, bar.low, bar.close))
        self._bars += 1
        self._year.add(bar.open_time)
        self._last = closed
        self._trend.update(opened, high, low, close, float(bar.volume))
        self._momentum.update(high, low, close, float(bar.volume))
        self._volatility.update(high, low, close)
        self._swings.update(bar.close_time, high, low)
        self._momentum.compare(bar.close_time, self._swings.highs, self._swings.lows)
        self._patterns.update(Prices(opened, high, low, close), self._swings.highs, self._swings.lows)
        self._sentiment.update(bar)
        self._touch_highs.append(high)
        self._touch_lows.append(low)
        self._frame = None

    def read(self) -> Frame | None:
        """Return the frame as of the last closed bar, or None before the first bar."""
        # The frame is kept until the next bar, because a snapshot reads all timeframes and most of them have
        # no new bar.
        if self._frame is None and self._last is not None:
            self._frame = self._measured(self._last)
        return self._frame

    def _measured(self, last: ClosedBar) -> Frame:
        volatility = self._volatility.read()
        highs, lows = self._swings.highs, self._swings.lows
        return Frame(
            timeframe=self._timeframe,
            last=last,
            bars=self._bars,
            bars_per_year=self._year.bars,
            trend=self._trend.read(),
            momentum=self._momentum.read(),
            volatility=volatility,
            patterns=self._patterns.read(volatility.atr_14, highs, lows),
            sentiment=self._sentiment.read(),
            swing_highs=highs,
            swing_lows=lows,
            structure=self._swings.structure,
            touch_highs=tuple(self._touch_highs),
            touch_lows=tuple(self._touch_lows),
        )


def _sign(number: float) -> int:
    return (number > 0.0) - (number < 0.0)
