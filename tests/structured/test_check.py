"""A value is held against its original schema, and what is wrong is said so that a model can act on it."""

import math
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm.reading import Stage, Violation
from agentic_trading.structured import ParserException, validate
from agentic_trading.structured.check import MAX_VIOLATIONS, compiled
from tests.structured.asking import ORDER


def found(value: Any, **schema: Any) -> list[Violation]:
    """Return what `{"x": value}` breaks of `schema`."""
    return validate({"x": value}, {"type": "object", "properties": {"x": schema}})


def only(value: Any, **schema: Any) -> Violation:
    """Return the one rule that `{"x": value}` breaks."""
    (violation,) = found(value, **schema)
    return violation


def test_a_valid_value_breaks_nothing() -> None:
    assert validate({"side": "BUY", "qty": Decimal("0.5"), "legs": [1, 2]}, ORDER) == []


def test_every_broken_rule_is_named_with_its_path() -> None:
    violations = validate(
        {"side": "HOLD", "qty": Decimal(11), "legs": [1, Decimal("2.5"), 3, 4], "veto": True}, ORDER
    )

    assert {(v.path, v.keyword) for v in violations} == {
        ("$.side", "enum"),
        ("$.qty", "maximum"),
        ("$.legs[1]", "type"),
        ("$.legs", "maxItems"),
        ("$.veto", "additionalProperties"),
    }


def test_a_missing_property_is_named_by_its_own_path() -> None:
    (violation,) = validate({"side": "BUY"}, ORDER)

    assert (violation.path, violation.keyword, violation.actual) == ("$.qty", "required", None)


def test_an_undeclared_property_is_shown_the_declared_ones_and_the_nearest() -> None:
    (violation,) = validate({"side": "BUY", "qty": 1, "leg": []}, ORDER)

    assert violation.path == "$.leg"
    assert violation.allowed == ["legs", "qty", "side"]
    assert violation.suggestion == "legs"


@pytest.mark.parametrize(
    ("value", "schema", "allowed", "suggestion"),
    [
        ("BUYY", {"enum": ["BUY", "SELL"]}, ["BUY", "SELL"], "BUY"),
        ("sell", {"enum": ["BUY", "SELL"]}, ["BUY", "SELL"], "SELL"),
        ("nothing like it", {"enum": ["BUY", "SELL"]}, ["BUY", "SELL"], None),
        (7, {"enum": [1, 2.5, 10]}, [1, 2.5, 10], 10),
        (7, {"enum": ["a", None]}, ["a", None], None),
        (True, {"enum": [1, 2]}, [1, 2], None),
        (Decimal("0.1"), {"const": "x"}, ["x"], "x"),
        (Decimal(-1), {"minimum": 0}, ">= 0", 0),
        (Decimal("1.5"), {"maximum": 1.25}, "<= 1.25", 1.25),
        (0, {"exclusiveMinimum": 0}, "> 0", None),
        (10, {"exclusiveMaximum": 10}, "< 10", None),
        (Decimal("0.013"), {"multipleOf": 0.01}, "multiples of 0.01", 0.01),
        ("a", {"minLength": 2}, "at least 2 characters", None),
        ("abc", {"maxLength": 2}, "at most 2 characters", None),
        ([], {"minItems": 1}, "at least 1 items", None),
        ({}, {"minProperties": 1}, "at least 1 properties", None),
    ],
)
def test_what_would_pass_is_said_and_the_nearest_of_it(
    value: Any, schema: dict[str, Any], allowed: Any, suggestion: Any
) -> None:
    violation = only(value, **schema)

    assert (violation.allowed, violation.suggestion) == (allowed, suggestion)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("5", {"type": ["integer", "null"]}, "integer or null"),
        ("yesterday", {"type": "string", "format": "date-time"}, "date-time"),
        ("12,5", {"pattern": "^[0-9.]+$"}, "^[0-9.]+$"),
        ([1, 1], {"uniqueItems": True}, None),
    ],
)
def test_what_was_expected_is_said(value: Any, schema: dict[str, Any], expected: str | None) -> None:
    assert only(value, **schema).expected == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Decimal("2.5"), 2.5),
        (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
        (10**30, "1" + "0" * 30),
        (None, None),
        ({"a": 1}, "an object with 1 properties"),
        ([1, 2], "an array of 2 items"),
        ("y" * 300, "y" * 200 + "…"),
        ((1,), "(1,)"),
    ],
)
def test_what_was_there_is_shown_short_and_reads_back_from_a_log(value: Any, shown: Any) -> None:
    violation = only(value, enum=["x"])

    assert violation.actual == shown
    assert Violation.model_validate_json(violation.model_dump_json()) == violation


