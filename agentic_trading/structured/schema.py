"""What is shown of a JSON Schema: to a model in words, to a provider that holds its answer to it."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import orjson

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.plain import SpelledObject
from agentic_trading.structured.check import compiled
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.sentinel import with_sentinel

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "not", "if", "then", "else", "contains", "propertyNames",
)  # fmt: skip
_NOISE = frozenset({
    "$schema",
    "$id",
    "$comment",
    "title",
    "examples",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
})
# What constrained decoders hold an answer to; every other keyword is told in words and checked here.
_ENFORCED = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "definitions",
     "description", "additionalProperties"}
)  # fmt: skip
# What a grammar engine holds besides (LLGuidance, found by running: docs/decisions/0011-local-model.md).
_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
     "minItems", "maxItems"}
)  # fmt: skip
_NO_GRAMMAR = re.compile(
    r"\(\?(?!:)|\\[bB1-9]"
)  # look-around, flags, word borders and back references in a pattern
_WITHOUT_STRICT_FORM = frozenset(
    {"patternProperties", "prefixItems", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
     "dependentSchemas", "if", "not"}
)  # fmt: skip
_LOCAL = ("#/$defs/", "#/definitions/")

Schema = dict[str, Any]


@lru_cache(maxsize=256)
def prompt_schema(schema_json: bytes, *, sentinel: bool) -> str:
    """Return the schema as a prompt tells it: compact, without noise, properties in the order to be written in.

    A broken schema is told as it is: no answer will be accepted.
    """
    schema = _asked(schema_json, sentinel=sentinel)
    return schema_json.decode() if schema is None else orjson.dumps(schema).decode()


@lru_cache(maxsize=256)
def strict_schema(schema_json: bytes, *, sentinel: bool, bounds: bool = False) -> SpelledObject | None:
    """Return the form that providers enforce, or None where the schema has no such form.

    Objects are closed, `oneOf` is `anyOf`, and what is not enforced stands in the description: formats, and bounds,
    lengths and patterns unless `bounds` says that the provider holds them as well. There is no such form for open
    maps, tuples, conditions and recursion, and none for a broken schema.
    Do not change the result: it is shared.
    """
    schema = _asked(schema_json, sentinel=sentinel)
    if schema is None or schema.get("type") != "object":
        return None
    if not all(map(_is_closed, _nested(schema))) or _is_recursive(schema):
        return None
    strict = _strict(schema, _ENFORCED | _BOUNDS if bounds else _ENFORCED)
    return SpelledObject(strict, canonical_bytes(strict))


def _asked(schema_json: bytes, *, sentinel: bool) -> Schema | None:
    """Return what is asked for, or None if the schema is broken: what follows relies on a sound one."""
    try:
        schema: Schema = compiled(schema_json).schema
    except UnreadableError:
        return None
    ordered = _in_order(_without_noise(schema))
    return with_sentinel(ordered) if sentinel else ordered


def _children_changed(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return `schema` with `change` made to each schema directly inside it; names and data are left alone."""

    def changed(child: Any) -> Any:
        return change(child) if isinstance(child, dict) else child

    result = dict(schema)
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            result[keyword] = {name: changed(child) for name, child in schema[keyword].items()}
    for keyword in _LISTED:
        if isinstance(schema.get(keyword), list):
            result[keyword] = [changed(child) for child in schema[keyword]]
    for keyword in _SINGLE:
        if keyword in schema:
            result[keyword] = changed(schema[keyword])
    return result


def _nested(schema: Schema) -> Iterator[Schema]:
    """Yield `schema` and every schema inside it."""
    inside: list[Schema] = []

    def note(child: Schema) -> Schema:
        inside.append(child)
        return child

    _children_changed(schema, note)
    yield schema
    for child in inside:
        yield from _nested(child)


def _without_noise(schema: Schema) -> Schema:
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _NOISE}
    return _children_changed(kept, _without_noise)


def _in_order(schema: Schema) -> Schema:
    """Put properties in the order of `required`: an answer is written in the order in which it is asked for."""
    ordered = _children_changed(schema, _in_order)
    properties = ordered.get("properties")
    if isinstance(properties, dict):
        first = [name for name in ordered.get("required", []) if name in properties]
        ordered["properties"] = {name: properties[name] for name in dict.fromkeys([*first, *properties])}
    return ordered


def _is_closed(schema: Schema) -> bool:
    if not _WITHOUT_STRICT_FORM.isdisjoint(schema):
        return False
    if "$ref" in schema:
        return str(schema["$ref"]).startswith(_LOCAL)
    kinds = _kinds(schema)
    if "object" in kinds and not (
        "properties" in schema and schema.get("additionalProperties", False) is False
    ):
        return False
    if "array" in kinds and not isinstance(schema.get("items"), dict):
        return False
    return not {"type", "enum", "const", "anyOf", "oneOf", "allOf"}.isdisjoint(schema)


def _kinds(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _is_recursive(schema: Schema) -> bool:
    named = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    uses = {
        name: {_target(inner) for inner in _nested(child) if "$ref" in inner} for name, child in named.items()
    }
    while uses:
        harmless = [name for name, used in uses.items() if used.isdisjoint(uses)]
        if not harmless:
            return True
        for name in harmless:
            del uses[name]
    return False


def _target(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _strict(schema: Schema, enforced: frozenset[str]) -> Schema:
    strict = _children_changed(schema, lambda child: _strict(child, enforced))
    if "oneOf" in strict:
        strict["anyOf"] = [*strict.get("anyOf", []), *strict.pop("oneOf")]
    told = [
        f"{keyword}: {orjson.dumps(strict.pop(keyword)).decode()}"
        for keyword in [*strict]
        if keyword not in enforced or (keyword == "pattern" and _NO_GRAMMAR.search(strict[keyword]))
    ]
    if told:
        strict["description"] = " ".join(
            filter(None, [strict.get("description", ""), f"({', '.join(told)})"])
        )
    if "object" in _kinds(strict):
        strict["additionalProperties"] = False
    return strict
