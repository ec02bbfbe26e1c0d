"""What is wrong is said so that a model can act on it: the place, what was there, and what would have passed."""

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Violation
from agentic_trading.structured import validate
from tests.structured.asking import ORDER


def found(value: Any, **schema: Any) -> list[Violation]:
    """Return what `{"x": value}` breaks of `schema`."""
    return validate({"x": value}, {"type": "object", "properties": {"x": schema}})


def only(value: Any, **schema: Any) -> Violation:
    """Return the one rule that `{"x": value}` breaks."""
    (violation,) = found(value, **schema)
    return violation


def test_missing_property_has_own_path() -> None:
    (violation,) = validate({"side": "BUY"}, ORDER)

    assert (violation.path, violation.keyword, violation.actual) == ("$.qty", "required", None)


def test_undeclared_property_suggests_nearest_declared() -> None:
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
        (3, {"type": "integer", "exclusiveMinimum": 3, "maximum": 9}, "> 3", 4),
        (9, {"type": "integer", "exclusiveMaximum": 9}, "< 9", 8),
        (Decimal("0.4"), {"type": "number", "minimum": 0.5, "multipleOf": 0.2}, ">= 0.5", 0.6),
        (Decimal("0.004"), {"exclusiveMinimum": 0, "multipleOf": 0.01}, "multiples of 0.01", 0.01),
        (7, {"type": "integer", "multipleOf": 5}, "multiples of 5", 5),
        (11, {"type": "integer", "maximum": 9, "multipleOf": 0.3}, "<= 9", 9),
        (11, {"type": "integer", "maximum": 8, "multipleOf": 0.3}, "<= 8", None),
        (-5, {"exclusiveMinimum": 0, "maximum": 10}, "> 0", None),
        (4, {"minimum": 5, "maximum": 3}, ">= 5", None),
        (4, {"type": "integer", "minimum": 5, "maximum": 3}, ">= 5", None),
        (math.pi, {"maximum": 3}, "<= 3", 3),
        ("25", {"enum": [5, 10, 20, 30]}, [5, 10, 20, 30], 20),
        ("10%", {"enum": [0.08, 0.1, 0.12]}, [0.08, 0.1, 0.12], 0.1),
        ("10 %", {"enum": [5, 10, 20]}, [5, 10, 20], 10),
        ("$4", {"enum": [5, 10]}, [5, 10], 5),
        ("ten", {"enum": [5, 10]}, [5, 10], None),
        (6, {"anyOf": [{"enum": [5, 20]}, {"const": 9}]}, [5, 20, 9], 5),
        ([], {"minItems": 1}, "at least 1 items", None),
        ({}, {"minProperties": 1}, "at least 1 properties", None),
    ],
)
def test_violation_gives_allowed_and_nearest(
    value: Any, schema: dict[str, Any], allowed: Any, suggestion: Any
) -> None:
    violation = found(value, **schema)[0]

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
def test_violation_gives_expected_description(
    value: Any, schema: dict[str, Any], expected: str | None
) -> None:
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
def test_actual_value_is_shortened_and_serializable(value: Any, shown: Any) -> None:
    violation = only(value, enum=["x"])

    assert violation.actual == shown
    assert Violation.model_validate_json(violation.model_dump_json()) == violation


@pytest.mark.parametrize(
    ("member", "expected", "allowed"),
    [
        ({"type": "number"}, "number", None),
        ({"type": ["integer", "null"]}, "integer or null", None),
        ({"enum": ["BUY", "SELL"], "type": "string"}, "string", ["BUY", "SELL"]),
        ({"const": 5}, "a value", [5]),
        ({"anyOf": [{"enum": ["W", "M"], "type": "string"}, {"type": "null"}]}, "string or null", ["W", "M"]),
        ({"oneOf": [{"enum": ["W"]}, {"type": "string"}]}, "string", None),
        ({"$ref": "#/$defs/a~1b"}, "boolean", None),
        ({"$ref": "#/$defs/round"}, "a value", None),
        (True, "a value", None),
    ],
)
def test_missing_member_gives_expected_type(member: Any, expected: str, allowed: Any) -> None:
    schema = {
        "properties": {"legs": {"items": {"required": ["m"], "properties": {"m": member}}}},
        "$defs": {"a/b": {"type": "boolean"}, "round": {"anyOf": [{"$ref": "#/$defs/round"}]}},
    }

    (violation,) = validate({"legs": [{"m": 1}, {}]} if member is True else {"legs": [{}]}, schema)

    assert (violation.expected, violation.allowed) == (expected, allowed)
    assert violation.path in {"$.legs[0].m", "$.legs[1].m"}


def test_misspelt_key_suggests_absent_declared_key() -> None:
    schema = {"properties": {"legs": {}, "leg_2": {}, "quantity": {}}, "additionalProperties": False}

    assert [v.suggestion for v in validate({"legs": 1, "leg2": 2}, schema)] == ["leg_2"]
    assert [v.suggestion for v in validate({"qty": 1}, schema)] == ["quantity"]
    assert [v.suggestion for v in validate({"legs": 1, "leg_2": 2, "leg": 2}, schema)] == ["legs"]
    assert [v.suggestion for v in validate({"": 1}, schema)] == [None]


