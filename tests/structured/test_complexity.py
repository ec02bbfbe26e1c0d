"""A schema that would keep the loop from its work is refused before it is compiled."""

from typing import Any

import pytest

from agentic_trading.structured import ParserException, validate
from agentic_trading.structured.decode import MAX_DEPTH
from agentic_trading.structured.validation import (
    MAX_SCHEMA_BYTES,
    SHALLOW,
    SchemaTooComplexError,
    max_answer_depth,
)

OBJECT = {"type": "object"}


def doubling(levels: int, ref: str = "#/$defs/a{}") -> dict[str, Any]:
    """Return a small schema of which one value is checked 2^levels times."""
    chain = {
        f"a{n}": {"$anchor": f"a{n}", "allOf": [{"$ref": ref.format(n - 1)}] * 2}
        for n in range(1, levels + 1)
    }
    return {"$defs": {"a0": {"$anchor": "a0", **OBJECT}, **chain}, "$ref": ref.format(levels)}


def nested(levels: int, name: str = "c") -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {name: value}
    return value


@pytest.mark.parametrize("ref", ["#/$defs/a{}", "#a{}", "#/%24defs/a{}"])
def test_doubling_reference_chain_is_refused(ref: str) -> None:
    with pytest.raises(ParserException, match="expands to more than"):
        validate({}, doubling(40, ref))


def test_few_doublings_are_accepted() -> None:
    assert validate({}, doubling(8)) == []


def test_doubling_per_level_limits_answer_depth() -> None:
    twice = {"properties": {"c": {"anyOf": [{"$ref": "#"}, {"properties": {"c": {"$ref": "#"}}}]}}}

    assert validate(nested(SHALLOW - 1), twice) == []
    (violation,) = validate(nested(100), twice)
    assert violation.keyword == "depth"


def test_fast_doubling_recursion_is_refused() -> None:
    with pytest.raises(ParserException, match="expands to more than"):
        validate({}, {"properties": {"c": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}})


def test_tree_schema_accepts_deep_answers() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": False}

    assert validate(nested(100, "left"), tree) == []


def test_direct_self_reference_is_accepted() -> None:
    assert validate({}, {"anyOf": [{"$ref": "#"}, OBJECT]}) == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"description": "x" * (MAX_SCHEMA_BYTES + 1)}, "bytes. Allowed: at most"),
        ({"properties": nested(70)}, "nested deeper than 64"),
        ({"$ref": "other.v1"}, "Allowed: references within it"),
        ({"properties": {"a": {"$id": "inner", "type": "object"}}}, "another schema with its own"),
        ({"anyOf": [{"properties": {f"p{n}": {"type": "null"} for n in range(500)}}] * 300}, "steps"),
    ],
    ids=["size", "depth", "outside", "inner id", "steps"],
)
def test_unbounded_schema_is_refused_with_reason(schema: Any, why: str) -> None:
    size = len(schema.get("description", ""))

    with pytest.raises(SchemaTooComplexError, match=why):
        max_answer_depth(schema, size)


def test_overlong_reference_chain_is_refused() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}
    chain["d3000"] = OBJECT

    with pytest.raises(SchemaTooComplexError, match="Combine fewer references"):
        max_answer_depth({"$ref": "#/$defs/d0", "$defs": chain}, 100)


def test_id_and_list_references_are_followed() -> None:
    schema = {
        "$id": "x.v1",
        "properties": {
            "a": {"$ref": "x.v1#/anyOf/0"},
            "b": {"$ref": "#/anyOf/0/type"},
            "c": {"$ref": "#/no/way"},
        },
        "anyOf": [OBJECT],
    }

    assert max_answer_depth(schema, 100) == MAX_DEPTH
    assert max_answer_depth({"$ref": "#nowhere"}, 20) == MAX_DEPTH
    assert max_answer_depth({"anyOf": [OBJECT], "$ref": "#/anyOf/7"}, 20) == MAX_DEPTH
