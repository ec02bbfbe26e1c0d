"""A schema is rendered for a model in few words, and no rule of it is lost on the way."""

from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.structured.render import render_schema
from agentic_trading.structured.schema import prompt_schema
from tests.structured.asking import ORDER

LEG = {"type": "object", "properties": {"px": {"type": "number"}}, "required": ["px"]}
ANSWERS_ONLY_TO_THEM = {"items": [{"type": "string"}], "additionalItems": {"type": "number"}}


def text_of(schema: dict[str, Any], *, sentinel: bool = False) -> str:
    """Return what a prompt says of a schema."""
    return render_schema(canonical_bytes(schema), sentinel=sentinel)


def of(x: Any) -> str:
    """Return what a prompt says of the property `x` of a closed object."""
    text = text_of({
        "type": "object",
        "properties": {"x": x},
        "required": ["x"],
        "additionalProperties": False,
    })
    assert text.startswith('// no other properties\n{\n "x": '), text
    return text.removeprefix('// no other properties\n{\n "x": ').replace("\n}", "", 1)


def test_order_renders_in_short_form() -> None:
    order = {
        "type": "object",
        "properties": {
            "side": {"enum": ["BUY", "SELL"]},
            "qty": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 10,
                "description": "coins, not\n dollars",
            },
            "stop": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "legs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"px": {"type": "number", "multipleOf": 0.01}},
                    "required": ["px"],
                    "additionalProperties": False,
                },
                "minItems": 1,
                "maxItems": 3,
            },
            "note": {"type": "string", "maxLength": 200, "description": "why"},
        },
        "required": ["side", "qty", "legs"],
        "additionalProperties": False,
    }

    assert text_of(order, sentinel=True).splitlines() == [
        "// no other properties",
        "{",
        ' "side": "BUY" | "SELL",',
        ' "qty": number (> 0, <= 10), // coins, not dollars',
        ' "legs": [{"px": number (multiple of 0.01)}] (1 to 3 items),',
        ' "note"?: string (at most 200 characters), // why',
        ' "stop"?: number | null,',
        ' "end": "ok"',
        "}",
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ({"type": ["integer", "null"], "minimum": 1}, "integer (>= 1) | null"),
        ({"minimum": 1}, "number (>= 1) | any other type"),
        ({"properties": {"a": True}, "additionalProperties": False}, '{"a"?: any} | any other type'),
        ({"type": "array"}, "[any]"),
        ({"type": "array", "items": False}, "[]"),
        ({"type": "array", "prefixItems": [{"type": "string"}, True]}, "[0: string, 1: any, ...: any]"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, "[0: string]"),
        ({"type": "string", "minLength": 5, "maxLength": 5}, "string (exactly 5 characters)"),
        ({"type": "string", "minLength": 1}, "string (at least 1 character)"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "number (0 to 1)"),
        ({"const": None}, "null"),
        ({"const": {"a": 1}}, 'exactly {"a":1}'),
        ({"enum": ["a", 1, 1.5, True, None, [1]]}, '"a" | 1 | 1.5 | true | null | exactly [1]'),
        ({"type": "number", "enum": ["a", 1, 1.5, True]}, "1 | 1.5"),
        ({"type": "string", "enum": [1]}, 'JSON Schema {"enum":[1],"type":"string"}'),
        ({"enum": ["a"], "minLength": 1}, 'JSON Schema {"enum":["a"],"minLength":1}'),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"const": "a", "description": "up"}, {"const": "b"}]}, '"a" | "b" // up'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "exactly one of (integer | number)"),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "exactly one of (1 | 2 | 2 | 3)"),
        ({"oneOf": [True, {"type": "string"}]}, "exactly one of (any | string)"),
        ({"oneOf": [{"const": n} for n in range(51)]}, f"exactly one of ({' | '.join(map(str, range(51)))})"),
    ],
)
def test_each_schema_form_has_expected_text(schema: Any, words: str) -> None:
    assert of(schema) == words


