"""Which values a schema allows, as far as its own keywords tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentic_trading.structured.schema import Schema, kinds

RULES_OF_KIND = {
    "object": ("properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip


_OBJECT = frozenset({"object"})


def kinds_told(node: Schema) -> list[str]:
    """Return the types of values, or those that the rules are about, and that any other will do."""
    named = kinds(node)
    if named:
        return named
    ruled = [kind for kind, keywords in RULES_OF_KIND.items() if not node.keys().isdisjoint(keywords)]
    return [*ruled, "any other type"] if ruled else []


def allowed_values(node: Schema) -> list[Any]:
    values = node["enum"] if "enum" in node else [node["const"]]
    named = set(kinds(node))
    if "number" in named:
        named.add("integer")
    return [value for value in values if not named or _kind_of(value) in named]


def _kind_of(value: Any) -> str:
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
    """What tells the values of a schema from those of another: types, constants, and constants of required tags.

    Empty means that nothing is known. Whole numbers are among the numbers.
    """

    types: frozenset[str]
    constants: frozenset[bytes]
    tags: Mapping[str, frozenset[bytes]]


def constraints_of(schema: Schema) -> ValueConstraints:
    """Return what `schema` itself tells of its values."""
    constants = _constants(schema)
    types = kinds(schema) or [_kind_of(orjson.loads(value)) for value in constants]
    properties = schema.get("properties", {})
    tags = {name: _constants(properties.get(name)) for name in schema.get("required", ())}
    return ValueConstraints(frozenset("number" if kind == "integer" else kind for kind in types), constants, tags)


def differ(one: ValueConstraints, other: ValueConstraints) -> bool:
    """Whether no value can be of both."""
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
