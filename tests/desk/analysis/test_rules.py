"""The baseline without a model, over all that ships."""

import json
from collections import Counter
from decimal import Decimal
from functools import cache
from typing import Any

import jsonschema_rs
import pytest

from agentic_trading.canonical import to_json_value
from agentic_trading.desk.analysis.assessment import Assessment, Demands, StandAside, Verdict, assess
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.context import TradeLimits, evidence_by_layer
from agentic_trading.desk.analysis.judgement import ASKED_CHARS, Direction, Judgement, Layer
from agentic_trading.desk.analysis.plan import plan_prices, risk_reward
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.triggers import Trigger, TriggerRules, decide
from agentic_trading.llm.envelope import LLMEnvelope
from tests.desk.analysis.build import hours, market, provenance, question, record

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
    prices = plan_prices(envelope, judgement)
    return assess(judgement, provenance(envelope.context["last_close"]), Demands(), prices=prices)


@pytest.mark.parametrize(
    ("sample", "decision", "every"),
    [("btcusdt-5m", Timeframe.H1, 1), ("ethusdt-5m", Timeframe.H1, 1), ("btcusdt-5m", Timeframe.M15, 6)],
)
def test_rule_answers_pass_schema_and_check(sample: str, decision: Timeframe, every: int) -> None:
    for envelope in asked(sample, decision, every):
        text = cmt_assessment_rule(envelope)

        schema = to_json_value(envelope.expected_output_schema)
        assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True)
        assert check_cmt_assessment(envelope, text) == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_each_direction_and_side_is_frequent(sample: str) -> None:
    outcomes = [assessed(envelope) for envelope in asked(sample)]

    directions = Counter(outcome.judgement.direction for outcome in outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    assert len(outcomes) >= 40
    assert min(directions[direction] for direction in Direction) >= len(outcomes) / 8
    assert min(verdicts[verdict] for verdict in (Verdict.LONG, Verdict.SHORT)) >= len(outcomes) / 8


def test_equal_questions_give_equal_text() -> None:
    assert cmt_assessment_rule(question(seed="first")) == cmt_assessment_rule(question(seed="second"))


def test_findings_cite_numbers_from_evidence() -> None:
    for envelope in asked():
        judged = Judgement.model_validate_json(cmt_assessment_rule(envelope))
        items = {f"E{place}": item for place, item in enumerate(envelope.evidence_json, start=1)}

        for _, layer in judged.by_layer():
            words = layer.finding.replace(";", " ").replace(",", " ").split()
            numbers = [word for word in words if word[0].isdigit() and "." in word]
            assert all(number.removesuffix(".0").encode() in items[layer.evidence] for number in numbers)
            assert len(layer.finding) < ASKED_CHARS


@pytest.mark.parametrize("layer", list(Layer))
def test_layer_without_evidence_is_unjudged(layer: Layer) -> None:
    for snapshot in hours()[49::15]:
        whole = question(snapshot, record=record())
        kept = [item for item in whole.retrieved_evidence if item.source != f"layers/{layer}"]
        envelope = whole.model_copy(update={"retrieved_evidence": kept})

        text = cmt_assessment_rule(envelope)

        assert check_cmt_assessment(envelope, text) == []
        assert layer not in Judgement.model_validate_json(text).layers


def test_missing_stop_makes_direction_neutral() -> None:
    trending = [envelope for envelope in asked() if assessed(envelope).plan]
    narrow = TradeLimits(max_distance_atr=1)

    for envelope in trending[:5]:
        context = {**envelope.context, "limits": narrow.model_dump()}
        outcome = assessed(envelope.model_copy(update={"context": context}))

        assert outcome.stand_aside is StandAside.NEUTRAL


def test_target_is_paying_level_or_cap() -> None:
    rewards = []

    for envelope in asked():
        outcome = assessed(envelope)
        if (made := outcome.plan) is None:
            continue
        side = "long" if outcome.verdict is Verdict.LONG else "short"
        levels = [Decimal(str(price)) for price in told_of_risk(envelope)[side]["targets"]["price"]]
        far = made.entry + made.side.sign * 4 * Decimal(envelope.context["atr"])
        paying = [
            price
            for price in levels
            if risk_reward(made.entry, made.stop, price) >= 1
            and abs(price - made.entry) <= abs(far - made.entry)
        ]
        assert made.side.sign * (made.entry - made.stop) > 0
        assert made.target == (paying[0] if paying else far)
        assert outcome.judgement.layers[Layer.RISK].score == bool(paying)
        rewards.append(made.risk_reward)

    assert min(rewards) >= 1
    assert max(rewards) <= Decimal("2.67")
    assert len(set(rewards)) > 1


def test_track_record_sets_system_score() -> None:
    trending = next(envelope for envelope in asked() if assessed(envelope).plan)
    scores = {}

    for factor in (0.5, 1.0, 2.0):
        record = {"decisions": 10, "profit_factor": factor, "hit_rate_pct": 50}
        items = [*trending.retrieved_evidence[:-1]]
        system = trending.retrieved_evidence[-1].model_copy(update={"content": record})
        envelope = trending.model_copy(update={"retrieved_evidence": [*items, system]})
        judged = Judgement.model_validate_json(cmt_assessment_rule(envelope))
        scores[factor] = judged.layers[Layer.SYSTEM].score

    assert scores == {0.5: -1, 1.0: 0, 2.0: 1}


def test_foreign_envelope_raises_value_error() -> None:
    envelope = question(market()).model_copy(update={"context": {"symbol": "BTCUSDT"}})

    with pytest.raises(ValueError, match="validation errors for Context"):
        cmt_assessment_rule(envelope)
