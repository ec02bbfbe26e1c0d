"""What the last candle is called, by rules of its open, high, low and close."""

from dataclasses import dataclass
from enum import StrEnum

DOJI_BODY = 0.1
SMALL_BODY = 1 / 3
LONG_SHADOW = 2.0
SHORT_SHADOW = 0.1


class Candle(StrEnum):
    """A shape that a rule can name; `outside` and `inside` are of the range, the engulfings of the body."""

    BULLISH_ENGULFING = "bullish_engulfing"
    BEARISH_ENGULFING = "bearish_engulfing"
    HAMMER = "hammer"
    SHOOTING_STAR = "shooting_star"
    DOJI = "doji"
    INSIDE = "inside"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Prices:
    """Open, high, low and close of one bar, in units of price."""

    open: float
    high: float
    low: float
    close: float

    @property
    def span(self) -> float:
        return self.high - self.low

    @property
    def body(self) -> float:
        return abs(self.close - self.open)

    @property
    def upper(self) -> float:
        """The shadow above the body."""
        return self.high - max(self.open, self.close)

    @property
    def lower(self) -> float:
        """The shadow below the body."""
        return min(self.open, self.close) - self.low


def candles(before: Prices | None, now: Prices) -> tuple[Candle, ...]:
    """Return every name of the bar `now` after the bar `before`, in the order of `Candle`; a flat bar has none.

    Engulfing: the body turns and covers the body before, and is larger. Hammer: body at most a third of the
    range, lower shadow at least twice the body, upper shadow at most a tenth of the range; a shooting star is
    its mirror. Doji: body at most a tenth of the range. Inside: the range lies within the one before and is
    smaller; outside: it goes beyond both ends. The trend before is not looked at: that is layer 1. Source:
    Steve Nison, Japanese Candlestick Charting Techniques, 1991; the numbers are round ones.
    """
    if now.span <= 0.0:
        return ()
    named = {
        Candle.BULLISH_ENGULFING: before is not None and _engulfs(before, now, rising=True),
        Candle.BEARISH_ENGULFING: before is not None and _engulfs(before, now, rising=False),
        Candle.HAMMER: _is_hammer(now, long=now.lower, short=now.upper),
        Candle.SHOOTING_STAR: _is_hammer(now, long=now.upper, short=now.lower),
        Candle.DOJI: now.body <= DOJI_BODY * now.span,
        Candle.INSIDE: before is not None and _within(now, before) and now.span < before.span,
        Candle.OUTSIDE: before is not None and now.high > before.high and now.low < before.low,
    }
    return tuple(candle for candle, holds in named.items() if holds)


def _engulfs(before: Prices, now: Prices, *, rising: bool) -> bool:
    turned = before.close < before.open if rising else before.close > before.open
    right_way = now.close > now.open if rising else now.close < now.open
    covers = min(now.open, now.close) <= min(before.open, before.close) and (
        max(now.open, now.close) >= max(before.open, before.close)
    )
    return turned and right_way and covers and now.body > before.body


def _is_hammer(bar: Prices, *, long: float, short: float) -> bool:
    small = DOJI_BODY * bar.span < bar.body <= SMALL_BODY * bar.span
    return small and long >= LONG_SHADOW * bar.body and short <= SHORT_SHADOW * bar.span


def _within(inner: Prices, outer: Prices) -> bool:
    return inner.high <= outer.high and inner.low >= outer.low
