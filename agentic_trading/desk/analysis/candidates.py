"""The trades that an answer may choose from: entries, stops and targets, priced by code."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, get_args

from agentic_trading.desk.analysis.context import Context, evidence_by_layer
from agentic_trading.desk.analysis.plan_prices import PlanPrices
from agentic_trading.desk.analysis.judgement import Direction, Judgement, Layer, StopName, TargetName
from agentic_trading.llm.envelope import LLMEnvelope

PULLBACK_ATR: Final = Decimal("0.5")
ATR: Final = "atr_"
LEVEL: Final = "level_"


@dataclass(frozen=True, slots=True)
class Candidates:
    """What each name means for a trade one way, in units of price; a name that is missing has no price now."""

    entries: Mapping[str, Literal["market"] | Decimal]
    stops: Mapping[str, Decimal]
    targets: Mapping[str, Decimal]


def trade_candidates(context: Context, risk: Mapping[str, Any], *, rising: bool) -> Candidates:
    """Price every name for a trade that buys if `rising`, else sells; `risk` is the content of layer 6.

    Stops are those of the evidence. ATR targets lie that many ATR beyond the last close, `level_1` to `level_4`
    are the targets of the evidence in its order, and a pullback waits for half an ATR.
    """
    sign, told = (1 if rising else -1), risk.get("long" if rising else "short", {})
    levels = {
        f"{LEVEL}{place}": level
        for place, level in enumerate(told.get("targets", {}).get("price", ()), start=1)
    }
    multiples = (name for name in get_args(TargetName) if name.startswith(ATR))
    return Candidates(
        entries={"market": "market", "pullback": context.last_close - sign * PULLBACK_ATR * context.atr},
        stops={
            name: exact(price) for name, price in told.get("stops", {}).items() if name in get_args(StopName)
        },
        targets={
            **{
                name: context.last_close + sign * Decimal(name.removeprefix(ATR)) * context.atr
                for name in multiples
            },
            **{name: exact(level) for name, level in levels.items()},
        },
    )


def candidates_of(envelope: LLMEnvelope, *, rising: bool) -> Candidates:
    """Return the candidates of a question; raises pydantic's `ValidationError` for a context that is not the analyst's."""
    risk = evidence_by_layer(envelope).get(Layer.RISK)
    return trade_candidates(Context.model_validate(envelope.context), risk.content if risk else {}, rising=rising)


def plan_prices(envelope: LLMEnvelope, judgement: Judgement) -> PlanPrices | None:
    """Return the prices of the plan in an answer that has passed `check_cmt_assessment`; None if it is neutral."""
    proposal, direction = judgement.trade_plan, judgement.direction
    if proposal is None or direction is Direction.NEUTRAL:
        return None
    named = candidates_of(envelope, rising=direction is Direction.BULLISH)
    return PlanPrices(
        entry=named.entries[proposal.entry] if isinstance(proposal.entry, str) else proposal.entry,
        stop=named.stops[proposal.stop] if isinstance(proposal.stop, str) else proposal.stop,
        target=named.targets[proposal.target] if isinstance(proposal.target, str) else proposal.target,
    )


def exact(number: float) -> Decimal:
    """Return a rounded number of the evidence with the digits that it is told with."""
    return Decimal(repr(number))
