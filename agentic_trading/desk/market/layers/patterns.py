"""Layer 3: the patterns that rules can find; what needs an eye is left to it."""

from collections.abc import Mapping
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.gauges.patterns import Double
from agentic_trading.desk.market.indicators.structure import Zone
from agentic_trading.desk.market.layers.features import LayerFeatures
from agentic_trading.desk.market.layers.missing_features import UNSOURCED
from agentic_trading.desk.market.rounding import price, ratio

GAPS_TOLD = 3


def patterns_layer(frames: Mapping[Timeframe, Frame]) -> dict[str, Any]:
    """Return candles, narrow and wide bars, squeezes, doubles and market structure of each timeframe.

    What was not found is left out; `bars_ago` is 0 for the last bar. Distances are in ATR of the same
    timeframe, positive above the close: for a zone, that of its nearer edge, 0 inside it. Gaps are the last 3
    open ones, oldest first.
    """
    sheet = LayerFeatures()
    present = sheet.frames(frames)
    sheet.not_available |= UNSOURCED["patterns"]
    return {
        "timeframes": {frame.timeframe.value: _one(sheet, frame) for frame in present},
        "not_available": sheet.not_available,
    }


def _one(sheet: LayerFeatures, frame: Frame) -> dict[str, Any]:
    found = frame.patterns
    flags = sheet.keep(
        frame, {"narrow_7": found.narrow_7, "wide_range": found.wide_range, "squeeze": found.squeeze}
    )
    told: dict[str, Any] = {"candles": [candle.value for candle in found.candles], **flags}
    if found.last_break is not None:
        told["break"] = {
            "kind": found.last_break.kind.value,
            "way": found.last_break.way.value,
            "price": price(found.last_break.price),
            "bars_ago": found.bar - found.last_break.bar,
        }
    if found.last_sweep is not None:
        told["sweep"] = {
            "way": found.last_sweep.way.value,
            "price": price(found.last_sweep.price),
            "bars_ago": found.bar - found.last_sweep.bar,
        }
    doubles = {"double_top": found.double_top, "double_bottom": found.double_bottom}
    told |= {name: _double(double) for name, double in doubles.items() if double is not None}
    told["order_blocks"] = [_zone(frame, zone) for zone in found.blocks]
    told["gaps"] = [_zone(frame, zone) for zone in found.gaps[-GAPS_TOLD:]]
    return told


def _double(double: Double) -> dict[str, Any]:
    return {
        "price": price(double.price),
        "neckline": price(double.neckline),
        "confirmed": double.confirmed,
    }


def _zone(frame: Frame, zone: Zone) -> dict[str, Any]:
    nearest = min(max(frame.close, zone.low), zone.high)
    told = {
        "way": zone.way.value,
        "low": price(zone.low),
        "high": price(zone.high),
        "bars_ago": frame.patterns.bar - zone.bar,
    }
    distance = ratio(frame.in_atr(nearest - frame.close))
    return told if distance is None else {**told, "distance_atr": distance}
