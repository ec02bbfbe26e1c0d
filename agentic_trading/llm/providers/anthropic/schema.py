"""The form of a schema that the Messages API enforces; what it does not take stands in words in the descriptions."""

from collections.abc import Mapping
from typing import Any, Final

from agentic_trading.canonical import quoted
from agentic_trading.llm.errors import FailureKind, ProviderError

_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
})  # fmt: skip


def enforceable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` as the vendor's own SDK rewrites it: objects are closed, and bounds become words.

    Raises `ValueError` for a part that has neither a type nor a choice, and `ProviderError` (`schema_refused`, unsent)
    for one whose type the API does not have, several types among them, and for `true` and `false` as schemas.
    """
    if not isinstance(schema, Mapping):
        raise _unspelled(f"a schema that is {quoted(schema, 200)}")
    rest = dict(schema)
    made: dict[str, Any] = {}
    if (definitions := rest.pop("$defs", None)) is not None:
        made["$defs"] = _each(definitions)
    if (reference := rest.pop("$ref", None)) is not None:
        return made | {"$ref": reference}
    kind = _take_literals(rest, made, rest.pop("type", None))
    _take_choices(rest, made, kind)
    if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
        raise _unspelled(f"the type {quoted(kind, 200)}")
    texts = {name: text for name in ("description", "title") if (text := rest.pop(name, None)) is not None}
    if kind in _TAKEN_BY:
        _TAKEN_BY[kind](rest, made)
    if rest:
        words = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        texts["description"] = f"{texts['description']}\n\n{words}" if "description" in texts else words
    return made | texts


def _take_literals(rest: dict[str, Any], made: dict[str, Any], kind: Any) -> Any:
    """Move `enum` and `const`; return the type, or None where they stand for it."""
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_primitive, values)):
        made["enum"] = rest.pop("enum")
    if "const" in rest and _is_primitive(rest["const"]):
        made["const"] = rest.pop("const")
    return None if made.keys() & {"enum", "const"} else kind


def _take_choices(rest: dict[str, Any], made: dict[str, Any], kind: Any) -> None:
    """Move the choices, of which the API knows two, else the type."""
    found = [(name, rest.pop(name, None)) for name in ("anyOf", "oneOf", "allOf")]
    choice, variants = next(((name, each) for name, each in found if isinstance(each, list)), ("", []))
    if choice:
        made["allOf" if choice == "allOf" else "anyOf"] = [enforceable_schema(one) for one in variants]
    elif kind is not None:
        made["type"] = kind
    elif not made.keys() & {"enum", "const"}:
        raise ValueError("a schema has a type, anyOf, oneOf, allOf, or an enum or const of plain values")


def _take_format(rest: dict[str, Any], made: dict[str, Any]) -> None:
    form = rest.pop("format", None)
    if isinstance(form, str) and form in _FORMATS:
        made["format"] = form
    elif form:
        rest["format"] = form


def _take_properties(rest: dict[str, Any], made: dict[str, Any]) -> None:
    made["properties"] = _each(rest.pop("properties", {}))
    rest.pop("additionalProperties", None)
    made["additionalProperties"] = False
    if (required := rest.pop("required", None)) is not None:
        made["required"] = required


def _take_items(rest: dict[str, Any], made: dict[str, Any]) -> None:
    if (items := rest.pop("items", None)) is not None:
        made["items"] = enforceable_schema(items)
    least = rest.pop("minItems", None)
    if least == 0 or least == 1:
        made["minItems"] = least
    elif least is not None:
        rest["minItems"] = least


_TAKEN_BY: Final = {"object": _take_properties, "array": _take_items, "string": _take_format}


def _each(schemas: Any) -> dict[str, Any]:
    if not isinstance(schemas, Mapping):
        raise _unspelled(f"schemas that are {quoted(schemas, 200)}")
    return {name: enforceable_schema(schema) for name, schema in schemas.items()}


def _is_primitive(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _unspelled(what: str) -> ProviderError:
    message = f"the API does not enforce {what}; allowed is one of {', '.join(sorted(_TYPES))}"
    return ProviderError(FailureKind.SCHEMA_REFUSED, message, sent=False)