TABLE: list[tuple[str, dict[str, Any], Any]] = [
    ("type", {}, "string"),
    ("type", {}, ["string", "null"]),
    ("enum", {}, ["a", "b"]),
    ("const", {}, 1),
    ("minimum", {"type": "number"}, 1),
    ("maximum", {"type": "number"}, 1),
    ("minimum", {"type": "number"}, 0),
    ("exclusiveMinimum", {"type": "integer"}, 0),
    ("exclusiveMaximum", {"type": "integer"}, 0),
    ("exclusiveMinimum", {"type": "integer"}, 1),
    ("exclusiveMaximum", {"type": "integer"}, 1),
    ("multipleOf", {"type": "number"}, 0.01),
    ("minLength", {"type": "string"}, 1),
    ("maxLength", {"type": "string"}, 1),
    ("pattern", {"type": "string"}, "^a$"),
    ("format", {"type": "string"}, "date-time"),
    ("contentEncoding", {"type": "string"}, "base64"),
    ("contentMediaType", {"type": "string"}, "application/json"),
    ("items", {"type": "array"}, {"type": "string"}),
    ("items", {"type": "array"}, False),
    ("prefixItems", {"type": "array"}, [{"type": "string"}]),
    ("minItems", {"type": "array"}, 1),
    ("maxItems", {"type": "array"}, 0),
    ("maxItems", {"type": "array"}, 1),
    ("uniqueItems", {"type": "array"}, True),
    ("contains", {"type": "array"}, {"type": "string"}),
    ("minContains", {"type": "array", "contains": {}}, 2),
    ("maxContains", {"type": "array", "contains": {}}, 2),
    ("unevaluatedItems", {"type": "array"}, False),
    ("properties", {"type": "object"}, {"a": {}}),
    ("required", {"type": "object"}, ["a"]),
    ("required", {"type": "object", "properties": {"a": {}}}, ["a"]),
    ("additionalProperties", {"type": "object"}, False),
    ("additionalProperties", {"type": "object"}, True),
    ("additionalProperties", {"type": "object"}, {"type": "number"}),
    ("patternProperties", {"type": "object"}, {"^a": {"type": "number"}}),
    ("propertyNames", {"type": "object"}, {"maxLength": 2}),
    ("minProperties", {"type": "object"}, 1),
    ("maxProperties", {"type": "object"}, 1),
    ("unevaluatedProperties", {"type": "object"}, False),
    ("dependentRequired", {"type": "object"}, {"a": ["b"]}),
    ("dependentSchemas", {"type": "object"}, {"a": {"required": ["b"]}}),
    ("dependencies", {"type": "object"}, {"a": ["b"]}),
    ("anyOf", {}, [{"type": "string"}, {"type": "null"}]),
    ("oneOf", {}, [{"type": "string"}, {"minLength": 2}]),
    ("allOf", {}, [{"type": "string"}]),
    ("not", {}, {"type": "string"}),
    ("if", {"then": {"type": "string"}}, {"const": "a"}),
    ("then", {"if": {"const": "a"}}, {"type": "string"}),
    ("else", {"if": {"const": "a"}}, {"type": "string"}),
    ("$ref", {}, "#/$defs/leg"),
    ("description", {"type": "string"}, "in per cent"),
]
IDS = [f"{keyword}-{place}" for place, (keyword, _, _) in enumerate(TABLE)]


@pytest.mark.parametrize(("keyword", "beside", "value"), TABLE, ids=IDS)
def test_every_keyword_changes_rendering(keyword: str, beside: dict[str, Any], value: Any) -> None:
    def rendering(x: dict[str, Any]) -> str:
        return text_of({"type": "object", "properties": {"x": x}, "$defs": {"leg": LEG}})

    assert rendering({**beside, keyword: value}) != rendering(beside)


AT_THE_TOP = [
    row
    for row in TABLE
    if row[1].get("type", "object") == "object" and row[0] not in {"type", "enum", "const", "description"}
]


@pytest.mark.parametrize(("keyword", "beside", "value"), AT_THE_TOP)
def test_root_keyword_changes_rendering(keyword: str, beside: dict[str, Any], value: Any) -> None:
    assert text_of({**beside, keyword: value, "$defs": {"leg": LEG}}) != text_of({
        **beside,
        "$defs": {"leg": LEG},
    })


