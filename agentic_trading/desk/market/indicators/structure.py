"""Swings, candles and market structure: breaks, sweeps of liquidity, order blocks, fair value gaps."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

DOJI_BODY = 0.1
SMALL_BODY = 1 / 3
LONG_SHADOW = 2.0
SHORT_SHADOW = 0.1
BLOCK_BARS = 20
KEPT = 8


class SwingKind(StrEnum):
    """The side of a swing."""

    HIGH = "high"
    LOW = "low"


class SwingLabel(StrEnum):
    """A swing compared with the swing before it on the same side: higher, lower or equal."""

    HH = "HH"
    LH = "LH"
    EH = "EH"
    HL = "HL"
    LL = "LL"
    EL = "EL"


class Structure(StrEnum):
    """The direction of the last swing high and the last swing low together."""

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Swing:
    """A turning point of the price.

    Attributes:
        at: The close time of its bar.
        confirmed_at: The close time of the bar that confirmed it.
        label: The comparison with the swing before, or None for the first swing of its side.

    """

    kind: SwingKind
    price: float
    at: datetime
    confirmed_at: datetime
    label: SwingLabel | None


@dataclass(frozen=True, slots=True)
class _Point:
    at: datetime
    high: float
    low: float


class Swings:
    """Fractal swings: a bar is a swing high if `wing` bars on either side do not exceed its high.

    The bars before must be strictly lower, and the bars after may be equal, so that the first of several
    equal highs counts. Swing lows are the mirror. A swing is confirmed when the `wing`-th bar after it
    closes, never earlier. The latest `keep` swings of each side are in `highs` and `lows`, oldest first.

    Source: the fractal of Bill Williams, Trading Chaos, 1995, with `wing` 3 instead of his 2.
    """

    __slots__ = ("_keep", "_points", "_wing", "highs", "lows")

    def __init__(self, wing: int = 3, keep: int = 8) -> None:
        self._wing = wing
        self._points: deque[_Point] = deque(maxlen=2 * wing + 1)
        self._keep = keep
        self.highs: tuple[Swing, ...] = ()
        self.lows: tuple[Swing, ...] = ()

    @property
    def structure(self) -> Structure | None:
        """Up on a higher high and a higher low, down on a lower high and a lower low. None without labels."""
        high = self.highs[-1].label if self.highs else None
        low = self.lows[-1].label if self.lows else None
        if high is None or low is None:
            return None
        if (high, low) == (SwingLabel.HH, SwingLabel.HL):
            return Structure.UP
        if (high, low) == (SwingLabel.LH, SwingLabel.LL):
            return Structure.DOWN
        return Structure.MIXED

    def update(self, at: datetime, high: float, low: float) -> None:
        """Add the next bar, which closed at `at`."""
        points = self._points
        points.append(_Point(at, high, low))
        if len(points) != points.maxlen:
            return
        middle, before = points[self._wing], points[self._wing - 1]
        if before.high < middle.high >= points[self._wing + 1].high and self._is_high(middle.high):
            label = _label(self.highs, middle.high, SwingLabel.HH, SwingLabel.LH, SwingLabel.EH)
            swing = Swing(SwingKind.HIGH, middle.high, middle.at, at, label)
            self.highs = (*self.highs, swing)[-self._keep :]
        if before.low > middle.low <= points[self._wing + 1].low and self._is_low(middle.low):
            label = _label(self.lows, middle.low, SwingLabel.HL, SwingLabel.LL, SwingLabel.EL)
            swing = Swing(SwingKind.LOW, middle.low, middle.at, at, label)
            self.lows = (*self.lows, swing)[-self._keep :]

    def _is_high(self, high: float) -> bool:
        points = tuple(self._points)
        before, after = points[: self._wing], points[self._wing + 1 :]
        return all(each.high < high for each in before) and all(each.high <= high for each in after)

    def _is_low(self, low: float) -> bool:
        points = tuple(self._points)
        before, after = points[: self._wing], points[self._wing + 1 :]
        return all(each.low > low for each in before) and all(each.low >= low for each in after)


def _label(
    swings: Sequence[Swing], price: float, higher: SwingLabel, lower: SwingLabel, equal: SwingLabel
) -> SwingLabel | None:
    if not swings:
        return None
    last = swings[-1].price
    if price == last:
        return equal
    return higher if price > last else lower


class Candle(StrEnum):
    """A candle shape. `outside` and `inside` refer to the range, the engulfing shapes to the body."""

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
        """The length of the shadow above the body."""
        return self.high - max(self.open, self.close)

    @property
    def lower(self) -> float:
        """The length of the shadow below the body."""
        return min(self.open, self.close) - self.low


def candles(before: Prices | None, now: Prices) -> tuple[Candle, ...]:
    """Return the shapes of the bar `now` after the bar `before`, in the order of `Candle`.

    A flat bar has no shape.

    - Engulfing: the body has the opposite direction of the body before, covers it, and is larger.
    - Hammer: the body is more than a tenth and at most a third of the range, the lower shadow is at least
      twice the body, and the upper shadow is at most a tenth of the range. A shooting star is the mirror.
    - Doji: the body is at most a tenth of the range.
    - Inside: the range is within the range before, and smaller. Outside: the range exceeds both ends of the
      range before.

    The trend is ignored, because it belongs to layer 1. Source: Steve Nison, Japanese Candlestick Charting
    Techniques, 1991, with round numbers.
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


