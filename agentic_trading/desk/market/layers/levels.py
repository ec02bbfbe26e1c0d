"""Layers 2, 3 and 6 as plain values: price levels, patterns, and the stops and targets of a trade."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.indicators.structure import Swing, Zone
from agentic_trading.desk.market.layers.features import NO_BAR, LayerFeatures, features_by_timeframe
from agentic_trading.desk.market.levels import SWINGS_SHOWN, Level, Period, PriceLevels
from agentic_trading.desk.market.patterns import Double
from agentic_trading.desk.prompts import price, ratio, stamp

TOUCH_ATR = 0.25
NEAREST = 4
STOPS_ATR = (1.0, 1.5, 2.0, 3.0)
REFERENCE_ATR = 2.0
BEYOND_SWING_ATR = 0.25
TARGETS = 4
GAPS_SHOWN = 3


def levels_layer(
    frames: Mapping[Timeframe, Frame], levels: PriceLevels, *, last: float, decision: Timeframe
) -> dict[str, Any]:
    """Return the levels by kind, and the four nearest levels on either side of the price `last`.

    Distances are in ATR of the decision timeframe, positive above the price. `touches` counts bars among the
    last 100 of a swing's timeframe, including the bar of the swing: those whose high (for a swing high) or
    low is within a quarter of an ATR of the swing. Without an ATR it is left out.
    """
    features = LayerFeatures()
    present = features.frames(frames)
    _note_absent(features, levels)
    return {
        "close": price(last),
        "decision_timeframe": decision.value,
        "swings": {frame.timeframe.value: _swings(frame) for frame in present},
        "round": {"below": price(levels.round_below), "above": price(levels.round_above)},
        **_periods(levels),
        **_derived(levels),
        "nearest": _nearest(levels.named, last, frames.get(decision)),
        "not_available": features.not_available,
    }


def _note_absent(features: LayerFeatures, levels: PriceLevels) -> None:
    absent = {
        "prior_day": (levels.prior_day, "no closed day yet"),
        "prior_week": (levels.prior_week, "no day of the week before is known"),
        "pivots": (levels.pivots, "no closed day yet"),
        "fib": (levels.leg, "needs a confirmed swing high and low at different bars"),
        "volume_profile": (levels.profile, "needs 288 bars of 5m with volume"),
    }
    for name, (value, reason) in absent.items():
        if value is None:
            features.not_available[name] = reason


def _swings(frame: Frame) -> dict[str, Any]:
    return {
        "highs": [_swing(frame, swing, frame.touch_highs) for swing in frame.swing_highs[-SWINGS_SHOWN:]],
        "lows": [_swing(frame, swing, frame.touch_lows) for swing in frame.swing_lows[-SWINGS_SHOWN:]],
    }


def _swing(frame: Frame, swing: Swing, extremes: Sequence[float]) -> dict[str, Any]:
    content: dict[str, Any] = {"price": price(swing.price), "at": stamp(swing.at)}
    if swing.label is not None:
        content["label"] = swing.label.value
    atr = frame.volatility.atr_14
    if atr:
        at, reach = swing.price, TOUCH_ATR * atr
        content["touches"] = len([extreme for extreme in extremes if -reach <= extreme - at <= reach])
    return content


def _periods(levels: PriceLevels) -> dict[str, Any]:
    periods = {"prior_day": levels.prior_day, "prior_week": levels.prior_week}
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


def _derived(levels: PriceLevels) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if levels.pivots is not None:
        content["pivots"] = {name: price(value) for name, value in levels.pivots.prices.items()}
    if levels.leg is not None:
        content["fib"] = {
            "from": price(levels.leg.start.price),
            "to": price(levels.leg.end.price),
            **{share: price(value) for share, value in levels.leg.retracements.items()},
        }
    if levels.profile is not None:
        content["volume_profile"] = {name: price(value) for name, value in levels.profile.prices.items()}
    return content


def _nearest(levels: Sequence[Level], last: float, frame: Frame | None) -> dict[str, Any]:
    by_distance = sorted(levels, key=lambda level: (abs(level.price - last), level.name))
    above = [level for level in by_distance if level.price > last][:NEAREST]
    below = [level for level in by_distance if level.price <= last][:NEAREST]
    return {
        "above": [_level(level, last, frame) for level in above],
        "below": [_level(level, last, frame) for level in below],
    }


def _level(level: Level, last: float, frame: Frame | None) -> dict[str, Any]:
    content: dict[str, Any] = {"level": level.name, "price": price(level.price)}
    distance = ratio(frame.in_atr(level.price - last)) if frame else None
    if distance is not None:
        content["distance_atr"] = distance
    return content


class PositionSide(StrEnum):
    """The side of a trade."""

    LONG = "long"
    SHORT = "short"

    @property
    def sign(self) -> int:
        return 1 if self is PositionSide.LONG else -1


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop price, and the rule that sets it."""

    kind: str
    price: float


