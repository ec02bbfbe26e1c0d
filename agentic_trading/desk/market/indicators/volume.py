"""Where volume traded: the profile over the latest bars."""

from collections import deque
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, slots=True)
class Profile:
    """Point of control and value area, in units of price; `val <= poc <= vah`."""

    poc: float
    vah: float
    val: float


class VolumeProfile:
    """Volume at price over the last `period` bars; None before that many, or while nothing has traded.

    The span from the lowest low to the highest high is cut into `bins` of equal height. A bar's volume is
    spread evenly over its own range; a bar without a range gives all of it to one bin. The point of control
    is the middle of the fullest bin, the lower one of equals. The value area starts there and takes the
    fuller neighbour, the upper one of equals, until it holds `share` of all volume; its bounds are the
    outer edges of its outer bins. Source: the value area of J. Peter Steidlmayer's Market Profile (CBOT,
    1985), taken bin by bin and on volume in place of time.
    """

    __slots__ = ("_bars", "_bins", "_share", "_stale", "_value")

    def __init__(self, period: int, bins: int = 50, share: float = 0.7) -> None:
        self._bars: deque[tuple[float, float, float]] = deque(maxlen=period)
        self._bins = bins
        self._share = share
        self._stale = False
        self._value: Profile | None = None

    @property
    def value(self) -> Profile | None:
        """The profile; computed when it is asked for, about 1 ms for 288 bars."""
        if self._stale:
            self._stale = False
            self._value = self._computed() if len(self._bars) == self._bars.maxlen else None
        return self._value

    def update(self, high: float, low: float, volume: float) -> None:
        """Take the next bar."""
        self._bars.append((high, low, volume))
        self._stale = True

    def _computed(self) -> Profile | None:
        bottom = min(low for _, low, _ in self._bars)
        top = max(high for high, _, _ in self._bars)
        total = fsum(volume for _, _, volume in self._bars)
        if total <= 0.0:
            return None
        if top == bottom:
            return Profile(poc=top, vah=top, val=top)
        height = (top - bottom) / self._bins
        filled = self._filled(bottom, height)
        peak = max(range(self._bins), key=filled.__getitem__)
        lower, upper = value_area(filled, peak, self._share * total)
        return Profile(
            poc=bottom + (peak + 0.5) * height,
            vah=bottom + (upper + 1) * height,
            val=bottom + lower * height,
        )

    def _filled(self, bottom: float, height: float) -> list[float]:
        filled = [0.0] * self._bins
        last = self._bins - 1
        for high, low, volume in self._bars:
            first_bin = min(int((low - bottom) / height), last)
            last_bin = min(int((high - bottom) / height), last)
            if first_bin == last_bin:
                filled[first_bin] += volume
                continue
            for index in range(first_bin, last_bin + 1):
                edge = bottom + index * height
                overlap = min(high, edge + height) - max(low, edge)
                filled[index] += volume * max(overlap, 0.0) / (high - low)
        return filled


def value_area(filled: list[float], peak: int, wanted: float) -> tuple[int, int]:
    """Return the first and last bin of the area that grows from `peak` until it holds `wanted`."""
    lower = upper = peak
    held = filled[peak]
    while held < wanted and (lower > 0 or upper < len(filled) - 1):
        below = filled[lower - 1] if lower > 0 else -1.0
        above = filled[upper + 1] if upper < len(filled) - 1 else -1.0
        if above >= below:
            upper += 1
            held += above
        else:
            lower -= 1
            held += below
    return lower, upper
