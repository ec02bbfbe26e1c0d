"""What follows from a judgement."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.assessment import Assessment, Demands, StandAside, Verdict, assess
from agentic_trading.desk.analysis.judgement import SCORE_RANGES, Layer
from tests.desk.analysis.build import judgement, layer, layers, plan, provenance

SCORES = st.fixed_dictionaries({name.value: st.integers(*SCORE_RANGES[name]) for name in Layer})


def assessed(demands: Demands | None = None, **changes: Any) -> Assessment:
    """Return the assessment of an answer about a market at 100."""
    return assess(judgement(**changes), provenance(), demands or Demands())


@given(SCORES)
def test_the_total_is_the_sum_of_the_scores(scores: dict[str, int]) -> None:
    outcome = assessed(layers=layers(**{name: layer(score) for name, score in scores.items()}))

    assert outcome.total == sum(scores.values())
    assert -6 <= outcome.total <= 8


@given(SCORES)
def test_trend_or_indicators_at_minus_two_veto_whatever_the_total(scores: dict[str, int]) -> None:
    outcome = assessed(
        Demands(threshold=-6), layers=layers(**{name: layer(score) for name, score in scores.items()})
    )

    vetoed_by = tuple(name for name in (Layer.TREND, Layer.INDICATORS) if scores[name] == -2)
    assert outcome.vetoed_by == vetoed_by
    assert (outcome.stand_aside is StandAside.VETO) is bool(vetoed_by)
    assert (outcome.plan is None) is bool(vetoed_by)


@given(SCORES, st.sampled_from(["bullish", "bearish"]), st.integers(-6, 8))
def test_a_trade_needs_the_threshold_and_no_veto(
    scores: dict[str, int], direction: str, threshold: int
) -> None:
    proposal = plan() if direction == "bullish" else plan("market", "110", "80")
    judged = layers(**{name: layer(score) for name, score in scores.items()})

    outcome = assessed(Demands(threshold=threshold), direction=direction, layers=judged, trade_plan=proposal)

    trades = sum(scores.values()) >= threshold and -2 not in (scores["trend"], scores["indicators"])
    wanted = Verdict.LONG if direction == "bullish" else Verdict.SHORT
    assert outcome.verdict is (wanted if trades else Verdict.STAND_ASIDE)
    assert (outcome.plan is not None) is trades
    assert (outcome.stand_aside is None) is trades


def test_a_total_at_the_threshold_trades_and_one_below_does_not() -> None:
    judged = layers(trend=layer(2), indicators=layer(1))

    assert assessed(layers=judged).verdict is Verdict.LONG
    assert assessed(Demands(threshold=4), layers=judged).stand_aside is StandAside.BELOW_THRESHOLD


def test_neutral_stands_aside_without_a_plan() -> None:
    outcome = assessed(direction="neutral", trade_plan=None)

    assert outcome.verdict is Verdict.STAND_ASIDE
    assert outcome.stand_aside is StandAside.NEUTRAL
    assert outcome.risk_reward is None


@pytest.mark.parametrize(("target", "verdict"), [("110", Verdict.LONG), ("109.99", Verdict.STAND_ASIDE)])
def test_a_plan_must_pay_for_its_risk(target: str, verdict: Verdict) -> None:
    outcome = assessed(trade_plan=plan("market", "90", target))

    assert outcome.verdict is verdict


def test_the_reward_of_a_plan_that_is_not_traded_is_told_too() -> None:
    outcome = assessed(trade_plan=plan("market", "90", "105"))

    assert outcome.stand_aside is StandAside.POOR_RISK_REWARD
    assert outcome.risk_reward == Decimal("0.50")
    assert outcome.plan is None


def test_an_assessment_survives_its_way_through_json_with_every_digit() -> None:
    outcome = assessed(trade_plan=plan("99.50", "90.10", "119.0"))

    again = Assessment.model_validate_json(outcome.model_dump_json())

    assert again == outcome
    assert again.plan is not None
    assert str(again.plan.stop) == "90.10"
