"""What the tape says about those who trade: who pays the spread, how often, and for how long in one direction."""

from collections import deque
from dataclasses import dataclass
from math import fsum, sqrt

from agentic_trading.desk.market.bar import Bar

WINDOW = 20


@dataclass(frozen=True, slots=True)
class SentimentReading:
    """Behaviour on one timeframe; None is what the bars so far, or their source, do not give.

    `taker_buy_pct` is the share of the last bar's volume that buyers took from the book, in percent, and
    `taker_buy_20_pct` that of the last 20 bars together. `trades` counts the last bar's trades; `trades_z` and
    `volume_z` are distances from the mean of the last 20 bars, the last one included, in their sample standard
    deviations. `streak` counts the closes in a row above (positive) or below the one before. `gap` is the open
    less the close before, in units of price.
    """

    taker_buy_pct: float | None
    taker_buy_20_pct: float | None
    trades: int | None
    trades_z: float | None
    volume_z: float | None
    streak: int | None
    gap: float | None
    has_takers: bool
    has_trades: bool


class SentimentGauge:
    """Measure behaviour bar by bar."""

    __slots__ = ("_close", "_gap", "_streak", "_takers", "_trades", "_volumes")

    def __init__(self) -> None:
        self._volumes: deque[float] = deque(maxlen=WINDOW)
        self._takers: deque[float | None] = deque(maxlen=WINDOW)
        self._trades: deque[int | None] = deque(maxlen=WINDOW)
        self._close: float | None = None
        self._gap: float | None = None
        self._streak = 0

    def update(self, bar: Bar) -> None:
        """Take the next bar."""
        close, before = float(bar.close), self._close
        self._volumes.append(float(bar.volume))
        self._takers.append(None if bar.taker_buy_volume is None else float(bar.taker_buy_volume))
        self._trades.append(bar.trades)
        if before is not None:
            self._gap = float(bar.open) - before
            step = (close > before) - (close < before)
            self._streak = self._streak + step if step * self._streak > 0 else step
        self._close = close

    def read(self) -> SentimentReading:
        """Return the measures as of the last bar."""
        return SentimentReading(
            taker_buy_pct=_share_pct(list(self._takers)[-1:], list(self._volumes)[-1:]),
            taker_buy_20_pct=_share_pct(self._takers, self._volumes)
            if len(self._volumes) == WINDOW
            else None,
            trades=self._trades[-1] if self._trades else None,
            trades_z=_z_score(self._trades),
            volume_z=_z_score(self._volumes),
            streak=None if self._gap is None else self._streak,
            gap=self._gap,
            has_takers=bool(self._takers) and self._takers[-1] is not None,
            has_trades=bool(self._trades) and self._trades[-1] is not None,
        )


def _share_pct(
    parts: deque[float | None] | list[float | None], wholes: deque[float] | list[float]
) -> float | None:
    known = [part for part in parts if part is not None]
    whole = fsum(wholes)
    return 100.0 * fsum(known) / whole if known and len(known) == len(parts) and whole > 0.0 else None


def _z_score(values: deque[float] | deque[int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    if len(known) < WINDOW:
        return None
    mean = fsum(known) / WINDOW
    deviation = sqrt(fsum((value - mean) ** 2 for value in known) / (WINDOW - 1))
    return (known[-1] - mean) / deviation if deviation > 0.0 else None