def test_where_one_branch_is_meant_its_own_errors_are_given() -> None:
    plan = {"type": "object", "properties": {"stop": {"type": "string"}}, "required": ["stop"]}

    assert [v.path for v in found({}, anyOf=[plan, {"type": "null"}])] == ["$.x.stop"]
    assert [v.path for v in found({"stop": 1}, oneOf=[plan, {"type": "null"}])] == ["$.x.stop"]


def test_where_no_branch_or_several_are_meant_the_choice_is_at_fault() -> None:
    branches = [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]

    assert only({}, anyOf=branches).keyword == "anyOf"
    assert only(3, anyOf=branches).keyword == "anyOf"
    assert only(3, oneOf=[{"type": "integer"}, {"type": "number"}]).keyword == "oneOf"


def test_properties_of_a_referred_schema_are_known() -> None:
    leg = {"type": "object", "properties": {"qty": {}}, "additionalProperties": False}
    schema = {"$defs": {"leg": leg}, "properties": {"x": {"$ref": "#/$defs/leg"}}}

    assert validate({"x": {"quantity": 1}}, schema)[0].allowed == ["qty"]


def test_unevaluated_properties_have_no_list_of_names_where_none_stands_beside_them() -> None:
    violation = only({"b": 1}, allOf=[{"properties": {"a": {}}}], unevaluatedProperties=False)

    assert (violation.path, violation.allowed) == ("$.x.b", None)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")])
@pytest.mark.parametrize("schema", [{}, {"type": "number", "exclusiveMinimum": 0, "maximum": 10}])
def test_a_number_that_json_does_not_have_is_a_violation_anywhere(
    number: float, schema: dict[str, Any]
) -> None:
    assert [v.path for v in found([{"y": number}], **schema)] == ["$.x[0].y"]


def test_a_value_that_is_nested_too_deep_is_a_violation() -> None:
    value: Any = 1
    for _ in range(2000):
        value = [value]

    assert "nested deeper" in found(value)[0].message


def test_ticks_are_exact() -> None:
    assert not any(found(Decimal(i) / 100, multipleOf=0.01) for i in range(1, 10_000, 7))
    assert found(Decimal("0.015"), multipleOf=0.01)


def test_more_violations_than_a_reader_needs_are_counted() -> None:
    violations = found(["x"] * 100, type="array", items={"type": "integer"})

    assert len(violations) == MAX_VIOLATIONS + 1
    assert violations[-1].message == "80 more rules are broken"


def test_of_a_very_large_value_the_first_violation_is_given() -> None:
    assert len(found(["x"] * 200_000, type="array", items={"type": "integer"})) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"properties": 5},
        {"properties": {"a": {"pattern": "("}}},
        {"$ref": "https://example.com/other.json"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "#/$defs/missing"},
        {"$schema": "https://example.com/unknown"},
        {"type": "array"},
        {"type": ["string", "null"]},
        {"maximum": math.nan},
    ],
)
def test_a_schema_that_cannot_be_used_is_our_own_fault(schema: dict[str, Any]) -> None:
    with pytest.raises(ParserException, match="schema") as broken:
        validate({}, schema)

    assert broken.value.stage is Stage.SCHEMA_INVALID


def test_a_schema_is_compiled_once() -> None:
    assert compiled(b'{"type":"object"}') is compiled(b'{"type":"object"}')


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_older_drafts_are_understood(draft: str) -> None:
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "properties": {"x": {"type": "integer"}}}

    assert validate({"x": 1}, schema) == []
    assert validate({"x": "1"}, schema) != []
