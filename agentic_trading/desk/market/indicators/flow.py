"""Volume with a direction: on-balance volume, money flow index, the price that volume paid."""

from collections import deque
from math import fsum

FLAT = 1e-12  # of the price: typical prices this close differ by the rounding of a third


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

    def update(self, high: float, low: float, close: float, volume: float) -> float | None:
        """Take the next bar; return the index."""
        typical = (high + low + close) / 3
        last, self._last = self._last, typical
        if last is not None:
            step = typical - last
            moved = typical * volume if abs(step) > FLAT * last else 0.0
            self._rising.append(moved if step > 0.0 else 0.0)
            self._falling.append(moved if step < 0.0 else 0.0)
        return self.value


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

    def update(self, high: float, low: float, close: float, volume: float) -> float | None:
        """Take the next bar; return the average."""
        self._money.append((high + low + close) / 3 * volume)
        self._volumes.append(volume)
        return self.value
