"""How price treats its own swings: breaks of structure, swept liquidity, order blocks, fair value gaps."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentic_trading.desk.market.indicators.candles import Prices
from agentic_trading.desk.market.indicators.swings import Swing

BLOCK_BARS = 20
KEPT = 8


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
