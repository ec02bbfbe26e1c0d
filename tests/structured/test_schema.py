"""A schema is shown to a model without noise, and given to a provider in the form that it enforces."""

import json
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from pydantic import BaseModel, Field

from agentic_trading.canonical import canonical_bytes
from agentic_trading.structured.schema import prompt_schema, resolve_reference
from agentic_trading.structured.strict_schema import strict_problem, strict_schema
from tests.structured.any_schema import WHOLE
from tests.structured.asking import ANSWER, ORDER


def prompted(schema: dict[str, Any], *, sentinel: bool = False) -> dict[str, Any]:
    """Return the schema that a prompt holds."""
    result: dict[str, Any] = json.loads(prompt_schema(canonical_bytes(schema), sentinel=sentinel))
    return result


def strict(schema: dict[str, Any], *, sentinel: bool = False) -> Any:
    """Return the schema that a provider enforces."""
    return strict_schema(canonical_bytes(schema), sentinel=sentinel)


def problem(schema: dict[str, Any], **limits: int) -> str | None:
    """Return why a provider with `limits` would not enforce the schema."""
    return strict_problem(canonical_bytes(schema), **limits)


def of(**schema: Any) -> dict[str, Any]:
    """Return a closed object with one property `x`."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}


def test_prompt_schema_drops_noise() -> None:
    schema = of(type="integer", minimum=0, description="per cent", title="X", default=1, examples=[2])

    assert prompted({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "s"}) == of(
        type="integer", minimum=0, description="per cent"
    )


def test_properties_named_like_noise_stay() -> None:
    schema = {"properties": {"title": {"type": "string"}, "default": {"type": "integer"}}}

    assert prompted(schema) == schema


def test_properties_follow_required_order() -> None:
    properties = {"action": {}, "because": {"properties": {"a": {}, "b": {}}, "required": ["b"]}, "other": {}}

    schema = prompted({"properties": properties, "required": ["because", "action"]})

    assert list(schema["properties"]) == ["because", "action", "other"]
    assert list(schema["properties"]["because"]["properties"]) == ["b", "a"]


def test_reference_resolves_within_schema_only() -> None:
    root = {"a": [{"b/c": 5}], "~": 6}

    assert [resolve_reference(root, place) for place in ("#", "#/a/0/b~1c", "#/~0", "#/%7E0")] == [
        root,
        5,
        6,
        6,
    ]
    for place in ("other.v1#/a", "#anchor", "#/a/x", "#/a/9", "#/missing", "#/~0/x"):
        with pytest.raises(LookupError):
            resolve_reference(root, place)


def test_sentinel_is_last_required_property() -> None:
    for schema in (prompted(ORDER, sentinel=True), strict(ORDER, sentinel=True)):
        assert list(schema["properties"])[-1] == "end"
        assert schema["required"][-1] == "end"
        assert schema["properties"]["end"]["enum"] == ["ok"]


def test_sentinel_may_be_only_property() -> None:
    assert prompted({}, sentinel=True) == {"properties": {"end": {"enum": ["ok"]}}, "required": ["end"]}


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"properties": 5}, {"$ref": "https://example.com/x"}])
def test_broken_schema_has_no_strict_form(schema: dict[str, Any]) -> None:
    assert prompted(schema, sentinel=True) == schema
    assert strict(schema) is None


def test_strict_form_closes_objects_describes_bounds() -> None:
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


def test_strict_form_uses_any_of() -> None:
    form = strict(of(oneOf=[{"type": "string", "pattern": "^a"}, {"type": "null"}]))

    assert form["properties"]["x"] == {
        "anyOf": [{"type": "string", "description": '(pattern: "^a")'}, {"type": "null"}]
    }


def test_nullable_object_is_closed() -> None:
    form = strict(of(type=["object", "null"], properties={"a": {"type": "string"}}))

    assert form["properties"]["x"]["additionalProperties"] is False


def test_internal_references_are_kept() -> None:
    leg = {"type": "object", "properties": {"qty": {"type": "integer"}}, "additionalProperties": False}
    schema = {
        **of(**{"$ref": "#/$defs/leg"}),
        "$defs": {"leg": leg, "legs": {"type": "array", "items": {"$ref": "#/$defs/leg"}}},
    }

    assert strict(schema) == schema


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ({"type": "object"}, "#/properties/x: an open object"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "#/properties/x: an open object"),
        ({**CLOSED, "additionalProperties": {"type": "number"}}, "#/properties/x: an open object"),
        ({"type": ["object", "null"], "additionalProperties": True}, "#/properties/x: an open object"),
        ({**CLOSED, "required": ["b"]}, "#/properties/x: requires 'b' and does not declare it"),
        ({"type": "array"}, "#/properties/x: an array of anything"),
        ({"type": "array", "items": True}, "#/properties/x: items allows anything"),
        ({"type": "array", "items": {"type": "array"}}, "#/properties/x/items: an array of anything"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
            "#/properties/x: prefixItems cannot be enforced",
        ),
        (
            {**CLOSED, "patternProperties": {"^a": {"type": "string"}}},
            "#/properties/x: patternProperties cannot be enforced",
        ),
        ({"type": "string", "not": {"const": "x"}}, "#/properties/x: not cannot be enforced"),
        ({"type": "string", "if": {"const": "x"}, "then": False}, "#/properties/x: if cannot be enforced"),
        ({"description": "anything"}, "#/properties/x: allows anything"),
        ({**CLOSED, "properties": {"a": True}}, "#/properties/x: properties/a allows anything"),
        ({"anyOf": [{"type": "string"}, False]}, "#/properties/x: anyOf/1 allows nothing"),
        (
            {"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]},
            "#/properties/x: anyOf beside oneOf cannot be enforced",
        ),
        ({"$ref": "#"}, "#/properties/x: refers to '#', not to a definition"),
        ({"$ref": "#/properties/x/$defs/a", "$defs": {"a": CLOSED}}, "#/properties/x: refers to '#/properties/x/$defs/a', not to a definition"),
    ],
)  # fmt: skip
def test_unsupported_keyword_prevents_strict_form(inner: dict[str, Any], reason: str) -> None:
    assert strict(of(**inner)) is None
    assert problem(of(**inner)) == reason


def test_recursion_has_no_strict_form() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    schema = {**of(**{"$ref": "#/$defs/node"}), "$defs": {"node": node}}

    assert strict(schema) is None
    assert problem(schema) == "a definition refers to itself"


def test_definition_ring_is_refused_chain_accepted() -> None:
    def link(to: str) -> dict[str, Any]:
        return {**CLOSED, "properties": {"next": {"$ref": f"#/$defs/{to}"}}}

    both = {**CLOSED, "properties": {"a": {"$ref": "#/$defs/d0"}, "b": {"$ref": "#/$defs/d1"}}}
    chain = {"both": both} | {f"d{n}": link(f"d{n + 1}") for n in range(50)} | {"d50": {"type": "null"}}

    assert problem({**of(**{"$ref": "#/$defs/d0"}), "$defs": chain}) is None
    assert problem({**of(**{"$ref": "#/$defs/d0"}), "$defs": {**chain, "d50": link("d0")}}) is not None


def test_strict_root_must_be_plain_object() -> None:
    for schema in ({}, {"anyOf": [CLOSED]}, {**ANSWER, "type": ["object", "null"]}):
        assert strict(schema) is None
        assert problem(schema) == "#: is not plainly an object"


def test_broken_schema_problem_is_reported() -> None:
    assert problem({"type": "objekt"}) == "the schema is broken"


def test_single_typed_constants_gain_type() -> None:
    assert strict(of(enum=["a", "b"]))["properties"]["x"] == {"type": "string", "enum": ["a", "b"]}
    assert strict(of(const=1))["properties"]["x"] == {"type": "integer", "const": 1}
    assert strict(of(enum=["a", 1]))["properties"]["x"] == {"enum": ["a", 1]}
    assert strict(of(enum=[["a"]]))["properties"]["x"] == {"enum": [["a"]]}


class Market(BaseModel, extra="forbid"):
    kind: Literal["market"] = "market"
    qty: int


class Limit(BaseModel, extra="forbid"):
    kind: Literal["limit", "post_only"]
    px: float


class Ticket(BaseModel, extra="forbid"):
    order: Annotated[Market | Limit, Field(discriminator="kind")]
    any_market: Market


def test_discriminated_branches_get_constant_tag() -> None:
    form = strict(Ticket.model_json_schema())

    assert form["properties"]["order"] == {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"type": "string", "const": "market"}, "qty": {"type": "integer"}},
                "required": ["qty", "kind"],
                "additionalProperties": False,
            },
            {"$ref": "#/$defs/Limit"},
        ]
    }
    assert form["$defs"]["Market"]["required"] == ["qty"]


def test_string_tag_takes_mapping_constants() -> None:
    def branch(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"t": {"type": "string"}, name: {"type": "string"}},
            "required": [name],
        }

    schema = {
        **of(
            oneOf=[{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, branch("c"), {"type": "null"}],
            discriminator={
                "propertyName": "t",
                "mapping": {"a": "#/$defs/A", "b": "#/$defs/B", "bb": "#/$defs/B"},
            },
        ),
        "$defs": {"A": branch("a"), "B": branch("b")},
    }

    branches = strict(schema)["properties"]["x"]["anyOf"]

    assert [branch.get("properties", {}).get("t") for branch in branches] == [
        {"type": "string", "const": "a"},
        {"type": "string", "enum": ["b", "bb"]},
        {"type": "string"},
        None,
    ]
    assert [branch.get("required") for branch in branches] == [["a", "t"], ["b", "t"], ["c", "t"], None]


@pytest.mark.parametrize(
    "discriminator", ["kind", {}, {"propertyName": 5}, {"propertyName": "missing", "mapping": ["a"]}]
)
def test_discriminator_without_tag_is_ignored(discriminator: Any) -> None:
    form = strict(of(anyOf=[CLOSED, {"type": "null"}], discriminator=discriminator))

    assert form["properties"]["x"] == {"anyOf": [CLOSED, {"type": "null"}]}


def optional(count: int, **schema: Any) -> dict[str, Any]:
    """Return a closed object with so many optional properties of one schema."""
    return {
        "type": "object",
        "properties": {f"p{n}": schema for n in range(count)},
        "additionalProperties": False,
    }


def test_optional_properties_count_against_limit() -> None:
    text = {"type": "string"}

    assert problem(optional(24, **text), most_optional=24) is None
    assert problem(optional(25, **text)) is None
    assert problem(optional(25, **text), most_optional=24) == "25 optional properties; the provider takes 24"
    assert problem({**optional(25, **text), "required": ["p0"]}, most_optional=24) is None
    assert problem(of(type="array", items=optional(25, **text)), most_optional=24) is not None


@pytest.mark.parametrize(
    ("union", "counts"),
    [
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"type": "array", "items": {"type": ["string", "null"]}}, False),
    ],
)
def test_union_properties_count_against_limit(union: dict[str, Any], *, counts: bool) -> None:
    reason = problem(optional(17, **union), most_optional=24, most_unions=16)

    assert reason == ("17 properties of several types; the provider takes 16" if counts else None)


def test_referenced_properties_are_not_counted() -> None:
    schema = {**of(**{"$ref": "#/$defs/many"}), "$defs": {"many": optional(30, type=["string", "null"])}}

    assert problem(schema, most_optional=24, most_unions=16) is None


@given(WHOLE)
def test_any_schema_is_strict_or_explained(schema: dict[str, Any]) -> None:
    spelled = canonical_bytes({**schema, "type": "object", "additionalProperties": False})

    for sentinel in (True, False):
        form, reason = strict_schema(spelled, sentinel=sentinel), strict_problem(spelled)
        assert (form is None) is (reason is not None)
        if form is not None:
            jsonschema_rs.validator_for(dict(form))
            assert "oneOf" not in str(form) or "oneOf:" in str(form)


def test_sentinel_does_not_close_open_object() -> None:
    assert strict({"type": "object"}, sentinel=True) is None
    assert strict({"type": "object", "properties": {}}, sentinel=True) is not None


def test_maximum_union_properties_are_accepted() -> None:
    assert problem(optional(16, type=["string", "null"]), most_optional=24, most_unions=16) is None


def test_lookaround_pattern_is_described_in_words() -> None:
    schema = {
        "type": "object",
        "properties": {
            "plain": {"type": "string", "pattern": "^[A-Z]+$"},
            "ahead": {"type": "string", "pattern": "^(?=A)"},
        },
    }

    form: Any = strict_schema(canonical_bytes(schema), sentinel=False, bounds=True)

    assert form["properties"]["plain"]["pattern"] == "^[A-Z]+$"
    assert "pattern" not in form["properties"]["ahead"]
    assert "(?=A)" in form["properties"]["ahead"]["description"]
