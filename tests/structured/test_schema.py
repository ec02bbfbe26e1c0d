"""A schema is told to a model without noise, and given to a provider in the form that it enforces."""

import json
from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.structured.schema import prompt_schema, strict_schema
from tests.structured.asking import ANSWER, ORDER


def told(schema: dict[str, Any], *, sentinel: bool = False) -> dict[str, Any]:
    """Return the schema that a prompt holds."""
    result: dict[str, Any] = json.loads(prompt_schema(canonical_bytes(schema), sentinel=sentinel))
    return result


def strict(schema: dict[str, Any], *, sentinel: bool = False) -> Any:
    """Return the schema that a provider enforces."""
    return strict_schema(canonical_bytes(schema), sentinel=sentinel)


def of(**schema: Any) -> dict[str, Any]:
    """Return a closed object with one property `x`."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}


def test_a_prompt_keeps_rules_and_drops_noise() -> None:
    schema = of(type="integer", minimum=0, description="per cent", title="X", default=1, examples=[2])

    assert told({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "s"}) == of(
        type="integer", minimum=0, description="per cent"
    )


def test_properties_named_like_noise_stay() -> None:
    schema = {"properties": {"title": {"type": "string"}, "default": {"type": "integer"}}}

    assert told(schema) == schema


def test_properties_stand_in_the_order_in_which_they_are_required() -> None:
    properties = {"action": {}, "because": {"properties": {"a": {}, "b": {}}, "required": ["b"]}, "other": {}}

    schema = told({"properties": properties, "required": ["because", "action"]})

    assert list(schema["properties"]) == ["because", "action", "other"]
    assert list(schema["properties"]["because"]["properties"]) == ["b", "a"]


def test_the_sentinel_is_the_last_property_and_required() -> None:
    for schema in (told(ORDER, sentinel=True), strict(ORDER, sentinel=True)):
        assert list(schema["properties"])[-1] == "end"
        assert schema["required"][-1] == "end"
        assert schema["properties"]["end"] == {"enum": ["ok"]}


def test_a_sentinel_may_stand_alone() -> None:
    assert told({}, sentinel=True) == {"properties": {"end": {"enum": ["ok"]}}, "required": ["end"]}


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"properties": 5}, {"$ref": "https://example.com/x"}])
def test_a_broken_schema_is_told_as_it_is_and_has_no_strict_form(schema: dict[str, Any]) -> None:
    assert told(schema, sentinel=True) == schema
    assert strict(schema) is None


def test_the_strict_form_closes_objects_and_tells_bounds_in_words() -> None:
    schema = {
        "type": "object",
        "properties": {
            "qty": {"type": "number", "minimum": 0, "maximum": 10, "description": "coins"},
            "legs": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}},
        },
        "required": ["qty"],
    }

    assert strict(schema) == {
        "type": "object",
        "properties": {
            "qty": {"type": "number", "description": "coins (maximum: 10, minimum: 0)"},
            "legs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}},
                    "additionalProperties": False,
                },
            },
        },
        "required": ["qty"],
        "additionalProperties": False,
    }


def test_the_strict_form_says_any_of_where_the_schema_says_one_of() -> None:
    form = strict(of(oneOf=[{"type": "string", "pattern": "^a"}, {"type": "null"}]))

    assert form["properties"]["x"] == {
        "anyOf": [{"type": "string", "description": '(pattern: "^a")'}, {"type": "null"}]
    }


def test_a_nullable_object_is_closed_too() -> None:
    form = strict(of(type=["object", "null"], properties={"a": {"type": "string"}}))

    assert form["properties"]["x"]["additionalProperties"] is False


def test_references_inside_the_schema_are_kept() -> None:
    leg = {"type": "object", "properties": {"qty": {"type": "integer"}}, "additionalProperties": False}
    schema = {
        **of(**{"$ref": "#/$defs/leg"}),
        "$defs": {"leg": leg, "legs": {"type": "array", "items": {"$ref": "#/$defs/leg"}}},
    }

    assert strict(schema) == schema


@pytest.mark.parametrize(
    "inner",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "additionalProperties": {"type": "number"},
        },
        {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
        {"type": "object", "properties": {}, "patternProperties": {"^a": {"type": "string"}}},
        {"type": "string", "not": {"const": "x"}},
        {"description": "anything"},
        {"$ref": "#"},
    ],
)
def test_what_decoders_cannot_hold_has_no_strict_form(inner: dict[str, Any]) -> None:
    assert strict(of(**inner)) is None


def test_recursion_has_no_strict_form() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}

    assert strict({**of(**{"$ref": "#/$defs/node"}), "$defs": {"node": node}}) is None


def test_a_top_that_is_not_plainly_an_object_has_no_strict_form() -> None:
    assert strict({}) is None
    assert strict({"anyOf": [ANSWER]}) is None
