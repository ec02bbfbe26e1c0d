"""What no source of this desk tells, by layer: always named, never guessed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
"""By the name of a layer: what its judgement has to do without, and why."""