def risk_layer(
    levels: PriceLevels, frame: Frame | None, *, last: float, decision: Timeframe
) -> dict[str, Any]:
    """Return stop candidates and targets for a long and a short trade at the price `last`.

    Stops are 1, 1.5, 2 and 3 ATR of the decision timeframe away, and a quarter of an ATR beyond the last
    swing on the losing side. Targets are the four nearest levels on the winning side. `rr` is the distance to
    the target divided by the distance to the stop of 2 ATR. Without an ATR there are no stops and no targets.
    """
    atr = frame.volatility.atr_14 if frame else None
    content: dict[str, Any] = {"entry": price(last), "timeframe": decision.value}
    if frame is None or not atr:
        reason = NO_BAR if frame is None else f"needs an ATR: 15 bars that move, has {frame.bars}"
        return {**content, "not_available": {decision.value: reason}}
    not_available: dict[str, str] = {}
    content["atr"] = price(atr)
    for side in PositionSide:
        stops = [*atr_stops(side, last, atr), *swing_stops(side, last, atr, frame)]
        if len(stops) == len(STOPS_ATR):
            not_available[f"{side}.swing_stop"] = "no confirmed swing on the losing side"
        content[side.value] = {
            "stops": [_stop(stop, last) for stop in stops],
            "targets": _targets(side, levels.named, last, atr),
        }
    return {**content, "not_available": not_available}


def atr_stops(side: PositionSide, last: float, atr: float) -> Iterator[Stop]:
    """Yield the stops at fixed multiples of the ATR, nearest first."""
    for multiple in STOPS_ATR:
        yield Stop(f"atr_{multiple}", last - side.sign * multiple * atr)


def swing_stops(side: PositionSide, last: float, atr: float, frame: Frame) -> Iterator[Stop]:
    """Yield the stop beyond the latest swing on the losing side, if that side has a swing."""
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


def patterns_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return candles, narrow and wide bars, squeezes, doubles and market structure of each timeframe.

    Patterns that were not found are left out. `bars_ago` is 0 for the last bar. Distances are in ATR of the
    same timeframe, positive above the close. The distance of a zone is that of its nearer edge, and 0 inside
    the zone. Gaps are the last 3 open ones, oldest first.
    """
    return features_by_timeframe("patterns", frames, _patterns_of)


def _patterns_of(features: LayerFeatures, frame: Frame) -> dict[str, Any]:
    found = frame.patterns
    flags = features.keep(
        frame, {"narrow_7": found.narrow_7, "wide_range": found.wide_range, "squeeze": found.squeeze}
    )
    content: dict[str, Any] = {"candles": [candle.value for candle in found.candles], **flags}
    if found.last_break is not None:
        content["break"] = {
            "kind": found.last_break.kind.value,
            "way": found.last_break.way.value,
            "price": price(found.last_break.price),
            "bars_ago": found.bar - found.last_break.bar,
        }
    if found.last_sweep is not None:
        content["sweep"] = {
            "way": found.last_sweep.way.value,
            "price": price(found.last_sweep.price),
            "bars_ago": found.bar - found.last_sweep.bar,
        }
    doubles = {"double_top": found.double_top, "double_bottom": found.double_bottom}
    content |= {name: _double(double) for name, double in doubles.items() if double is not None}
    content["order_blocks"] = [_zone(frame, zone) for zone in found.blocks]
    content["gaps"] = [_zone(frame, zone) for zone in found.gaps[-GAPS_SHOWN:]]
    return content


def _double(double: Double) -> dict[str, Any]:
    return {
        "price": price(double.price),
        "neckline": price(double.neckline),
        "confirmed": double.confirmed,
    }


def _zone(frame: Frame, zone: Zone) -> dict[str, Any]:
    nearest = min(max(frame.close, zone.low), zone.high)
    content = {
        "way": zone.way.value,
        "low": price(zone.low),
        "high": price(zone.high),
        "bars_ago": frame.patterns.bar - zone.bar,
    }
    distance = ratio(frame.in_atr(nearest - frame.close))
    return content if distance is None else {**content, "distance_atr": distance}
