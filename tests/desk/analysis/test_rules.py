"""The baseline without a model, over all that ships."""

import json
from collections import Counter
from decimal import Decimal
from functools import cache
from typing import Any

import jsonschema_rs
import pytest

from agentic_trading.desk.analysis.assessment import Assessment, Demands, StandAside, Verdict, assess
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.context import Limits, evidence_by_layer
from agentic_trading.desk.analysis.judgement import Direction, Judgement, Layer
from agentic_trading.desk.analysis.plan import risk_reward
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.desk.analysis.schema import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.triggers import Trigger, TriggerRules, decide
from agentic_trading.llm.envelope import LLMEnvelope
from tests.desk.analysis.build import hours, market, provenance, question

VALIDATOR = jsonschema_rs.validator_for(dict(CMT_ASSESSMENT_SCHEMA), validate_formats=True, offline=True)
SAMPLES = ["btcusdt-5m", "ethusdt-5m"]


@cache
def asked(
    sample: str = "btcusdt-5m", decision: Timeframe = Timeframe.H1, every: int = 1
) -> tuple[LLMEnvelope, ...]:
    """Return the question at each trigger of a whole sample, or at one in `every`."""
    triggers, before, assessed_at = [], None, None
    for snapshot in hours(sample, decision):
        outcome = decide(before, snapshot, TriggerRules(), assessed_at=assessed_at)
        if isinstance(outcome, Trigger):
            assessed_at = snapshot.as_of
            triggers.append((snapshot, outcome))
        before = snapshot
    return tuple(question(snapshot, trigger=trigger) for snapshot, trigger in triggers[::every])


def told_of_risk(envelope: LLMEnvelope) -> Any:
    """Return the evidence of the risk layer."""
    return evidence_by_layer(envelope)[Layer.RISK].content


def assessed(envelope: LLMEnvelope) -> Assessment:
    """Return what follows from the rule's answer."""
    judgement = Judgement.model_validate_json(cmt_assessment_rule(envelope))
    return assess(judgement, provenance(envelope.context["last_close"]), Demands())


@pytest.mark.parametrize(
    ("sample", "decision", "every"),
    [("btcusdt-5m", Timeframe.H1, 1), ("ethusdt-5m", Timeframe.H1, 1), ("btcusdt-5m", Timeframe.M15, 6)],
)
def test_every_answer_passes_schema_and_check(sample: str, decision: Timeframe, every: int) -> None:
    for envelope in asked(sample, decision, every):
        text = cmt_assessment_rule(envelope)

        assert VALIDATOR.is_valid(json.loads(text))
        assert check_cmt_assessment(envelope, text) == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_direction_is_rare_and_both_sides_trade(sample: str) -> None:
    outcomes = [assessed(envelope) for envelope in asked(sample)]

    directions = Counter(outcome.judgement.direction for outcome in outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    assert len(outcomes) >= 40
    assert min(directions[direction] for direction in Direction) >= len(outcomes) / 8
    assert min(verdicts[verdict] for verdict in (Verdict.LONG, Verdict.SHORT)) >= len(outcomes) / 8


def test_equal_context_and_evidence_give_equal_text() -> None:
    assert cmt_assessment_rule(question(seed="first")) == cmt_assessment_rule(question(seed="second"))


def test_every_number_in_a_finding_stands_in_the_evidence_that_it_cites() -> None:
    for envelope in asked():
        judged = Judgement.model_validate_json(cmt_assessment_rule(envelope))
        told = dict(zip(["E1", "E2", "E3", "E4", "E5"], envelope.evidence_json, strict=True))

        for _, layer in judged.layers.by_layer():
            for finding in layer.findings:
                numbers = [
                    word.rstrip(";,") for word in finding.text.split() if word[0].isdigit() and "." in word
                ]
                assert all(
                    number.removesuffix(".0").encode() in told[finding.evidence_ids[0]] for number in numbers
                )


@pytest.mark.parametrize("layer", list(Layer))
def test_a_layer_without_evidence_is_unavailable_and_the_answer_still_passes(layer: Layer) -> None:
    for snapshot in hours()[26::10]:
        whole = question(snapshot)
        kept = [item for item in whole.retrieved_evidence if item.source != f"layers/{layer}"]
        envelope = whole.model_copy(update={"retrieved_evidence": kept})

        text = cmt_assessment_rule(envelope)

        assert check_cmt_assessment(envelope, text) == []
        assert getattr(Judgement.model_validate_json(text).layers, layer).unavailable


def test_without_a_stop_within_the_limits_the_direction_is_neutral() -> None:
    trending = [envelope for envelope in asked() if assessed(envelope).plan]
    narrow = Limits(max_distance_atr=1)

    for envelope in trending[:5]:
        context = {**envelope.context, "limits": narrow.model_dump()}
        outcome = assessed(envelope.model_copy(update={"context": context}))

        assert outcome.stand_aside is StandAside.NEUTRAL


def test_a_plan_leaves_at_the_first_level_that_pays_and_at_two_and_a_half_times_the_risk_at_most() -> None:
    rewards = []

    for envelope in asked():
        outcome = assessed(envelope)
        if (made := outcome.plan) is None:
            continue
        side = "long" if outcome.verdict is Verdict.LONG else "short"
        levels = [Decimal(str(level["price"])) for level in told_of_risk(envelope)[side]["targets"]]
        paying = [price for price in levels if risk_reward(made.entry, made.stop, price) >= 1]
        far = made.entry + Decimal("2.5") * (made.entry - made.stop)
        assert made.side.sign * (made.entry - made.stop) > 0
        assert made.target == min([*paying[:1], far], key=lambda price: abs(price - made.entry))
        assert outcome.judgement.layers.risk.score == bool(paying)
        rewards.append(made.risk_reward)

    assert min(rewards) >= 1
    assert max(rewards) == Decimal("2.50")
    assert len(set(rewards)) > 1


def test_an_envelope_of_somebody_else_is_no_question() -> None:
    envelope = question(market()).model_copy(update={"context": {"symbol": "BTCUSDT"}})

    with pytest.raises(ValueError, match="validation errors for Context"):
        cmt_assessment_rule(envelope)
