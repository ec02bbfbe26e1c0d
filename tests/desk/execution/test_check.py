"""Every rule of a fill strategy, each with an answer that breaks it and nothing else."""

from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.desk.execution.check import check_fill_strategy
from agentic_trading.desk.execution.order import FillLimits
from tests.build import envelope
from tests.desk.execution.asked import asked, chosen_text, in_full
from tests.desk.trade import intent, strategy

LIMITS = FillLimits(
    max_slices=5,
    max_participation=Decimal("0.1"),
    max_deadline_s=3600,
    price_band_bps=Decimal(20),
    min_slice_quantity=Decimal("0.25"),
)
TWAP: dict[str, Any] = {"algo": "twap", "slices": 4, "interval_seconds": 300, "deadline_seconds": 1200}
PATIENT: dict[str, Any] = {"algo": "passive_then_cross", "order_type": "post_only", "limit_offset_bps": 5}
AT_PLAN: dict[str, Any] = {"order_type": "limit", "price_reference": "arrival", "on_deadline": "cancel"}


def broken(limits: FillLimits = LIMITS, *, about: Any = None, **changes: Any) -> list[tuple[str, str]]:
    """Return path and rule of each violation of a strategy with `changes`."""
    violations = check_fill_strategy(asked(about, limits), in_full(strategy(), **changes))
    paths = [violation.path.removeprefix("$.").removeprefix("fill.") for violation in violations]
    return [(path, violation.keyword) for path, violation in zip(paths, violations, strict=True)]


@pytest.mark.parametrize(
    "choice",
    [
        {},
        TWAP,
        PATIENT,
        AT_PLAN,
        {"order_type": "limit", "limit_offset_bps": -20},
        {"time_in_force": "ioc", "on_deadline": "cancel"},
        {"evidence_ids": ["E1", "E2", "E3"]},
    ],
)
def test_strategy_within_limits_passes(choice: dict[str, Any]) -> None:
    assert broken(**choice) == []


@pytest.mark.parametrize(
    ("change", "path", "rule"),
    [
        ({**TWAP, "slices": 6, "deadline_seconds": 1800}, "slices", "limits"),
        ({"max_participation": "0.11"}, "max_participation", "limits"),
        ({"max_participation": 0}, "max_participation", "limits"),
        ({"deadline_seconds": 3601}, "deadline_seconds", "limits"),
        ({"order_type": "limit", "limit_offset_bps": "20.01"}, "limit_offset_bps", "limits"),
        ({"order_type": "limit", "limit_offset_bps": "-20.01"}, "limit_offset_bps", "limits"),
        ({"limit_offset_bps": 1}, "limit_offset_bps", "market"),
        ({"order_type": "post_only", "limit_offset_bps": -1}, "limit_offset_bps", "post_only"),
        ({"order_type": "post_only", "time_in_force": "ioc", "on_deadline": "cancel"}, "time_in_force", "post_only"),
        ({"time_in_force": "ioc"}, "on_deadline", "ioc"),
        ({"algo": "passive_then_cross"}, "order_type", "algo"),
        ({**PATIENT, "on_deadline": "cancel"}, "on_deadline", "algo"),
        ({**TWAP, "slices": 1}, "slices", "algo"),
        ({**TWAP, "interval_seconds": 0}, "interval_seconds", "algo"),
        ({**PATIENT, "slices": 2}, "slices", "algo"),
        ({**TWAP, "deadline_seconds": 1199}, "interval_seconds", "deadline"),
        ({**TWAP, "interval_seconds": 301}, "interval_seconds", "deadline"),
        ({**TWAP, "slices": 5, "deadline_seconds": 1500}, "slices", "limits"),
        ({"evidence_ids": ["E1", "E4"]}, "evidence_ids[1]", "evidence"),
    ],
)  # fmt: skip
def test_broken_rule_is_named(change: dict[str, Any], path: str, rule: str) -> None:
    assert (path, rule) in broken(**change)


