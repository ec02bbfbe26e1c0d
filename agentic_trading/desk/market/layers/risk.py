"""Layer 6: where a stop could stand, and what each target would pay against it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.indicators.swings import Swing
from agentic_trading.desk.market.layers.features import NO_BAR
from agentic_trading.desk.market.levels import Level, LevelBook
from agentic_trading.desk.market.rounding import price, ratio

STOPS_ATR = (1.0, 1.5, 2.0, 3.0)
REFERENCE_ATR = 2.0
BEYOND_SWING_ATR = 0.25
TARGETS = 4


class PositionSide(StrEnum):
    """Which way a trade would go."""

    LONG = "long"
    SHORT = "short"

    @property
    def sign(self) -> int:
        return 1 if self is PositionSide.LONG else -1


@dataclass(frozen=True, slots=True)
class Stop:
    """A price at which a trade would be given up, and the rule that puts it there."""

    kind: str
    price: float


def risk_layer(book: LevelBook, frame: Frame | None, *, last: float, decision: Timeframe) -> dict[str, Any]:
    """Return stop candidates and targets for a trade either way at the price `last`.

    Stops stand 1, 1.5, 2 and 3 ATR of the decision timeframe away, and a quarter of an ATR beyond its
    last swing on the losing side. Targets are the four nearest levels on the winning side; `rr` is the
    distance to the target over that to the stop of 2 ATR. Without an ATR there is neither.
    """
    atr = frame.volatility.atr_14 if frame else None
    told: dict[str, Any] = {"entry": price(last), "timeframe": decision.value}
    if frame is None or not atr:
        reason = NO_BAR if frame is None else f"needs an ATR: 15 bars that move, has {frame.bars}"
        return {**told, "not_available": {decision.value: reason}}
    not_available: dict[str, str] = {}
    told["atr"] = price(atr)
    for side in PositionSide:
        stops = [*atr_stops(side, last, atr), *swing_stops(side, last, atr, frame)]
        if len(stops) == len(STOPS_ATR):
            not_available[f"{side}.swing_stop"] = "no confirmed swing on the losing side"
        told[side.value] = {
            "stops": [_stop(stop, last) for stop in stops],
            "targets": _targets(side, book.named(), last, atr),
        }
    return {**told, "not_available": not_available}


def atr_stops(side: PositionSide, last: float, atr: float) -> Iterator[Stop]:
    """Yield the stops at fixed multiples of the ATR, nearest first."""
    for multiple in STOPS_ATR:
        yield Stop(f"atr_{multiple}", last - side.sign * multiple * atr)


def swing_stops(side: PositionSide, last: float, atr: float, frame: Frame) -> Iterator[Stop]:
    """Yield the stop beyond the latest swing on the losing side, if there is one."""
    swings: Sequence[Swing] = frame.swing_lows if side is PositionSide.LONG else frame.swing_highs
    for swing in reversed(swings):
        if side.sign * (last - swing.price) > 0:
            yield Stop("swing", swing.price - side.sign * BEYOND_SWING_ATR * atr)
            return


def _stop(stop: Stop, last: float) -> dict[str, Any]:
    return {
        "kind": stop.kind,
        "price": price(stop.price),
        "distance_pct": ratio(100.0 * abs(stop.price - last) / last),
    }


def _targets(side: PositionSide, levels: Sequence[Level], last: float, atr: float) -> list[dict[str, Any]]:
    ahead = sorted(
        (side.sign * (level.price - last), level.name, level)
        for level in levels
        if side.sign * (level.price - last) > 0
    )
    return [
        {"level": name, "price": price(level.price), "rr": ratio(distance / (REFERENCE_ATR * atr))}
        for distance, name, level in ahead[:TARGETS]
    ]
