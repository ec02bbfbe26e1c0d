"""The baseline that answers `fill_strategy.v2` without a model: a function of the envelope, written as text."""

from decimal import Decimal
from typing import Any

from agentic_trading.canonical import exact_bytes
from agentic_trading.desk.execution.candidates import SMALL, FillFacts
from agentic_trading.desk.execution.choice import FillName
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.instrument import EXACT
from agentic_trading.llm.envelope import LLMEnvelope

WIDE = Decimal(20)
"""From this many spreads in a mean bar's range on, waiting is taken to pay."""


def fill_strategy_rule(envelope: LLMEnvelope) -> str:
    """Choose a candidate by fixed thresholds; reads the envelope's context and evidence and nothing else.

    A plan with a price waits at it until the deadline. Otherwise: a large order in market slices, one a bar;
    an exit at once; a small entry waits a little for a better price where bars are wide, and takes at once
    where they are not.
    """
    evidence = {item.source: item.content for item in envelope.retrieved_evidence}
    limits = FillLimits.model_validate(envelope.context["limits"])
    facts = FillFacts.of(limits, envelope.context["order"], evidence)
    name, why = _choice(facts, envelope.context["candidates"])
    answer = {"evidence_ids": ["E2", "E3"], "rationale": why, "fill": name, "confidence": Decimal("0.6")}
    return exact_bytes(answer).decode()


def _choice(facts: FillFacts, candidates: dict[str, Any]) -> tuple[FillName, str]:
    if "at_plan" in candidates:
        return "at_plan", "The plan names a price: wait there and do not pay more."
    if facts.share > SMALL and "slices" in candidates:
        return "slices", f"The order is {facts.share} of a mean bar's volume: one slice a bar."
    if facts.is_exit or _range_in_spreads(facts) < WIDE or "wait_near" not in candidates:
        why = "An exit does not wait." if facts.is_exit else "Bars are narrow: waiting saves little."
        return "take_now", f"{why} The order is {facts.share} of a mean bar's volume."
    ranges = f"A mean bar ranges {facts.mean_range_bps} bps and the spread is {facts.spread_bps}"
    return "wait_near", f"{ranges}: wait a little."


def _range_in_spreads(facts: FillFacts) -> Decimal:
    return EXACT.divide(facts.mean_range_bps, facts.spread_bps) if facts.spread_bps else WIDE