def test_matching_branch_reports_own_errors() -> None:
    plan = {"type": "object", "properties": {"stop": {"type": "string"}}, "required": ["stop"]}

    assert [v.path for v in found({}, anyOf=[plan, {"type": "null"}])] == ["$.x.stop"]
    assert [v.path for v in found({"stop": 1}, oneOf=[plan, {"type": "null"}])] == ["$.x.stop"]


def test_unclear_branch_reports_the_choice() -> None:
    branches = [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]

    assert only({}, anyOf=branches).keyword == "anyOf"
    assert only(3, anyOf=branches).keyword == "anyOf"
    assert only(3, oneOf=[{"type": "integer"}, {"type": "number"}]).keyword == "oneOf"


def test_constant_identifies_the_branch() -> None:
    def kind(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"kind": {"const": name}, "px": {"type": "number"}},
            "required": ["px"],
        }

    branches = [kind("limit"), kind("stop")]

    assert [v.path for v in found({"kind": "stop"}, oneOf=branches)] == ["$.x.px"]
    wrong = only({"kind": "limt"}, oneOf=branches)
    assert (wrong.path, wrong.allowed, wrong.suggestion) == ("$.x.kind", ["limit", "stop"], "limit")
    assert only({"kind": 1, "px": "x"}, oneOf=[kind("limit"), {"type": "object", "not": {}}]).path == "$.x"


def tagged(name: str, *periods: int) -> dict[str, Any]:
    """Return a branch with a tag, a choice of many, and a number."""
    return {
        "type": "object",
        "properties": {
            "kind": {"const": name},
            "period": {"enum": [*periods], "type": "integer"},
            "px": {"type": "number"},
        },
        "required": ["kind", "period"],
        "additionalProperties": False,
    }


TAGGED = [tagged("limit", 5, 10, 20), tagged("stop", 100, 200), tagged("peg", 1)]


@pytest.mark.parametrize(
    "value", [{"period": 25}, {"period": "25"}, {"period": True}, {}, {"period": 5, "px": "x", "y": 1}]
)
def test_constant_tag_overrides_wrong_enum(value: dict[str, Any]) -> None:
    given = {"kind": "limit", **value}

    for keyword in ("anyOf", "oneOf"):
        assert found(given, **{keyword: TAGGED}) == found(given, **TAGGED[0])


def test_missing_tag_lists_all_branches() -> None:
    for value in ({}, {"period": 25, "px": "x"}):
        missing = only(value, anyOf=TAGGED)
        assert (missing.path, missing.keyword, missing.allowed) == (
            "$.x.kind",
            "required",
            ["limit", "stop", "peg"],
        )
    untagged = {"type": "object", "required": ["px"]}
    assert only({}, anyOf=[*TAGGED, untagged]).keyword == "anyOf"


def test_wrong_tag_hides_other_errors() -> None:
    wrong = only({"kind": "stp", "period": "25", "px": "x"}, anyOf=TAGGED)

    assert (wrong.path, wrong.allowed, wrong.suggestion) == ("$.x.kind", ["limit", "stop", "peg"], "stop")


def test_nested_choice_is_followed() -> None:
    inner = {"anyOf": [{"type": "object", "properties": {"stop": {"type": "string"}}}, {"type": "null"}]}

    assert [v.path for v in found({"stop": 1}, anyOf=[inner, {"type": "null"}])] == ["$.x.stop"]


def test_type_choice_lists_expected_types() -> None:
    assert (
        only("x", anyOf=[{"type": "integer"}, {"type": ["array", "null"]}]).expected
        == "integer or null or array"
    )
    assert only({"a": 1}, anyOf=[{"properties": {"a": {"type": "string"}}}] * 2).expected is None


def test_referenced_schema_properties_are_listed() -> None:
    leg = {"type": "object", "properties": {"qty": {}}, "additionalProperties": False}
    schema = {"$defs": {"leg": leg}, "properties": {"x": {"$ref": "#/$defs/leg"}}}

    assert validate({"x": {"quantity": 1}}, schema)[0].allowed == ["qty"]


def test_unevaluated_property_lists_no_names() -> None:
    violation = only({"b": 1}, allOf=[{"properties": {"a": {}}}], unevaluatedProperties=False)

    assert (violation.path, violation.allowed) == ("$.x.b", None)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["a", "b"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(_JSON)
def test_any_value_violation_is_serializable(value: Any) -> None:
    rules: dict[str, Any] = {
        "minimum": 3, "exclusiveMaximum": 5, "multipleOf": 0.5, "minLength": 2, "maxItems": 1, "maxProperties": 1,
        "items": {"$ref": "#/$defs/part"}, "required": ["a"],
        "properties": {"a": {"oneOf": [{"enum": [1, "x"]}, {"type": "object", "required": ["a"]}]}, "b": False}, "type": ["object", "array", "number"],
    }  # fmt: skip
    schema = {"$defs": {"part": {"anyOf": [rules, {"type": "null"}]}}, "properties": {"x": rules}}

    for violation in validate({"x": value}, schema):
        assert Violation.model_validate_json(violation.model_dump_json()) == violation


def test_slow_pattern_is_reported_as_violation() -> None:
    violation = only("a" * 40 + "b", pattern=r"^(a|aa)+\1$")

    assert (violation.path, violation.keyword, violation.expected) == ("$.x", "pattern", r"^(a|aa)+\1$")
    assert "backtracking" in violation.message
