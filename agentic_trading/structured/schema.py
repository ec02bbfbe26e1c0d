"""What is asked of a model: a sound JSON Schema without noise, its properties in the order to be written in."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import orjson

from agentic_trading.structured.validation import compiled
from agentic_trading.structured.errors import UnreadableError
from agentic_trading.structured.sentinel import add_sentinel

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
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

Schema = dict[str, Any]


@lru_cache(maxsize=256)
def prompt_schema(schema_json: bytes, *, sentinel: bool) -> str:
    """Return the schema as compact JSON: without noise, properties in the order to be written in.

    A broken schema is told as it is: no answer will be accepted.
    """
    schema = asked(schema_json, sentinel=sentinel)
    return schema_json.decode() if schema is None else orjson.dumps(schema).decode()


def asked(schema_json: bytes, *, sentinel: bool) -> Schema | None:
    """Return what is asked for, or None if the schema is broken: what follows relies on a sound one."""
    try:
        schema: Schema = compiled(schema_json).schema
    except UnreadableError:
        return None
    ordered = _in_order(_without_noise(schema))
    return add_sentinel(ordered) if sentinel else ordered


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield each schema directly inside `schema` with its place, a JSON pointer from there; some are true or false."""
    for keyword, held in schema.items():
        for step, child in _inside(keyword, held):
            if isinstance(child, dict | bool):  # `dependencies` holds names as well
                yield f"/{keyword}{step}", child


def nested(schema: Schema, place: str = "#") -> Iterator[tuple[str, Any]]:
    """Yield `schema` and every schema inside it, each with its place; definitions come last."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    inside = list(children(schema))
    for step, child in sorted(inside, key=lambda found: found[0].startswith(("/$defs/", "/definitions/"))):
        yield from nested(child, place + step)


def children_changed(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
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
        if isinstance(schema.get(keyword), dict):
            result[keyword] = changed(schema[keyword])
    return result


def referred(root: Schema, reference: str) -> Any:
    """Return what `reference` (`#` or `#/…`) points at in `root`; raises `LookupError` if it leads elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    node: Any = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal():
            node = node[int(name)]
        elif isinstance(node, dict):
            node = node[name]
        else:
            raise LookupError(reference)
    return node


def kinds(schema: Schema) -> list[str]:
    """Return the types that `schema` names, none if it names none."""
    named = schema.get("type", [])
    return [named] if isinstance(named, str) else list(named)


def _inside(keyword: str, held: Any) -> Iterator[tuple[str, Any]]:
    if keyword in _NAMED and isinstance(held, dict):
        for name, child in held.items():
            yield f"/{name.replace('~', '~0').replace('/', '~1')}", child
    elif keyword in _LISTED and isinstance(held, list):
        for place, child in enumerate(held):
            yield f"/{place}", child
    elif keyword in _SINGLE:
        yield "", held


def _without_noise(schema: Schema) -> Schema:
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _NOISE}
    return children_changed(kept, _without_noise)


def _in_order(schema: Schema) -> Schema:
    """Put properties in the order of `required`: an answer is written in the order in which it is asked for."""
    ordered = children_changed(schema, _in_order)
    properties = ordered.get("properties")
    if isinstance(properties, dict):
        first = [name for name in ordered.get("required", []) if name in properties]
        ordered["properties"] = {name: properties[name] for name in dict.fromkeys([*first, *properties])}
    return ordered
