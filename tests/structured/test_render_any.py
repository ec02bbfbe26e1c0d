"""Whatever a schema holds: it can be rendered, no rule gets lost, and nothing in it breaks out of its place."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given

from agentic_trading.canonical import canonical_bytes
from agentic_trading.structured.render import json_text, render_schema
from agentic_trading.structured.schema import children, map_children, prompt_schema, requested_schema
from tests.structured.any_schema import BOUNDS, HOSTILE, WHOLE


def text_of(schema: dict[str, Any], *, sentinel: bool = False) -> str:
    """Return what a prompt says of a schema."""
    return render_schema(canonical_bytes(schema), sentinel=sentinel)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_schema_strings_cannot_break_layout(name: str, value: str, note: str) -> None:
    fields = {"type": "string", "description": note, "format": value}
    text = text_of({
        "type": "object",
        "properties": {name: fields, "end": {"enum": [value]}},
        "required": [name, "end"],
        "additionalProperties": False,
    })

    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    if not text.startswith("JSON Schema ") and name != "end":
        assert len(lines) == 5
        rendered_name, end = json.JSONDecoder().raw_decode(lines[2].strip())
        assert rendered_name == name
        assert lines[2].strip()[end:].startswith(": string (format ")
        assert json.loads(lines[3].strip().removeprefix('"end": ')) == value


@pytest.mark.parametrize("sentinel", [True, False])
@given(schema=WHOLE)
def test_any_valid_schema_renders_deterministically(schema: Any, *, sentinel: bool) -> None:
    schema_json = canonical_bytes(schema)

    text = render_schema(schema_json, sentinel=sentinel)
    render_schema.cache_clear()

    assert render_schema(schema_json, sentinel=sentinel) == text
    if requested_schema(schema_json, sentinel=sentinel) is not None:
        assert all(line.isprintable() for line in text.split("\n"))
        assert len(text) <= 100 + 12 * len(prompt_schema(schema_json, sentinel=sentinel))


def untyped(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without types, which may make other rules idle, and without references."""
    kept = {keyword: value for keyword, value in schema.items() if keyword not in {"type", "$ref"}}
    return map_children(kept, untyped)


def data(schema: Any) -> list[Any]:
    """Return the names, patterns, bounds and constants of a schema."""
    if not isinstance(schema, dict):
        return []
    own = [schema[keyword] for keyword in ("pattern", "format", "const", *BOUNDS) if keyword in schema]
    own += [*schema.get("properties", ()), *schema.get("required", ()), *schema.get("enum", ())]
    return own + [value for _, child in children(schema) for value in data(child)]


@given(WHOLE)
def test_every_schema_constant_is_rendered(schema: dict[str, Any]) -> None:
    x = orjson.loads(
        canonical_bytes(untyped({key: value for key, value in schema.items() if key != "$defs"}))
    )

    text = text_of({"type": "object", "properties": {"x": x}})

    if requested_schema(canonical_bytes({"properties": {"x": x}}), sentinel=False) is not None:
        assert [value for value in data(x) if json_text(value) not in text] == []
