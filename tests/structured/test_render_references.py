"""Definitions and choices in the short form of a schema: what is rendered in place, by name, and as a plain choice."""

from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.structured.render import render_schema
from agentic_trading.structured.schema import prompt_schema

LEG = {"type": "object", "properties": {"px": {"type": "number"}}, "required": ["px"]}


def text_of(schema: dict[str, Any], *, sentinel: bool = False) -> str:
    """Return what a prompt says of a schema."""
    return render_schema(canonical_bytes(schema), sentinel=sentinel)


def test_definition_is_named_only_if_reused() -> None:
    leg = {"$ref": "#/$defs/leg"}
    definitions = {"$defs": {"leg": LEG, "unused": {"const": "unused"}}}

    once = text_of({"type": "object", "properties": {"a": leg}, **definitions})
    twice = text_of({
        "type": "object",
        "properties": {"a": leg, "b": {"type": "array", "items": leg}},
        **definitions,
    })

    assert once == '{\n "a"?: {"px": number}\n}'
    assert twice == '{\n "a"?: #leg,\n "b"?: [#leg]\n}\n#leg = {"px": number}'


def test_recursion_is_rendered_by_name() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    top = {"type": "object", "properties": {"first": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}

    assert text_of(top) == '{\n "first"?: #node\n}\n#node = {"next"?: #node | null}'
    assert text_of(tree) == '// no other properties\n#\n# = {"left"?: #}'


def test_only_root_answer_has_sentinel() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}

    assert text_of(tree, sentinel=True) == (
        '// no other properties\n{\n "left"?: #,\n "end": "ok"\n}\n# = {"left"?: #}'
    )


def test_colliding_definition_names_stay_distinct() -> None:
    text = text_of({
        "type": "object",
        "properties": {n: {"$ref": r} for n, r in {
            "a": "#/$defs/leg", "b": "#/$defs/leg", "c": "#/definitions/leg", "d": "#/definitions/leg",
            "e": "#/$defs/a%20b", "f": "#/$defs/a%20b", "g": "#/properties/a", "h": "#/properties/a",
        }.items()},
        "$defs": {"leg": {"type": "number"}, "a b": {"type": "string"}},
        "definitions": {"leg": {"type": "boolean"}},
    })  # fmt: skip

    assert text.splitlines()[-4:] == [
        "#leg = number",
        '#"/definitions/leg" = boolean',
        '#"/$defs/a%20b" = string',
        '#"/properties/a" = #leg',
    ]


def test_embedded_json_refers_to_rendered_definition() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"not": {"$ref": "#/$defs/leg"}}},
        "$defs": {"leg": {"type": "number", "minimum": 7}},
    }

    assert text_of(schema) == '{\n "x"?: JSON Schema {"not":{"$ref":"#/$defs/leg"}}\n}\n#leg = number (>= 7)'


def tagged(**tag: Any) -> dict[str, Any]:
    """Return an object with a required tag."""
    return {"type": "object", "properties": {"kind": tag, "n": {"const": 1}}, "required": ["kind", "n"]}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (tagged(const="a"), tagged(enum=["b", "c"]), True),
        (tagged(const="a"), tagged(enum=["a", "c"]), False),
        (tagged(const="a"), {**tagged(const="b"), "required": ["n"]}, False),
        (tagged(const="a"), {**tagged(const="b"), "type": ["object", "null"]}, False),
        (tagged(const="a"), {"type": "string"}, True),
        (tagged(const="a"), {"enum": [1, 2.5, True, None, "a", [1]]}, True),
        (tagged(const="a"), {"enum": [{"kind": "b"}]}, False),
        ({"const": 1}, {"type": "number"}, False),
    ],
)
def test_exclusive_one_of_renders_as_choice(
    one: dict[str, Any], other: dict[str, Any], *, apart: bool
) -> None:
    choice = {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]}

    text = text_of({"type": "object", "properties": {"x": choice}, "$defs": {"one": one, "other": other}})

    assert ("exactly one of" not in text) is apart


def test_list_and_endless_references_are_rendered() -> None:
    schema = {
        "type": "object",
        "properties": {
            "x": {"$ref": "#/$defs/either/anyOf/1"},
            "y": {"oneOf": [{"$ref": "#/$defs/round"}, {"type": "null"}]},
        },
        "$defs": {"either": {"anyOf": [True, {"type": "string"}]}, "round": {"$ref": "#/$defs/round"}},
    }

    assert text_of(schema) == (
        '{\n "x"?: #"/$defs/either/anyOf/1",\n "y"?: exactly one of (#round | null)\n}\n'
        '#"/$defs/either/anyOf/1" = string\n#round = #round'
    )


def test_overlong_rendering_falls_back_to_json() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {f"p{n}": {"const": n} for n in range(40)}}
    for _ in range(12):
        deep = {"not": deep}
    pointers = {f"r{n}": {"$ref": "#/properties/x" + "/not" * n} for n in range(13)}

    schema = {"type": "object", "properties": {"x": deep, **pointers}}

    assert text_of(schema) == f"JSON Schema {prompt_schema(canonical_bytes(schema), sentinel=False)}"


def test_long_definition_chain_is_not_nested() -> None:
    chain = {
        f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(120)
    }
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**chain, "d120": {"type": "null"}},
    }

    text = text_of(schema)

    assert text.count('"x"') == 121
    assert max(map(len, text.splitlines())) < 200