def test_slices_below_minimum_are_rejected() -> None:
    limits = LIMITS.model_copy(update={"min_slice_quantity": Decimal("0.249"), "lot_size": Decimal("0.01")})

    assert broken(limits, **TWAP) == []
    assert broken(limits, about=intent(quantity=Decimal("0.99")), **TWAP) == [
        ("slices", "limits"),
        ("slices", "min_slice_quantity"),
    ]


def test_disallowed_order_type_is_rejected() -> None:
    assert broken(LIMITS.model_copy(update={"allowed_order_types": ("limit",)})) == [("order_type", "limits")]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"on_deadline": "cross"}, "on_deadline"),
        ({"price_reference": "last"}, "price_reference"),
        ({"limit_offset_bps": -1}, "limit_offset_bps"),
    ],
)
def test_priced_plan_rejects_worse_price(change: dict[str, Any], path: str) -> None:
    at_a_price = intent(limit_price=Decimal(99))

    assert broken(about=at_a_price, **AT_PLAN) == []
    assert broken(about=at_a_price, **{**AT_PLAN, **change}) == [(path, "may_cross")]


def test_violation_shows_actual_and_allowed() -> None:
    (violation,) = check_fill_strategy(asked(None, LIMITS), in_full(strategy(), deadline_seconds=3601))

    assert violation.message == "deadline_seconds is 3601; allowed: 1 to 3600"
    assert (violation.actual, violation.suggestion) == (3601, 3600)


def test_decimal_violation_is_exact() -> None:
    (violation,) = check_fill_strategy(asked(None, LIMITS), in_full(strategy(), max_participation="0.10001"))

    assert (violation.actual, violation.suggestion) == ("0.10001", "0.1")


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"limits": {}},
        {"limits": {"max_slices": 0}, "order": {"quantity": "1"}},
        {"limits": {}, "order": {"quantity": "NaN"}},
        {"limits": {}, "order": {"quantity": ["1"]}},
        {"limits": 1, "order": 2},
    ],
)
def test_envelope_without_limits_rejects_answers(context: dict[str, Any]) -> None:
    (violation,) = check_fill_strategy(envelope(context=context), chosen_text("take_now"))

    assert violation.keyword == "limits"


def test_malformed_answer_is_violation() -> None:
    violation, *_ = check_fill_strategy(asked(), chosen_text("take_now", evidence_ids=["one"]))

    assert violation.path == "$.evidence_ids[0]"


def test_offered_names_break_no_rule() -> None:
    question = asked(None, LIMITS)

    assert {
        name: check_fill_strategy(question, chosen_text(name)) for name in question.context["candidates"]
    } == {
        "take_now": [],
        "take_capped": [],
        "slices": [],
        "slices_slow": [],
        "wait_near": [],
        "wait_far": [],
    }


def test_unoffered_name_is_violation() -> None:
    at_a_price = asked(intent(limit_price=Decimal(99)))

    violations = check_fill_strategy(at_a_price, chosen_text("take_now", evidence_ids=["E4"]))

    assert [(each.path, each.keyword) for each in violations] == [
        ("$.fill", "candidates"),
        ("$.evidence_ids[0]", "evidence"),
    ]
    assert violations[0].allowed == "a candidate of this question: at_plan, at_plan_brief"


@pytest.mark.parametrize(
    ("candidates", "offered"),
    [({}, "none"), (None, "none"), ({"take_now": {}}, "take_now"), (["take_now"], "none")],
)
def test_name_without_terms_is_violation(candidates: Any, offered: str) -> None:
    context = {**asked().context, "candidates": candidates, "terms": {}}

    (violation,) = check_fill_strategy(
        envelope(context=context), chosen_text("take_now", evidence_ids=["E1"])
    )[:1]

    assert (violation.path, violation.keyword) == ("$.fill", "candidates")
    assert violation.allowed == f"a candidate of this question: {offered}"


def test_named_terms_must_meet_limits() -> None:
    question = asked(None, LIMITS)
    terms = {"deadline_seconds": 3601}
    context = {**question.context, "candidates": {"take_now": terms}}

    (violation,) = check_fill_strategy(
        question.model_copy(update={"context": context}), chosen_text("take_now")
    )

    assert (violation.path, violation.keyword) == ("$.fill.deadline_seconds", "limits")
