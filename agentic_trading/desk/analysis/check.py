"""The rules of an assessment that its JSON Schema cannot express."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from agentic_trading.desk.analysis.context import Context, available_layers, evidence_names
from agentic_trading.desk.analysis.judgement import Direction, Judgement, Layer, TradeProposal
from agentic_trading.desk.analysis.plan import candidates_of, plan_prices, plan_violations
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.result import Violation


def check_cmt_assessment(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return the rules that an answer to `envelope` breaks, always in the same order.

    Each layer with numbers must have a judgement, and no other layer may have one. Cited evidence must exist.
    Unless the direction is neutral, there must be a plan. Its names must have prices in the evidence. The
    prices must be on their sides of the entry, and within the limits of the context. The answer is not
    changed.
    """
    try:
        judgement = Judgement.model_validate_json(text)
    except ValidationError as e:
        return [_misfit(error) for error in e.errors(include_url=False)]
    return [
        *_layer_violations(envelope, judgement),
        *_evidence_violations(envelope, judgement),
        *_plan_violations(envelope, judgement),
    ]


def _misfit(error: Any) -> Violation:
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    return Violation(path=path, keyword=error["type"], message=error["msg"])


def _layer_violations(envelope: LLMEnvelope, judgement: Judgement) -> Iterator[Violation]:
    given = available_layers(envelope)
    for layer in Layer:
        if (layer in given) is (layer in judgement.layers):
            continue
        missing = layer in given
        yield Violation(
            path=f"$.layers.{layer}",
            keyword="layer",
            message=f"{layer} is not judged, but its numbers are given; allowed: a judgement"
            if missing
            else f"{layer} is judged without numbers; allowed: {', '.join(sorted(given)) or 'none'}",
            allowed=sorted(given),
        )


def _evidence_violations(envelope: LLMEnvelope, judgement: Judgement) -> Iterator[Violation]:
    known = evidence_names(envelope)
    for layer, judged in judgement.by_layer():
        for place, name in enumerate(judged.cited):
            if name not in known:
                yield Violation(
                    path=f"$.layers.{layer}." + (f"more_evidence[{place - 1}]" if place else "evidence"),
                    keyword="evidence",
                    message=f"there is no evidence {name!r}; allowed: {', '.join(known) or 'none'}",
                    actual=name,
                    allowed=list(known),
                )


def _plan_violations(envelope: LLMEnvelope, judgement: Judgement) -> Iterator[Violation]:
    proposal, direction = judgement.trade_plan, judgement.direction
    # The plan of a neutral answer is not checked, because it is not used.
    if direction is Direction.NEUTRAL:
        return
    if proposal is None:
        yield Violation(
            path="$.trade_plan",
            keyword="plan",
            message=f"there is no plan, but the direction is {direction}; allowed: a plan, or neutral",
        )
        return
    try:
        context = Context.model_validate(envelope.context)
    except ValidationError as e:
        yield Violation(
            path="$.trade_plan",
            keyword="context",
            message=f"no plan can be checked: the envelope's context breaks {e.error_count()} rules; allowed: neutral",
        )
        return
    rising = direction is Direction.BULLISH
    nameless = list(_nameless(envelope, proposal, rising=rising))
    prices = None if nameless else plan_prices(envelope, judgement)
    yield from nameless if prices is None else plan_violations(context, prices, rising=rising)


def _nameless(envelope: LLMEnvelope, proposal: TradeProposal, *, rising: bool) -> Iterator[Violation]:
    """Yield each name of a proposal that has no price in the evidence."""
    named = candidates_of(envelope, rising=rising)
    chosen = {
        "entry": (proposal.entry, named.entries),
        "stop": (proposal.stop, named.stops),
        "target": (proposal.target, named.targets),
    }
    for part, (name, prices) in chosen.items():
        if isinstance(name, str) and name not in prices:
            yield Violation(
                path=f"$.trade_plan.{part}",
                keyword="candidate",
                message=f"{name} has no price here; allowed: {', '.join(prices) or 'none'}",
                actual=name,
                allowed=list(prices),
            )
