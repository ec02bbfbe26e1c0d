"""Layer 2: support, resistance and the other prices to watch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.indicators.swings import Swing
from agentic_trading.desk.market.layers.features import LayerFeatures
from agentic_trading.desk.market.levels import SWINGS_TOLD, Level, LevelBook, Period
from agentic_trading.desk.market.rounding import price, ratio, stamp

TOUCH_ATR = 0.25
NEAREST = 4


def levels_layer(
    frames: Mapping[Timeframe, Frame], book: LevelBook, *, last: float, decision: Timeframe
) -> dict[str, Any]:
    """Return the levels by kind, and the four nearest on either side of the price `last`.

    Distances are in ATR of the decision timeframe, positive above the price. `touches` counts the bars
    among the last 100 of a swing's timeframe whose high (for a swing high) or low came within a quarter
    of an ATR of it, its own bar included; without an ATR it is left out.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    _note_absent(sheet, book)
    return {
        "close": price(last),
        "decision_timeframe": decision.value,
        "swings": {frame.timeframe.value: _swings(frame) for frame in present},
        "round": {"below": price(book.round_below), "above": price(book.round_above)},
        **_periods(book),
        **_derived(book),
        "nearest": _nearest(book.named(), last, frames.get(decision)),
        "not_available": sheet.not_available,
    }


def _note_absent(sheet: LayerFeatures, book: LevelBook) -> None:
    absent = {
        "prior_day": (book.prior_day, "no closed day yet"),
        "prior_week": (book.prior_week, "no day of the week before is known"),
        "pivots": (book.pivots, "no closed day yet"),
        "fib": (book.leg, "needs a confirmed swing high and low at different bars"),
        "volume_profile": (book.profile, "needs 288 bars of 5m with volume"),
    }
    for name, (value, reason) in absent.items():
        if value is None:
            sheet.not_available[name] = reason


def _swings(frame: Frame) -> dict[str, Any]:
    return {
        "highs": [_swing(frame, swing, frame.touch_highs) for swing in frame.swing_highs[-SWINGS_TOLD:]],
        "lows": [_swing(frame, swing, frame.touch_lows) for swing in frame.swing_lows[-SWINGS_TOLD:]],
    }


def _swing(frame: Frame, swing: Swing, extremes: Sequence[float]) -> dict[str, Any]:
    told: dict[str, Any] = {"price": price(swing.price), "at": stamp(swing.at)}
    if swing.label is not None:
        told["label"] = swing.label.value
    atr = frame.volatility.atr_14
    if atr:
        told["touches"] = sum(abs(extreme - swing.price) <= TOUCH_ATR * atr for extreme in extremes)
    return told


def _periods(book: LevelBook) -> dict[str, Any]:
    periods = {"prior_day": book.prior_day, "prior_week": book.prior_week}
    return {name: _period(period) for name, period in periods.items() if period is not None}


def _period(period: Period) -> dict[str, Any]:
    return {
        "opened": stamp(period.opened),
        "high": price(period.high),
        "low": price(period.low),
        "close": price(period.close),
        "parts": period.parts,
        "expected": period.expected,
    }


def _derived(book: LevelBook) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if book.pivots is not None:
        told["pivots"] = {name: price(value) for name, value in asdict(book.pivots).items()}
    if book.leg is not None:
        told["fib"] = {
            "from": price(book.leg.start.price),
            "to": price(book.leg.end.price),
            **{share: price(value) for share, value in book.leg.retracements.items()},
        }
    if book.profile is not None:
        told["volume_profile"] = {name: price(value) for name, value in asdict(book.profile).items()}
    return told


def _nearest(levels: Sequence[Level], last: float, frame: Frame | None) -> dict[str, Any]:
    by_distance = sorted(levels, key=lambda level: (abs(level.price - last), level.name))
    above = [level for level in by_distance if level.price > last][:NEAREST]
    below = [level for level in by_distance if level.price <= last][:NEAREST]
    return {
        "above": [_told(level, last, frame) for level in above],
        "below": [_told(level, last, frame) for level in below],
    }


def _told(level: Level, last: float, frame: Frame | None) -> dict[str, Any]:
    told: dict[str, Any] = {"level": level.name, "price": price(level.price)}
    distance = ratio(frame.in_atr(level.price - last)) if frame else None
    if distance is not None:
        told["distance_atr"] = distance
    return told
