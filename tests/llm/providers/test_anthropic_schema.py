"""A schema is rewritten as the vendor's SDK does it, which is the oracle."""

from typing import Any

import pytest
from anthropic import transform_schema
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.anthropic.messages import enforceable_schema

WORDS = st.sampled_from(["a", "b", "$id", "ä"])
PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | WORDS
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def _schemas(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(WORDS, inner, max_size=3)
    parts: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES,
        "anyOf": several,
        "oneOf": several,
        "allOf": several,
        "properties": by_name,
        "$defs": by_name,
        "items": inner,
        "required": st.lists(WORDS, max_size=2),
        "additionalProperties": st.booleans() | inner,
        "enum": st.lists(PLAIN | st.lists(PLAIN, max_size=1), max_size=3),
        "const": PLAIN | st.just({"a": 1}),
        "format": st.sampled_from(["date-time", "uuid", "color", ""]),
        "minItems": st.integers(0, 3),
        "minimum": st.integers(),
        "description": WORDS,
        "title": WORDS,
        "$ref": st.just("#/$defs/a"),
    }
    some = st.lists(st.sampled_from(sorted(parts.keys() - {"type"})), unique=True, max_size=6)
    typed = st.sampled_from([["type"], ["type"], ["type"], []])
    names = st.tuples(typed, some).map(lambda both: [*both[0], *both[1]])
    return names.flatmap(lambda each: st.fixed_dictionaries({name: parts[name] for name in each}))


SCHEMAS = st.recursive(TYPES.map(lambda kind: {"type": kind}), _schemas, max_leaves=12)


@given(SCHEMAS)
@example({"type": "string", "enum": ["a", None, 1.5], "description": "Say it.", "minLength": 1})
@example({"const": 5, "title": "Five"})
@example({"type": "string", "format": "uuid"})
@example({"type": "string", "format": "color", "pattern": "^a"})
@example({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3})
@example({"type": "object", "properties": {"a": {"type": "array", "minItems": 1}}, "required": ["a"]})
@example({"$ref": "#/$defs/a", "$defs": {"a": {"oneOf": [{"type": "integer", "minimum": 1}]}}})
def test_schema_rewrite_matches_sdk(schema: dict[str, Any]) -> None:
    try:
        expected = transform_schema(schema)
    except ValueError:
        with pytest.raises(ValueError, match="a schema has a type"):
            enforceable_schema(schema)
    else:
        assert enforceable_schema(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"type": "file"},
        {"type": 5, "anyOf": [{"type": "null"}]},
        {"type": "array", "items": True},
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": []},
    ],
)
def test_unenforceable_schema_is_refused_unsent(schema: dict[str, Any]) -> None:
    with pytest.raises(ProviderError, match="the API does not enforce") as refused:
        enforceable_schema(schema)

    assert (refused.value.kind, refused.value.sent) == (FailureKind.SCHEMA_REFUSED, False)
