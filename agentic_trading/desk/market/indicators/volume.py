"""What volume says: its profile over prices, and the direction of the money that traded."""

from collections import deque
from dataclasses import dataclass
from math import fsum

FLAT = 1e-12  # of the price: typical prices this close differ by the rounding of a third


@dataclass(frozen=True, slots=True)
class Profile:
    """Point of control and value area, in units of price; `val <= poc <= vah`."""

    poc: float
    vah: float
    val: float

    @property
    def prices(self) -> dict[str, float]:
        return {"poc": self.poc, "vah": self.vah, "val": self.val}


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


class OBV:
    """On-balance volume: the running sum of volume, taken away where the close is below the one before.

    Starts at the volume of the first bar, as TA-Lib does; its level says nothing, only its change does.
    `slope` is what it gained over the last `period` bars in parts of all that traded in them, -1 to 1; None before
    `period + 1` bars, and while nothing has traded. Source: Joseph E. Granville, Granville's New Key to Stock
    Market Profits, 1963.
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
        """Take the next bar; return the sum."""
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
    """Money flow index in 0..100: the share of rising typical prices in the money of the last `period` bars.

    The typical price is (high + low + close) / 3, the money of a bar that price times its volume; it counts as
    rising or falling against the typical price before, and not at all where that is the same. None before
    `period + 1` bars, and while no money moved either way. Source: Gene Quong and Avrum Soudack, Volume-Weighted
    RSI: Money Flow, Technical Analysis of Stocks & Commodities, 1989.
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
        """Take the next bar."""
        typical = (high + low + close) / 3
        last, self._last = self._last, typical
        if last is not None:
            step = typical - last
            moved = typical * volume if abs(step) > FLAT * last else 0.0
            self._rising.append(moved if step > 0.0 else 0.0)
            self._falling.append(moved if step < 0.0 else 0.0)


class RollingVWAP:
    """Volume-weighted average of the typical prices of the last `period` bars, in units of price.

    None before `period` bars, and while nothing has traded. A rolling one, since a market that never closes has no
    session to begin with. Source: Stephen A. Berkowitz, Dennis E. Logue and Eugene A. Noser, The Total Cost of
    Transactions on the NYSE, 1988.
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
        """Take the next bar."""
        self._money.append((high + low + close) / 3 * volume)
        self._volumes.append(volume)