class Way(StrEnum):
    """A direction."""

    UP = "up"
    DOWN = "down"


class BreakKind(StrEnum):
    """A break in the direction of the last break (break of structure) or against it (change of character)."""

    BOS = "bos"
    CHOCH = "choch"


@dataclass(frozen=True, slots=True)
class Break:
    """A close beyond the latest swing, at bar number `bar` (from 1). `price` is the price of the swing."""

    kind: BreakKind
    way: Way
    price: float
    bar: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """A bar that exceeded the latest swing and closed back. `way` is down if a swing high was swept."""

    way: Way
    price: float
    bar: int


@dataclass(frozen=True, slots=True)
class Zone:
    """A range of prices that bar number `bar` left behind. `way` is up for a possible support."""

    way: Way
    low: float
    high: float
    bar: int


class FairValueGaps:
    """Gaps between the first and the third of three bars.

    In an up gap the low of the third bar is above the high of the first, and the gap is the range between
    them. A down gap is the mirror. A gap closes when a later bar trades through to its far side (for an up
    gap, a low at or below `low`). Only the latest 8 open gaps are kept.

    Source: Michael J. Huddleston's "fair value gap" (Inner Circle Trader), as a rule.
    """

    __slots__ = ("_bars", "_count", "_zones")

    def __init__(self) -> None:
        self._bars: deque[Prices] = deque(maxlen=3)
        self._zones: list[Zone] = []
        self._count = 0

    @property
    def open(self) -> tuple[Zone, ...]:
        """The open gaps, oldest first."""
        return tuple(self._zones)

    def update(self, bar: Prices) -> None:
        """Add the next bar."""
        self._count += 1
        self._bars.append(bar)
        self._zones = [zone for zone in self._zones if _is_untouched(zone, low=bar.low, high=bar.high)]
        if len(self._bars) < 3:
            return
        first = self._bars[0]
        if bar.low > first.high:
            self._zones.append(Zone(Way.UP, first.high, bar.low, self._count))
        elif bar.high < first.low:
            self._zones.append(Zone(Way.DOWN, bar.high, first.low, self._count))
        del self._zones[:-KEPT]


class StructureBreaks:
    """Breaks, sweeps and order blocks at the latest confirmed swing of each side.

    - A close above the latest swing high is a break up. Each swing is broken once. The first break, and a
      break in the direction of the break before, is a break of structure. A break against it is a change of
      character.
    - A high above that swing with a close at or below the swing is a sweep down.
    - The order block of a break is the last of the 20 bars before it that moved in the other direction. It is
      removed when a bar closes beyond its far side.

    The rules for lows are the mirror. Source: the vocabulary of "smart money concepts" (Huddleston), as rules
    over fractal swings.
    """

    __slots__ = ("_bars", "_broken", "_count", "blocks", "last_break", "last_sweep")

    def __init__(self) -> None:
        self._bars: deque[Prices] = deque(maxlen=BLOCK_BARS)
        self._broken: dict[Way, Swing] = {}
        self._count = 0
        self.last_break: Break | None = None
        self.last_sweep: Sweep | None = None
        self.blocks: dict[Way, Zone] = {}

    @property
    def count(self) -> int:
        """The number of bars so far, which is the number of the last bar."""
        return self._count

    def update(self, bar: Prices, highs: Sequence[Swing], lows: Sequence[Swing]) -> None:
        """Add the next bar, with the swings that are confirmed at its close, oldest first."""
        self._count += 1
        self.blocks = {
            way: zone for way, zone in self.blocks.items() if not _is_closed_through(zone, bar.close)
        }
        if highs:
            self._against(bar, highs[-1], Way.UP, reached=bar.high, sign=1)
        if lows:
            self._against(bar, lows[-1], Way.DOWN, reached=bar.low, sign=-1)
        # Added last, because the order block of a break is one of the bars before it.
        self._bars.append(bar)

    def _against(self, bar: Prices, swing: Swing, way: Way, *, reached: float, sign: int) -> None:
        if self._broken.get(way) == swing or sign * (reached - swing.price) <= 0:
            return
        if sign * (bar.close - swing.price) <= 0:
            swept = Way.DOWN if way is Way.UP else Way.UP
            self.last_sweep = Sweep(swept, swing.price, self._count)
            return
        self._broken[way] = swing
        turned = self.last_break is not None and self.last_break.way is not way
        kind = BreakKind.CHOCH if turned else BreakKind.BOS
        self.last_break = Break(kind, way, swing.price, self._count)
        block = self._block(way, sign)
        if block is not None:
            self.blocks[way] = block

    def _block(self, way: Way, sign: int) -> Zone | None:
        for back, bar in enumerate(reversed(self._bars), start=1):
            if sign * (bar.close - bar.open) < 0:
                return Zone(way, bar.low, bar.high, self._count - back)
        return None


def _is_untouched(zone: Zone, *, low: float, high: float) -> bool:
    return low > zone.low if zone.way is Way.UP else high < zone.high


def _is_closed_through(zone: Zone, close: float) -> bool:
    return close < zone.low if zone.way is Way.UP else close > zone.high
