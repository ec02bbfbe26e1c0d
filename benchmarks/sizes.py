"""How many characters a schema takes in a prompt, form by form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentic_trading.structured.render import render_schema
from agentic_trading.structured.schema import prompt_schema
from agentic_trading.structured.validation import schema_bytes


@dataclass(frozen=True, slots=True)
class SchemaSizes:
    """How many characters a schema takes in a prompt.

    `indented` is `json.dumps(indent=2)`, `compact` the same without white space, `sanitised` without noise either,
    `rendered` the form that prompts hold.
    """

    indented: int
    compact: int
    sanitised: int
    rendered: int


def sizes(schema: Mapping[str, Any]) -> SchemaSizes:
    """Return how long each form of `schema` is; raises `UnreadableError` for what is not JSON."""
    schema_json = schema_bytes(schema)
    value = orjson.loads(schema_json)
    return SchemaSizes(
        indented=len(json.dumps(value, indent=2)),
        compact=len(json.dumps(value, separators=(",", ":"))),
        sanitised=len(prompt_schema(schema_json, sentinel=False)),
        rendered=len(render_schema(schema_json, sentinel=False)),
    )
