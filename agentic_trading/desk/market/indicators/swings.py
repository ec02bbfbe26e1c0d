"""Swing highs and lows, known only once enough bars have closed after them."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


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
    never earlier; the latest `keep` of each side are kept. Source: the fractal of Bill Williams, Trading
    Chaos, 1995, with `wing` 3 where he takes 2.
    """

    __slots__ = ("_highs", "_lows", "_points", "_wing")

    def __init__(self, wing: int = 3, keep: int = 8) -> None:
        self._wing = wing
        self._points: deque[_Point] = deque(maxlen=2 * wing + 1)
        self._highs: deque[Swing] = deque(maxlen=keep)
        self._lows: deque[Swing] = deque(maxlen=keep)

    @property
    def highs(self) -> tuple[Swing, ...]:
        """The latest swing highs, oldest first."""
        return tuple(self._highs)

    @property
    def lows(self) -> tuple[Swing, ...]:
        """The latest swing lows, oldest first."""
        return tuple(self._lows)

    @property
    def structure(self) -> Structure | None:
        """Up on a higher high and a higher low, down on a lower high and a lower low; None without labels."""
        high = self._highs[-1].label if self._highs else None
        low = self._lows[-1].label if self._lows else None
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
        window = tuple(points)
        before, middle, after = window[: self._wing], window[self._wing], window[self._wing + 1 :]
        if all(p.high < middle.high for p in before) and all(p.high <= middle.high for p in after):
            label = _label(self._highs, middle.high, SwingLabel.HH, SwingLabel.LH, SwingLabel.EH)
            self._highs.append(Swing(SwingKind.HIGH, middle.high, middle.at, at, label))
        if all(p.low > middle.low for p in before) and all(p.low >= middle.low for p in after):
            label = _label(self._lows, middle.low, SwingLabel.HL, SwingLabel.LL, SwingLabel.EL)
            self._lows.append(Swing(SwingKind.LOW, middle.low, middle.at, at, label))


def _label(
    swings: deque[Swing], price: float, higher: SwingLabel, lower: SwingLabel, equal: SwingLabel
) -> SwingLabel | None:
    if not swings:
        return None
    last = swings[-1].price
    if price == last:
        return equal
    return higher if price > last else lower
