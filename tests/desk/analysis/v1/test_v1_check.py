"""The rules of a v1 answer that its schema cannot say."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.context import TradeLimits
from agentic_trading.desk.analysis.v1.check import check_cmt_assessment_v1
from agentic_trading.llm.envelope import EvidenceItem, LLMEnvelope
from tests.build import envelope
from tests.desk.analysis.v1.build import answer, layer, layers, plan


def market_at_100(*, missing: str = "", atr: str = "4", limits: TradeLimits | None = None) -> LLMEnvelope:
    """Return a question about a market at 100, without the evidence of the layer `missing`."""
    names = [name for name in ("trend", "levels", "indicators", "risk", "volatility") if name != missing]
    context = {
        "symbol": "BTCUSDT",
        "decision_timeframe": "1h",
        "timeframes": ["1h", "4h"],
        "last_close": "100",
        "atr": atr,
        "prompted_by": {"kind": "regime_flip", "detail": "1h was down, is up"},
        "position": None,
        "limits": (limits or TradeLimits()).model_dump(),
    }
    evidence = [
        EvidenceItem(evidence_id=f"item-{name}", source=f"layers/{name}", content={}) for name in names
    ]
    return envelope(context=context, retrieved_evidence=evidence)


def problems(value: dict[str, Any], asked: LLMEnvelope | None = None) -> dict[str, str]:
    """Return the message at each path that the check names."""
    found = check_cmt_assessment_v1(asked or market_at_100(), json.dumps(value))
    return {violation.path: violation.message for violation in found}


def test_an_answer_that_agrees_with_itself_and_the_market_passes() -> None:
    assert problems(answer()) == {}


def test_neutral_without_a_plan_passes() -> None:
    assert problems(answer(direction="neutral", trade_plan=None)) == {}


def test_cited_evidence_that_is_not_in_the_envelope_is_named_with_what_there_is() -> None:
    cites = [{"text": "said so", "evidence_ids": ["E1", "E6"]}, {"text": "so too", "evidence_ids": ["E0"]}]

    found = check_cmt_assessment_v1(
        market_at_100(), json.dumps(answer(layers=layers(risk=layer(findings=cites))))
    )

    assert [violation.path for violation in found] == [
        "$.layers.risk.findings[0].evidence_ids[1]",
        "$.layers.risk.findings[1].evidence_ids[0]",
    ]
    assert found[0].keyword == "evidence"
    assert found[0].actual == "E6"
    assert found[0].allowed == ["E1", "E2", "E3", "E4", "E5"]


def test_evidence_is_cited_by_its_place_and_not_by_its_own_id() -> None:
    found = problems(answer(layers=layers(trend=layer(0, "neutral", "item-trend"))))

    assert list(found) == ["$.layers.trend.findings[0].evidence_ids[0]"]


def test_a_layer_without_evidence_must_be_unavailable() -> None:
    asked = market_at_100(missing="volatility")
    silent = layer(findings=[], unavailable=True)

    assert problems(answer(layers=layers(volatility=silent)), asked) == {}
    assert problems(answer(layers=layers()), asked) == {
        "$.layers.volatility.unavailable": "False does not go with the rest: its evidence is not given"
    }


def test_a_layer_with_evidence_must_not_be_unavailable() -> None:
    found = problems(answer(layers=layers(levels=layer(findings=[], unavailable=True))))

    assert found == {
        "$.layers.levels.unavailable": "True does not go with the rest: its evidence is given as E2"
    }


def test_an_unavailable_layer_says_nothing() -> None:
    asked = market_at_100(missing="trend")
    spoken = layer(1, "bullish", "E1", unavailable=True)

    found = check_cmt_assessment_v1(asked, json.dumps(answer(layers=layers(trend=spoken))))

    assert {violation.path: violation.suggestion for violation in found} == {
        "$.layers.trend.direction": "neutral",
        "$.layers.trend.score": 0,
        "$.layers.trend.findings": [],
    }


def test_an_available_layer_has_a_finding() -> None:
    assert list(problems(answer(layers=layers(risk=layer(findings=[]))))) == ["$.layers.risk.findings"]


@pytest.mark.parametrize(
    ("overall", "own", "score", "passes"),
    [
        ("bullish", "bullish", 1, True),
        ("bullish", "bullish", 0, True),
        ("bullish", "bullish", -1, False),
        ("bullish", "bearish", 1, False),
        ("bullish", "bearish", -1, True),
        ("bullish", "neutral", 1, True),
        ("bullish", "neutral", -1, True),
        ("neutral", "bullish", 1, True),
        ("neutral", "bearish", -1, True),
    ],
)
def test_a_layer_scores_for_what_it_says(overall: str, own: str, score: int, *, passes: bool) -> None:
    value = answer(
        direction=overall,
        layers=layers(trend=layer(score, own)),
        trade_plan=plan() if overall == "bullish" else None,
    )

    assert list(problems(value)) == ([] if passes else ["$.layers.trend.score"])


def test_a_direction_needs_a_plan_and_neutral_has_none() -> None:
    assert list(problems(answer(trade_plan=None))) == ["$.trade_plan"]
    assert list(problems(answer(direction="neutral"))) == ["$.trade_plan"]


LONG_STOPS = [("60", True), ("59.99", False), ("99.99", True), ("100", False), ("101", False), ("0", False)]
LONG_TARGETS = [("100.01", True), ("100", False), ("99", False), ("140", True), ("140.01", False)]


@pytest.mark.parametrize(("stop", "passes"), LONG_STOPS)
def test_the_stop_of_a_long_lies_below_its_entry_and_within_ten_atr(stop: str, *, passes: bool) -> None:
    assert list(problems(answer(trade_plan=plan(stop=stop)))) == ([] if passes else ["$.trade_plan.stop"])


@pytest.mark.parametrize(("target", "passes"), LONG_TARGETS)
def test_a_target_of_a_long_lies_above_its_entry_and_within_ten_atr(target: str, *, passes: bool) -> None:
    found = problems(answer(trade_plan=plan(target=target)))

    assert list(found) == ([] if passes else ["$.trade_plan.target"])


@given(st.decimals(min_value=1, max_value=199, places=2))
def test_a_short_is_the_mirror_of_a_long(price: Decimal) -> None:
    def stops_and_targets(proposed: Decimal, direction: str, target: str, stop: str) -> list[bool]:
        as_stop = plan("market", str(proposed), target)
        as_target = plan("market", stop, str(proposed))
        return [
            problems(answer(direction=direction, layers=layers(), trade_plan=each)) == {}
            for each in (as_stop, as_target)
        ]

    assert stops_and_targets(price, "bullish", "120", "90") == stops_and_targets(
        200 - price, "bearish", "80", "110"
    )


@pytest.mark.parametrize(
    ("direction", "entry", "passes"),
    [
        ("bullish", "98", True),
        ("bullish", "100", True),
        ("bullish", "100.01", False),
        ("bullish", "59", False),
        ("bearish", "102", True),
        ("bearish", "99.99", False),
        ("bearish", "141", False),
    ],
)
def test_a_limit_price_waits_for_a_better_price(direction: str, entry: str, *, passes: bool) -> None:
    price = Decimal(entry)
    away = 5 if direction == "bullish" else -5
    proposal = plan(entry, str(price - away), str(price + away))

    found = problems(
        answer(direction=direction, layers=layers(), trade_plan=proposal), market_at_100(atr="4")
    )

    assert ("$.trade_plan.entry" not in found) is passes


def test_no_price_is_further_than_half_of_the_entry_away() -> None:
    wide = market_at_100(atr="80")

    assert problems(answer(trade_plan=plan("market", "50", "150")), wide) == {}
    assert problems(answer(trade_plan=plan("market", "49.99", "150.01")), wide) == {
        "$.trade_plan.stop": "49.99 is out of place; allowed: 50 to 100, without 100",
        "$.trade_plan.target": "150.01 is out of place; allowed: 100 to 150, without 100",
    }


def test_the_limits_are_those_of_the_envelope() -> None:
    narrow = market_at_100(limits=TradeLimits(max_distance_atr=2))

    assert list(problems(answer(), narrow)) == ["$.trade_plan.stop", "$.trade_plan.target"]


def test_a_plan_cannot_pass_without_the_context_that_it_is_held_against() -> None:
    asked = market_at_100()
    without = envelope(context={"symbol": "BTCUSDT"}, retrieved_evidence=asked.retrieved_evidence)

    assert list(problems(answer(), without)) == ["$.trade_plan"]
    assert problems(answer(direction="neutral", trade_plan=None), without) == {}


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"bullish"', "{}", '{"direction": "up"}'])
def test_text_that_is_no_judgement_is_a_violation_and_no_error(text: str) -> None:
    assert check_cmt_assessment_v1(market_at_100(), text)


def test_what_does_not_fit_is_named_by_its_path() -> None:
    found = problems(answer(trade_plan=plan(target="x")))

    assert "$.trade_plan.target" in found


@given(st.text())
def test_no_text_raises(text: str) -> None:
    assert isinstance(check_cmt_assessment_v1(market_at_100(), text), list)
