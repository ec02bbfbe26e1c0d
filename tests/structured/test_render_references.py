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


def test_a_definition_is_named_where_it_is_used_twice_and_rendered_in_place_where_it_is_used_once() -> None:
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


def test_only_the_answer_itself_ends_with_the_sentinel_where_a_schema_refers_to_its_top() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}

    assert text_of(tree, sentinel=True) == (
        '// no other properties\n{\n "left"?: #,\n "end": "ok"\n}\n# = {"left"?: #}'
    )


def test_names_that_are_alike_are_kept_apart() -> None:
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


def test_what_stands_as_json_refers_to_definitions_that_are_rendered() -> None:
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
def test_one_of_is_rendered_as_a_plain_choice_where_no_value_can_fit_two_branches(
    one: dict[str, Any], other: dict[str, Any], *, apart: bool
) -> None:
    choice = {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]}

    text = text_of({"type": "object", "properties": {"x": choice}, "$defs": {"one": one, "other": other}})

    assert ("exactly one of" not in text) is apart


def test_a_reference_may_lead_into_a_list_and_through_references_without_end() -> None:
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


def test_words_that_would_be_much_longer_than_the_schema_give_way_to_it() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {f"p{n}": {"const": n} for n in range(40)}}
    for _ in range(12):
        deep = {"not": deep}
    pointers = {f"r{n}": {"$ref": "#/properties/x" + "/not" * n} for n in range(13)}

    schema = {"type": "object", "properties": {"x": deep, **pointers}}

    assert text_of(schema) == f"JSON Schema {prompt_schema(canonical_bytes(schema), sentinel=False)}"


def test_a_long_chain_of_definitions_is_rendered_without_nesting_it() -> None:
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
