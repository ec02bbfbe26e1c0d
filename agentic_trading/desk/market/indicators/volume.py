"""Volume indicators: the volume profile over prices, and the direction of volume and money."""

from collections import deque
from dataclasses import dataclass
from math import fsum

FLAT = 1e-12  # of the price. Typical prices this close count as equal, because a division by 3 rounds.


@dataclass(frozen=True, slots=True)
class Profile:
    """Point of control and value area, in units of price. `val <= poc <= vah`."""

    poc: float
    vah: float
    val: float

    @property
    def prices(self) -> dict[str, float]:
        return {"poc": self.poc, "vah": self.vah, "val": self.val}


class VolumeProfile:
    """Volume at price over the last `period` bars.

    The value is None before `period` bars, and without any volume.

    The range from the lowest low to the highest high is divided into `bins` of equal height. The volume of a
    bar is spread evenly over the bar's range. A bar without a range adds all its volume to one bin.

    The point of control is the middle of the fullest bin, the lowest of equal ones. The value area starts
    there and adds the fuller neighbour, the upper of equal ones, until it has `share` of all volume. Its
    bounds are the outer edges of its outer bins.

    Source: the value area of J. Peter Steidlmayer's Market Profile (CBOT, 1985), bin by bin, with volume
    instead of time.
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
        """The profile. It is computed on access, which takes about 1 ms for 288 bars."""
        if self._stale:
            self._stale = False
            self._value = self._computed() if len(self._bars) == self._bars.maxlen else None
        return self._value

    def update(self, high: float, low: float, volume: float) -> None:
        """Add the next bar."""
        self._bars.append((high, low, volume))
        self._stale = True

    def _computed(self) -> Profile | None:
        highs, lows, volumes = zip(*self._bars, strict=True)
        bottom, top, total = min(lows), max(highs), fsum(volumes)
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
        edges = [bottom + index * height for index in range(self._bins)]
        for high, low, volume in self._bars:
            first_bin = int((low - bottom) / height)
            last_bin = int((high - bottom) / height)
            if last_bin > last:
                last_bin = last
            if first_bin >= last_bin:
                filled[last_bin] += volume
                continue
            span = high - low
            for index in range(first_bin, last_bin + 1):
                lower = edges[index]
                upper = lower + height
                if upper > high:
                    upper = high
                if lower < low:
                    lower = low
                if upper > lower:
                    filled[index] += volume * (upper - lower) / span
        return filled


def value_area(filled: list[float], peak: int, wanted: float) -> tuple[int, int]:
    """Return the first and last bin of the area that grows from `peak` until it has the volume `wanted`."""
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


class OBV:
    """On-balance volume: the running sum of volume, with the volume of bars that close lower subtracted.

    It starts at the volume of the first bar, as in TA-Lib. Only its change has a meaning, not its level.
    `slope` is its change over the last `period` bars divided by their total volume, -1 to 1. `slope` is None
    before `period + 1` bars, and without any volume. Source: Joseph E. Granville, Granville's New Key to
    Stock Market Profits, 1963.
    """

    __slots__ = ("_last", "_signed", "_volumes", "value")

    def __init__(self, period: int = 20) -> None:
        self._signed: deque[float] = deque(maxlen=period)
        self._volumes: deque[float] = deque(maxlen=period)
        self._last: float | None = None
        self.value: float | None = None

    @property
    def slope(self) -> float | None:
        traded = fsum(self._volumes)
        if len(self._volumes) < (self._volumes.maxlen or 0) or traded <= 0.0:
            return None
        return fsum(self._signed) / traded

    def update(self, close: float, volume: float) -> float:
        """Add the next bar, and return the sum."""
        last, self._last = self._last, close
        if last is None or self.value is None:
            self.value = volume
            return self.value
        signed = volume * ((close > last) - (close < last))
        self.value += signed
        self._signed.append(signed)
        self._volumes.append(volume)
        return self.value


class MFI:
    """Money flow index in 0..100: the share of rising bars in the money of the last `period` bars.

    The typical price is (high + low + close) / 3. The money of a bar is that price times its volume. It
    counts as rising or falling against the typical price before, and is ignored if the two are equal. The
    index is None before `period + 1` bars, and if all money is ignored.

    Source: Gene Quong and Avrum Soudack, Volume-Weighted RSI: Money Flow, Technical Analysis of Stocks &
    Commodities, 1989.
    """

    __slots__ = ("_falling", "_last", "_rising")

    def __init__(self, period: int = 14) -> None:
        self._rising: deque[float] = deque(maxlen=period)
        self._falling: deque[float] = deque(maxlen=period)
        self._last: float | None = None

    @property
    def value(self) -> float | None:
        rising, falling = fsum(self._rising), fsum(self._falling)
        if len(self._rising) < (self._rising.maxlen or 0) or rising + falling <= 0.0:
            return None
        return 100.0 * (rising / (rising + falling))

    def update(self, high: float, low: float, close: float, volume: float) -> None:
        """Add the next bar."""
        typical = (high + low + close) / 3
        last, self._last = self._last, typical
        if last is not None:
            step = typical - last
            moved = typical * volume if abs(step) > FLAT * last else 0.0
            self._rising.append(moved if step > 0.0 else 0.0)
            self._falling.append(moved if step < 0.0 else 0.0)


class RollingVWAP:
    """Volume-weighted average of the typical prices of the last `period` bars, in units of price.

    The value is None before `period` bars, and without any volume. The window rolls, because a market that
    never closes has no session to start from. Source: Stephen A. Berkowitz, Dennis E. Logue and Eugene A.
    Noser, The Total Cost of Transactions on the NYSE, 1988.
    """

    __slots__ = ("_money", "_volumes")

    def __init__(self, period: int = 20) -> None:
        self._money: deque[float] = deque(maxlen=period)
        self._volumes: deque[float] = deque(maxlen=period)

    @property
    def value(self) -> float | None:
        traded = fsum(self._volumes)
        if len(self._volumes) < (self._volumes.maxlen or 0) or traded <= 0.0:
            return None
        return fsum(self._money) / traded

    def update(self, high: float, low: float, close: float, volume: float) -> None:
        """Add the next bar."""
        self._money.append((high + low + close) / 3 * volume)
        self._volumes.append(volume)