def test_older_draft_keywords_are_rendered() -> None:
    four = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "additionalProperties": False,
    }
    bounds = {"minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}
    seven = {**four, "$schema": "http://json-schema.org/draft-07/schema#"}

    assert '"x"?: number (> 0, <= 9)' in text_of({**four, "properties": {"x": {"type": "number", **bounds}}})
    assert '"x"?: number (>= 0, < 9)' in text_of({
        **four,
        "properties": {"x": {"type": "number", "minimum": 0, "maximum": 9, "exclusiveMaximum": True}},
    })
    assert '"x"?: [0: string, ...: number]' in text_of({
        **seven,
        "properties": {"x": {"type": "array", **ANSWERS_ONLY_TO_THEM}},
    })


def test_additional_properties_are_stated_per_object() -> None:
    closed = {"type": "object", "properties": {"a": True}, "additionalProperties": False}

    text = text_of({
        "type": "object",
        "properties": {"x": closed, "y": {"type": "object", "additionalProperties": True}},
    })

    assert text == '{\n "x"?: {"a"?: any} (no other properties),\n "y"?: {...: any}\n}'


def test_undeclared_required_property_is_rendered() -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": {"type": "number"}}

    assert text_of(schema) == '// no other properties\n{\n "a": number,\n ...: number\n}'
    assert '"a": never' in text_of({**schema, "additionalProperties": False})


@pytest.mark.parametrize(
    ("description", "is_kept"),
    [
        ("x" * 60, True),
        ("x" * 61, False),
        ("in % of the account " + "x" * 100, True),
        ("a fraction, not a percentage " + "x " * 40, True),
        ("prices in USD " + "x " * 50, True),
        ("in % " + "x" * 116, False),
        (" \n\t ", False),
        (5, False),
    ],
)
def test_short_or_unit_description_is_kept(description: Any, is_kept: bool) -> None:  # noqa: FBT001 - by place
    text = text_of({"type": "object", "properties": {"x": {"type": "number", "description": description}}})

    assert ("//" in text) is is_kept


def test_descriptions_end_the_property_line() -> None:
    inner = {
        "type": "object",
        "properties": {"px": {"type": "number", "description": "USD"}},
        "description": "a leg",
    }
    items = {
        "type": "array",
        "items": {"anyOf": [inner, {"type": "null", "description": "none"}]},
        "description": "all",
    }

    text = text_of({
        "type": "object",
        "properties": {"legs": items, "n": {"type": "integer"}},
        "description": "an order",
    })

    assert text.splitlines() == [
        "{",
        ' "legs"?: [{',
        '  "px"?: number // USD',
        " } | null], // all; a leg; none",
        ' "n"?: integer',
        "} // an order",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"$ref": "#leg"}}, "$defs": {"a": {"$anchor": "leg", **LEG}}},
        {
            "type": "object",
            "properties": {"x": {"$dynamicRef": "#leg"}},
            "$defs": {"a": {"$dynamicAnchor": "leg"}},
        },
        {
            "type": "object",
            "properties": {"x" * n: True for n in range(1, 3)},
            "allOf": [{"required": ["x"]}],
        },
    ],
)
def test_unrenderable_schema_falls_back_to_json(schema: dict[str, Any]) -> None:
    assert text_of(schema) == f"JSON Schema {prompt_schema(canonical_bytes(schema), sentinel=False)}"


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"properties": 5}, {"$ref": "https://example.com/x"}])
def test_broken_schema_is_rendered_unchanged(schema: dict[str, Any]) -> None:
    assert text_of(schema, sentinel=True) == canonical_bytes(schema).decode()


def test_root_schema_renders_as_object() -> None:
    assert text_of({}) == "object"
    assert text_of({"type": ["object", "null"], "minProperties": 1}) == "object (at least 1 property)"
    assert text_of({"properties": {"a": {"type": "string"}}}) == '{\n "a"?: string\n}'
    assert text_of({}, sentinel=True) == '{\n "end": "ok"\n}'


def test_rendering_does_not_mutate_schema() -> None:
    before = canonical_bytes(ORDER)

    text_of(ORDER, sentinel=True)

    assert canonical_bytes(ORDER) == before
