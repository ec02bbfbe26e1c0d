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
    """Which side of the price a swing is on."""

    HIGH = "high"
    LOW = "low"


class SwingLabel(StrEnum):
    """How a swing compares with the one before it on the same side: higher, lower or equal."""

    HH = "HH"
    LH = "LH"
    EH = "EH"
    HL = "HL"
    LL = "LL"
    EL = "EL"


class Structure(StrEnum):
    """What the last swing high and the last swing low say together."""

    UP = "up"
    DOWN = "down"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Swing:
    """A turning point; `at` is the close of its bar, `confirmed_at` that of the bar that proved it.

    `label` is None for the first swing of its side.
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
    """Fractal swings: a bar is a swing high if `wing` bars on either side do not pass its high.

    Of several equal highs in a row the first one counts: the bars before must be strictly lower, those
    after may be equal. Swing lows mirror this. A swing is given when the `wing`-th bar after it closes,
    never earlier; the latest `keep` of each side are in `highs` and `lows`, oldest first. Source: the fractal of Bill Williams, Trading
    Chaos, 1995, with `wing` 3 where he takes 2.
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
        """Up on a higher high and a higher low, down on a lower high and a lower low; None without labels."""
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
        """Take the next bar, which closed at `at`."""
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


class Way(StrEnum):
    """Which way something points."""

    UP = "up"
    DOWN = "down"


class BreakKind(StrEnum):
    """A break with the last one (break of structure) or against it (change of character)."""

    BOS = "bos"
    CHOCH = "choch"


@dataclass(frozen=True, slots=True)
class Break:
    """A close beyond the latest swing, at bar number `bar` (from 1); `price` is that of the swing."""

    kind: BreakKind
    way: Way
    price: float
    bar: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """A bar that went beyond the latest swing and closed back; `way` is where it points: down if highs were swept."""

    way: Way
    price: float
    bar: int


@dataclass(frozen=True, slots=True)
class Zone:
    """Prices from `low` to `high` left behind at bar number `bar`; `way` is up for one that may hold as support."""

    way: Way
    low: float
    high: float
    bar: int


class FairValueGaps:
    """Gaps between the first and the third of three bars that the middle one ran through.

    Up: the third low is above the first high, and the gap is what lies between; down is the mirror. A gap is
    closed when a later bar trades through to its far side (for an up gap: a low at or below `low`). The latest
    8 are kept, open ones only. Source: Michael J. Huddleston's "fair value gap" (Inner Circle Trader), as a rule.
    """

    __slots__ = ("_bars", "_count", "_zones")

    def __init__(self) -> None:
        self._bars: deque[Prices] = deque(maxlen=3)
        self._zones: list[Zone] = []
        self._count = 0

    @property
    def open(self) -> tuple[Zone, ...]:
        """The gaps that are still open, oldest first."""
        return tuple(self._zones)

    def update(self, bar: Prices) -> None:
        """Take the next bar."""
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
    """Breaks, sweeps and order blocks against the latest confirmed swing of either side.

    A close above the latest swing high is a break up, once a swing; with the break before it or without one it
    is a break of structure, against it a change of character. A high above that swing with a close at or below
    it is a sweep down. The order block of a break is the last bar of the 20 before it that went the other way;
    it is given up when a bar closes beyond its far side. All of it mirrored for lows. Source: the vocabulary of
    "smart money concepts" (Huddleston), as rules over fractal swings.
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
        """How many bars there were: the number of the last one."""
        return self._count

    def update(self, bar: Prices, highs: Sequence[Swing], lows: Sequence[Swing]) -> None:
        """Take the next bar and the swings that are confirmed at its close, oldest first."""
        self._count += 1
        self.blocks = {
            way: zone for way, zone in self.blocks.items() if not _is_closed_through(zone, bar.close)
        }
        if highs:
            self._against(bar, highs[-1], Way.UP, reached=bar.high, sign=1)
        if lows:
            self._against(bar, lows[-1], Way.DOWN, reached=bar.low, sign=-1)
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
