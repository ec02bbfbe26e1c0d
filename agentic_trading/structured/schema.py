"""The schema that a model is asked for: valid, without noise, properties in order."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured.decode import pointer_steps
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.validation import compile_schema

Schema = dict[str, Any]

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

RULES_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
_OBJECT = frozenset({"object"})


@lru_cache(maxsize=256)
def prompt_schema(schema_json: bytes, *, sentinel: bool) -> str:
    """Return the schema as compact JSON, without noise, in the order of writing.

    An invalid schema is returned unchanged, because no answer to it is accepted.
    """
    schema = requested_schema(schema_json, sentinel=sentinel)
    return schema_json.decode() if schema is None else orjson.dumps(schema).decode()


def requested_schema(schema_json: bytes, *, sentinel: bool) -> Schema | None:
    """Return the schema that is asked for, or None if it is invalid."""
    try:
        schema: Schema = compile_schema(schema_json).schema
    except UnreadableError:
        return None
    ordered = _in_order(_without_noise(schema))
    return add_sentinel(ordered) if sentinel else ordered


def _without_noise(schema: Schema) -> Schema:
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _NOISE}
    return map_children(kept, _without_noise)


def _in_order(schema: Schema) -> Schema:
    """Put properties in the order of `required`, then the others."""
    # Ordered because a model writes an answer in the order of its schema.
    ordered = map_children(schema, _in_order)
    properties = ordered.get("properties")
    if isinstance(properties, dict):
        first = [name for name in ordered.get("required", []) if name in properties]
        ordered["properties"] = {name: properties[name] for name in dict.fromkeys([*first, *properties])}
    return ordered


def add_sentinel(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with the sentinel as its last required property."""
    properties = {**schema.get("properties", {}), SENTINEL_NAME: {"enum": [SENTINEL_VALUE]}}
    required = [*schema.get("required", []), SENTINEL_NAME]
    return {**schema, "properties": properties, "required": required}


def check_sentinel_is_free(schema: dict[str, Any]) -> None:
    """Raise `UnreadableError` (`schema_invalid`) if a property has the sentinel's name."""
    if SENTINEL_NAME in schema.get("properties", {}):
        message = (
            f"the name {SENTINEL_NAME!r} is needed for the sign that the answer is whole; choose another"
        )
        violation = Violation(path=f"$.properties.{SENTINEL_NAME}", keyword="sentinel", message=message)
        raise UnreadableError(Stage.SCHEMA_INVALID, [violation])


def without_sentinel(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` without the sentinel.

    Raises:
        UnreadableError: `truncated` if the sentinel is missing, `schema_validation` if it has another value.

    """
    path = f"$.{SENTINEL_NAME}"
    if SENTINEL_NAME not in value:
        missing = Violation(path=path, keyword="sentinel", message="is missing: the answer is truncated")
        raise UnreadableError(Stage.TRUNCATED, [missing])
    if value[SENTINEL_NAME] != SENTINEL_VALUE:
        wrong = Violation(
            path=path, keyword="enum", message="is not the agreed value", allowed=[SENTINEL_VALUE]
        )
        raise UnreadableError(Stage.SCHEMA_VALIDATION, [wrong])
    return {name: member for name, member in value.items() if name != SENTINEL_NAME}


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield each schema directly inside `schema`, with its relative JSON pointer.

    A schema may be True or False.
    """
    for keyword, held in schema.items():
        for step, child in _inside(keyword, held):
            if isinstance(child, dict | bool):  # `dependencies` holds names as well
                yield f"/{keyword}{step}", child


def subschemas(schema: Schema, place: str = "#") -> Iterator[tuple[str, Any]]:
    """Yield `schema` and every schema inside it with their places, definitions last."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    inside = list(children(schema))
    for step, child in sorted(inside, key=lambda found: found[0].startswith(("/$defs/", "/definitions/"))):
        yield from subschemas(child, place + step)


def map_children(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return `schema` with `change` applied to each schema directly inside it.

    Names and data stay unchanged.
    """

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


def resolve_reference(root: Schema, reference: str) -> Any:
    """Return the target of a reference (`#` or `#/…`) in `root`.

    Raises:
        LookupError: If it has no target in `root`.

    """
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    node: Any = root
    for name in pointer_steps(reference):
        if isinstance(node, list) and name.isdecimal():
            node = node[int(name)]
        elif isinstance(node, dict):
            node = node[name]
        else:
            raise LookupError(reference)
    return node


def _inside(keyword: str, held: Any) -> Iterator[tuple[str, Any]]:
    if keyword in _NAMED and isinstance(held, dict):
        for name, child in held.items():
            yield f"/{name.replace('~', '~0').replace('/', '~1')}", child
    elif keyword in _LISTED and isinstance(held, list):
        for place, child in enumerate(held):
            yield f"/{place}", child
    elif keyword in _SINGLE:
        yield "", held


def types_of(schema: Schema) -> list[str]:
    """Return the types that `schema` names. Empty if it names no type."""
    named = schema.get("type", [])
    return [named] if isinstance(named, str) else list(named)


def allowed_types(node: Schema) -> list[str]:
    """Return the types of `node`, or those that its rules imply and `any other type`."""
    named = types_of(node)
    if named:
        return named
    ruled = [kind for kind, keywords in RULES_OF_TYPE.items() if not node.keys().isdisjoint(keywords)]
    return [*ruled, "any other type"] if ruled else []


def allowed_values(node: Schema) -> list[Any]:
    """Return the constants of `node` that its types allow."""
    values = node["enum"] if "enum" in node else [node["const"]]
    named = set(types_of(node))
    if "number" in named:
        named.add("integer")
    return [value for value in values if not named or _json_type(value) in named]


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case _:
            return "object" if isinstance(value, dict) else "array"


@dataclass(frozen=True, slots=True)
class ValueConstraints:
    """The types, constants and constants of required tags of a schema's values.

    An empty set means unknown. Integers count as numbers.
    """

    types: frozenset[str]
    constants: frozenset[bytes]
    tags: Mapping[str, frozenset[bytes]]


def constraints_of(schema: Schema) -> ValueConstraints:
    """Return the constraints in `schema` itself, without its references."""
    constants = _constants(schema)
    types = types_of(schema) or [_json_type(orjson.loads(value)) for value in constants]
    properties = schema.get("properties", {})
    tags = {name: _constants(properties.get(name)) for name in schema.get("required", ())}
    return ValueConstraints(
        frozenset("number" if kind == "integer" else kind for kind in types), constants, tags
    )


def differ(one: ValueConstraints, other: ValueConstraints) -> bool:
    """Return whether no value satisfies both constraints."""
    if one.types and other.types and one.types.isdisjoint(other.types):
        return True
    if one.constants and other.constants:
        return one.constants.isdisjoint(other.constants)
    if one.types != _OBJECT or other.types != _OBJECT:
        return False
    tagged = [name for name in one.tags.keys() & other.tags.keys() if one.tags[name] and other.tags[name]]
    return any(one.tags[name].isdisjoint(other.tags[name]) for name in tagged)


def _constants(schema: Any) -> frozenset[bytes]:
    if not isinstance(schema, dict) or {"enum", "const"}.isdisjoint(schema):
        return frozenset()
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    return frozenset(orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in values)
