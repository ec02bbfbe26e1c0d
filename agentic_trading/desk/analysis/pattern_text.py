"""The patterns of the decision timeframe and the next longer one, in a few words each."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentic_trading.desk.market.bar import Timeframe

FLAGS: Final = ("narrow_7", "wide_range", "squeeze")
DOUBLES: Final = ("double_top", "double_bottom")
TIMEFRAMES_TOLD: Final = 2
GAPS_TOLD: Final = 2


def patterns_told(patterns: Mapping[str, Any], decision: Timeframe) -> dict[str, Any]:
    """Return what layer 3 found, by timeframe; what was not found is left out, and a timeframe without a bar too."""
    frames = patterns["timeframes"]
    longer = [each for each in Timeframe if each.seconds >= decision.seconds and each in frames]
    return {timeframe.value: _told(frames[timeframe]) for timeframe in longer[:TIMEFRAMES_TOLD]}


def _told(frame: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "last_bar": [*frame["candles"], *(flag for flag in FLAGS if frame.get(flag))],
        "order_blocks": _zones(frame["order_blocks"]),
        "gaps": _zones(frame["gaps"][-GAPS_TOLD:]),
    }
    if "break" in frame:
        broken = frame["break"]
        told["break"] = f"{broken['kind']} {broken['way']} of {_number(broken['price'])}, {_ago(broken)}"
    if "sweep" in frame:
        swept = frame["sweep"]
        told["sweep"] = f"{swept['way']} at {_number(swept['price'])}, {_ago(swept)}"
    for name in DOUBLES:
        if name in frame:
            told[name] = _double(frame[name])
    return {name: value for name, value in told.items() if value}


def _double(double: Mapping[str, Any]) -> str:
    state = "confirmed" if double["confirmed"] else "candidate"
    return f"{state} at {_number(double['price'])}, neckline {_number(double['neckline'])}"


def _zones(zones: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{zone['way']} {_number(zone['low'])} to {_number(zone['high'])}, {_ago(zone)}" for zone in zones
    ]


def _ago(event: Mapping[str, Any]) -> str:
    return f"{event['bars_ago']} bars ago"


def _number(number: float) -> str:
    return str(int(number)) if number.is_integer() else str(number)
