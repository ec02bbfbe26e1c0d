"""What follows from a judgement."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.assessment import Assessment, Demands, StandAside, Verdict, assess
from agentic_trading.desk.analysis.judgement import POINTING, SCORE_RANGES, Layer
from agentic_trading.desk.analysis.plan import PlanPrices
from tests.desk.analysis.build import judgement, layer, layers, provenance

SCORES = st.fixed_dictionaries({name.value: st.integers(*SCORE_RANGES[name]) for name in Layer})
VETOING = (Layer.TREND, Layer.PATTERNS, Layer.INDICATORS)
LONG = PlanPrices("market", Decimal(90), Decimal(120))
SHORT = PlanPrices("market", Decimal(110), Decimal(80))


def assessed(demands: Demands | None = None, prices: PlanPrices | None = LONG, **changes: Any) -> Assessment:
    """Return the assessment of an answer about a market at 100."""
    return assess(judgement(**changes), provenance(), demands or Demands(), prices=prices)


def scored(scores: dict[str, int]) -> dict[str, Any]:
    """Return layers with these scores."""
    return layers(**{name: layer(score) for name, score in scores.items()})


def for_direction(scores: dict[str, int], sign: int) -> dict[Layer, int]:
    """Return what each layer says for a direction."""
    return {name: scores[name] * (sign if name in POINTING else 1) for name in Layer}


@given(SCORES)
def test_total_sums_scores_for_direction(scores: dict[str, int]) -> None:
    bullish = assessed(layers=scored(scores))
    bearish = assessed(prices=SHORT, direction="bearish", layers=scored(scores))

    assert bullish.total == sum(scores.values())
    assert bearish.total == sum(for_direction(scores, -1).values())
    assert all(-11 <= outcome.total <= 13 for outcome in (bullish, bearish))


def test_unjudged_layer_adds_zero() -> None:
    judged = {"trend": layer(2)}

    assert assessed(layers=judged).total == 2


@given(SCORES)
def test_vetoing_layer_overrides_total(scores: dict[str, int]) -> None:
    outcome = assessed(Demands(threshold=-11), layers=scored(scores))

    vetoed_by = tuple(name for name in VETOING if scores[name] == -2)
    assert outcome.vetoed_by == vetoed_by
    assert (outcome.stand_aside is StandAside.VETO) is bool(vetoed_by)
    assert (outcome.plan is None) is bool(vetoed_by)


@given(SCORES, st.sampled_from(["bullish", "bearish"]), st.integers(-11, 13))
def test_trade_requires_threshold_and_no_veto(scores: dict[str, int], direction: str, threshold: int) -> None:
    sign, prices = (1, LONG) if direction == "bullish" else (-1, SHORT)

    outcome = assessed(Demands(threshold=threshold), prices, direction=direction, layers=scored(scores))

    speaking = for_direction(scores, sign)
    trades = sum(speaking.values()) >= threshold and all(speaking[name] > -2 for name in VETOING)
    wanted = Verdict.LONG if direction == "bullish" else Verdict.SHORT
    assert outcome.verdict is (wanted if trades else Verdict.STAND_ASIDE)
    assert (outcome.plan is not None) is trades
    assert (outcome.stand_aside is None) is trades


def test_trade_threshold_is_inclusive() -> None:
    assert assessed().verdict is Verdict.LONG
    assert assessed(Demands(threshold=5)).stand_aside is StandAside.BELOW_THRESHOLD


def test_assessment_lists_unavailable_inputs() -> None:
    missing = {Layer.SYSTEM: {"record": "not enough decisions (3 of 10)"}}

    outcome = assess(judgement(), provenance(), Demands(), prices=LONG, not_available=missing)

    assert outcome.not_available == missing


def test_neutral_direction_gives_stand_aside() -> None:
    outcome = assessed(prices=None, direction="neutral")

    assert outcome.verdict is Verdict.STAND_ASIDE
    assert outcome.stand_aside is StandAside.NEUTRAL
    assert outcome.risk_reward is None


@pytest.mark.parametrize(("target", "verdict"), [("110", Verdict.LONG), ("109.99", Verdict.STAND_ASIDE)])
def test_plan_requires_minimum_risk_reward(target: str, verdict: Verdict) -> None:
    outcome = assessed(prices=PlanPrices("market", Decimal(90), Decimal(target)))

    assert outcome.verdict is verdict


def test_untraded_plan_has_risk_reward() -> None:
    outcome = assessed(prices=PlanPrices("market", Decimal(90), Decimal(105)))

    assert outcome.stand_aside is StandAside.POOR_RISK_REWARD
    assert outcome.risk_reward == Decimal("0.50")
    assert outcome.plan is None


def test_assessment_json_round_trip_keeps_digits() -> None:
    outcome = assessed(prices=PlanPrices(Decimal("99.50"), Decimal("90.10"), Decimal("119.0")))

    again = Assessment.model_validate_json(outcome.model_dump_json())

    assert again == outcome
    assert again.plan is not None
    assert str(again.plan.stop) == "90.10"
