"""The measures of a layer over its timeframes, with the reasons for missing measures."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.desk.market.bar import LADDER, Timeframe
from agentic_trading.desk.market.frame import Frame
from agentic_trading.desk.market.gauges import BARS_NEEDED

Value = float | int | str | bool | None

NO_BAR = "no closed bar yet"
NOT_IN_SOURCE = "the source does not tell it"
NO_SOURCE: Final = "no source"

UNSOURCED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "patterns": MappingProxyType({"chart_shapes": "no rule beyond these"}),
    "indicators": MappingProxyType({"market_breadth": NO_SOURCE}),
    "sentiment": MappingProxyType(
        dict.fromkeys(("vix", "put_call_ratio", "commitment_of_traders", "funding", "news"), NO_SOURCE)
    ),
    "volatility": MappingProxyType({"implied_volatility": NO_SOURCE}),
    "intermarket": MappingProxyType({"macro_calendar": NO_SOURCE}),
})
"""The data that has no source, with the reasons, by the name of the layer."""


class LayerFeatures:
    """Collects the measures of a layer, and the reasons for missing measures."""

    def __init__(self) -> None:
        self.not_available: dict[str, str] = {}

    def frames(self, frames: Mapping[Timeframe, Frame]) -> list[Frame]:
        """Return the existing frames, shortest first, and note the timeframes without a closed bar."""
        for timeframe in LADDER:
            if timeframe not in frames:
                self.not_available[timeframe.value] = NO_BAR
        return [frames[timeframe] for timeframe in LADDER if timeframe in frames]

    def keep(
        self, frame: Frame, values: Mapping[str, Value], *, unsourced: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the values that exist, and note the reasons for the others.

        `unsourced` values lack a source.
        """
        for name, value in values.items():
            if value is None:
                reason = NOT_IN_SOURCE if name in unsourced else _reason(frame, name)
                self.not_available[f"{frame.timeframe}.{name}"] = reason
        return {name: _plain(value) for name, value in values.items() if value is not None}


def features_by_timeframe(
    layer: str,
    frames: Mapping[Timeframe, Frame],
    measure: Callable[[LayerFeatures, Frame], dict[str, Any]],
) -> dict[str, Any]:
    """Return the content of a layer that is measured separately on each timeframe."""
    features = LayerFeatures()
    features.not_available |= UNSOURCED.get(layer, {})
    present = features.frames(frames)
    return {
        "timeframes": {frame.timeframe.value: measure(features, frame) for frame in present},
        "not_available": features.not_available,
    }


def _plain(value: Value) -> Value:
    return value.value if isinstance(value, StrEnum) else value


def _reason(frame: Frame, name: str) -> str:
    if name == "structure":
        return "needs two confirmed swing highs and two lows"
    needed = BARS_NEEDED[name]
    if frame.bars < needed:
        return f"needs {needed} bars, has {frame.bars}"
    return "not defined on bars that do not move"
