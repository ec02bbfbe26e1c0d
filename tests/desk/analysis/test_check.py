"""The rules of an answer that its schema cannot say."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.context import TradeLimits
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.llm.envelope import EvidenceItem, LLMEnvelope
from tests.build import envelope
from tests.desk.analysis.build import answer, layer, layers, plan

RISK = {
    side: {
        "stops": {f"atr_{multiple}": 100 - sign * 4 * multiple for multiple in (1.0, 1.5, 2.0, 3.0)},
        "targets": {"price": [100 + sign * 3, 100 + sign * 7.5], "rr": [0.375, 0.9375]},
    }
    for side, sign in (("long", 1), ("short", -1))
}
SILENT = {"not_available": {"second_market": "none is fed"}}


def market_at_100(
    *, missing: str = "", silent: str = "", atr: str = "4", limits: TradeLimits | None = None
) -> LLMEnvelope:
    """Return a question about a market at 100: without the evidence of `missing`, `silent` has no numbers."""
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
    contents: dict[str, Any] = {name.value: {"told": 1} for name in Layer if name != missing}
    contents |= {"risk": RISK} | ({silent: SILENT} if silent else {})
    evidence = [
        EvidenceItem(evidence_id=f"item-{name}", source=f"layers/{name}", content=content)
        for name, content in contents.items()
    ]
    return envelope(context=context, retrieved_evidence=evidence)


def problems(value: dict[str, Any], asked: LLMEnvelope | None = None) -> dict[str, str]:
    """Return the message at each path that the check names."""
    found = check_cmt_assessment(asked or market_at_100(), json.dumps(value))
    return {violation.path: violation.message for violation in found}


def test_consistent_answer_passes_check() -> None:
    assert problems(answer()) == {}


@pytest.mark.parametrize(
    "proposal", [None, plan(), plan(stop="swing", target="level_4"), plan("95", "99", "1")]
)
def test_neutral_plan_is_not_checked(proposal: dict[str, Any] | None) -> None:
    assert problems(answer(direction="neutral", trade_plan=proposal)) == {}


def test_direction_requires_a_plan() -> None:
    assert list(problems(answer(trade_plan=None))) == ["$.trade_plan"]


def test_unknown_evidence_lists_allowed_ids() -> None:
    asked = market_at_100(missing="system")
    judged = {name: each for name, each in layers().items() if name != "system"}
    judged["risk"] = layer(0, "E9", more_evidence=["E1", "E10"])

    found = check_cmt_assessment(asked, json.dumps(answer(layers=judged)))

    assert [violation.path for violation in found] == [
        "$.layers.risk.evidence",
        "$.layers.risk.more_evidence[1]",
    ]
    assert found[0].actual == "E9"
    assert found[0].allowed == [f"E{place}" for place in range(1, 9)]


@pytest.mark.parametrize("asked", [market_at_100(missing="system"), market_at_100(silent="system")])
def test_layer_without_numbers_must_be_unjudged(asked: LLMEnvelope) -> None:
    without = {name: each for name, each in layers().items() if name != "system"}

    assert problems(answer(layers=without), asked) == {}
    assert list(problems(answer(layers=layers()), asked)) == ["$.layers.system"]


def test_layer_with_numbers_must_be_judged() -> None:
    without = {name: each for name, each in layers().items() if name != "patterns"}

    assert problems(answer(layers=without)) == {
        "$.layers.patterns": "patterns is not judged, but its numbers are given; allowed: a judgement"
    }


@given(
    st.sampled_from(["bullish", "bearish", "neutral"]),
    st.sampled_from(["market", "pullback"]),
    st.sampled_from(["atr_1.0", "atr_1.5", "atr_2.0", "atr_3.0"]),
    st.sampled_from(["atr_2.0", "atr_3.0", "atr_4.0", "atr_6.0", "level_1", "level_2"]),
)
def test_priced_candidate_choices_pass(direction: str, entry: str, stop: str, target: str) -> None:
    assert problems(answer(direction=direction, trade_plan=plan(entry, stop, target))) == {}


def test_unpriced_candidate_lists_priced_alternatives() -> None:
    assert problems(answer(trade_plan=plan(stop="swing", target="level_3"))) == {
        "$.trade_plan.stop": "swing has no price here; allowed: atr_1.0, atr_1.5, atr_2.0, atr_3.0",
        "$.trade_plan.target": "level_3 has no price here; "
        "allowed: atr_2.0, atr_3.0, atr_4.0, atr_6.0, level_1, level_2",
    }


LONG_STOPS = [("60", True), ("59.99", False), ("99.99", True), ("100", False), ("101", False), ("0", False)]
LONG_TARGETS = [("100.01", True), ("100", False), ("99", False), ("140", True), ("140.01", False)]


@pytest.mark.parametrize(("stop", "passes"), LONG_STOPS)
def test_long_stop_within_ten_atr_below(stop: str, *, passes: bool) -> None:
    assert list(problems(answer(trade_plan=plan(stop=stop, target="120")))) == (
        [] if passes else ["$.trade_plan.stop"]
    )


@pytest.mark.parametrize(("target", "passes"), LONG_TARGETS)
def test_long_target_within_ten_atr_above(target: str, *, passes: bool) -> None:
    found = problems(answer(trade_plan=plan(stop="90", target=target)))

    assert list(found) == ([] if passes else ["$.trade_plan.target"])


@given(st.decimals(min_value=1, max_value=199, places=2))
def test_short_plan_mirrors_long(price: Decimal) -> None:
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
def test_limit_entry_must_not_cross_market(direction: str, entry: str, *, passes: bool) -> None:
    price = Decimal(entry)
    away = 5 if direction == "bullish" else -5
    proposal = plan(entry, str(price - away), str(price + away))

    found = problems(
        answer(direction=direction, layers=layers(), trade_plan=proposal), market_at_100(atr="4")
    )

    assert ("$.trade_plan.entry" not in found) is passes


def test_prices_stay_within_half_of_entry() -> None:
    wide = market_at_100(atr="80")

    assert problems(answer(trade_plan=plan("market", "50", "150")), wide) == {}
    assert problems(answer(trade_plan=plan("market", "49.99", "150.01")), wide) == {
        "$.trade_plan.stop": "49.99 is out of place; allowed: 50 to 100, without 100",
        "$.trade_plan.target": "150.01 is out of place; allowed: 100 to 150, without 100",
    }


def test_limits_come_from_envelope() -> None:
    narrow = market_at_100(limits=TradeLimits(max_distance_atr=2))

    proposal = plan("market", "90", "120")

    assert list(problems(answer(trade_plan=proposal), narrow)) == ["$.trade_plan.stop", "$.trade_plan.target"]


def test_plan_without_context_is_rejected() -> None:
    asked = market_at_100()
    without = envelope(context={"symbol": "BTCUSDT"}, retrieved_evidence=asked.retrieved_evidence)

    assert list(problems(answer(), without)) == ["$.trade_plan"]
    assert problems(answer(direction="neutral", trade_plan=None), without) == {}


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"bullish"', "{}", '{"direction": "up"}'])
def test_non_judgement_text_is_violation(text: str) -> None:
    assert check_cmt_assessment(market_at_100(), text)


def test_violation_is_named_by_path() -> None:
    found = problems(answer(trade_plan=plan(target="x")))

    assert any(path.startswith("$.trade_plan.target") for path in found)


@given(st.text())
def test_arbitrary_text_never_raises(text: str) -> None:
    assert isinstance(check_cmt_assessment(market_at_100(), text), list)
