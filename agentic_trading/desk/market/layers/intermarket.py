"""Layer 8: the market beside a second one."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.correlation import RETURNS, Close, ReferenceMarket, common_closes, relation
from agentic_trading.desk.market.layers.missing_features import UNSOURCED
from agentic_trading.desk.market.rounding import ratio


def intermarket_layer(
    own: Sequence[Close], other: ReferenceMarket | None, *, decision: Timeframe
) -> dict[str, Any]:
    """Return how the market's returns go with those of a second one, on the decision timeframe.

    `beside` names the second market. Without one, or before 49 common closes, `not_available` says so.
    """
    if other is None:
        return {"not_available": {"second_market": "none is fed", **UNSOURCED["intermarket"]}}
    found = relation(own, other)
    if found is None:
        has = max(0, len(common_closes(own, other)) - 1)
        reason = f"needs {RETURNS} returns in common, has {has}"
        return {"not_available": {"second_market": reason, **UNSOURCED["intermarket"]}}
    measures = {name: value for name, value in asdict(found).items() if name not in {"symbol", "quadrant"}}
    return {
        "beside": found.symbol,
        "timeframe": decision.value,
        **{name: ratio(value) for name, value in measures.items() if value is not None},
        "quadrant": found.quadrant.value,
        "not_available": {
            **{name: "a market does not move" for name, value in measures.items() if value is None},
            **UNSOURCED["intermarket"],
        },
    }
