"""Hold a value against its original JSON Schema, whatever the provider promised (D9)."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from agentic_trading.canonical import CanonicalError, canonical_bytes
from agentic_trading.llm.reading import Stage, Violation
from agentic_trading.structured.burden import TooCostlyError, deepest_answer, is_deeper
from agentic_trading.structured.errors import ParserException, UnreadableError
from agentic_trading.structured.reading import MAX_DEPTH, member_path
from agentic_trading.structured.violation import described

MAX_VIOLATIONS = 20
_VALUES_SEARCHED_IN_FULL = (
    10_000  # every error of an array of 200,000 wrong items takes 2.3 s, the first one 2 ms
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schema that is fit for use, its validator, and how deep an answer to it may be nested."""

    schema: Any
    validator: jsonschema_rs.Validator
    deepest: int


def validate(value: Any, schema: Mapping[str, Any]) -> list[Violation]:
    """Return every rule of `schema` that `value` breaks; an empty list means that it is valid.

    All drafts, formats on, `$schema` chooses; without it the newest. A number that JSON does not have (NaN,
    Infinity) is a violation anywhere. At most `MAX_VIOLATIONS` are named, the rest are counted. Raises
    `ParserException` with stage `schema_invalid` for a schema that is broken or refers outside itself.
    """
    unspeakable = list(_not_json(value, "$"))
    if unspeakable:
        return unspeakable
    try:
        return violations(value, compiled(spelled(schema)))
    except UnreadableError as e:
        raise ParserException("validate", "", e.stage, "", e) from e


def violations(value: Any, schema: Compiled) -> list[Violation]:
    """Return what decoded JSON breaks; valid values cost a few microseconds."""
    if schema.deepest < MAX_DEPTH and is_deeper(value, schema.deepest):
        message = (
            f"is nested deeper than {schema.deepest} levels, the most for a schema that refers to itself so"
        )
        return [Violation(path="$", keyword="depth", message=message)]
    try:
        schema.validator.validate(value)
    except jsonschema_rs.ValidationError as first:
        errors = [first] if _is_large(value) else schema.validator.iter_errors(value)
    else:
        return []
    found = [violation for error in errors for violation in described(error, value, schema.schema)]
    if len(found) <= MAX_VIOLATIONS:
        return found
    more = Violation(path="$", keyword="more", message=f"{len(found) - MAX_VIOLATIONS} more rules are broken")
    return [*found[:MAX_VIOLATIONS], more]


def spelled(schema: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a schema, by which its validator is found again.

    Raises `UnreadableError` with stage `schema_invalid` for what is not JSON.
    """
    try:
        return canonical_bytes(schema)
    except CanonicalError as e:
        raise _broken(e.path, e.reason) from e


@lru_cache(maxsize=256)
def compiled(schema_json: bytes) -> Compiled:
    """Return the validator of a schema in canonical JSON.

    Raises `UnreadableError` with stage `schema_invalid` if the schema is broken, refers outside itself, costs too
    much to check against or allows no object at its top.
    """
    schema = orjson.loads(schema_json)
    try:
        deepest = deepest_answer(schema, len(schema_json))
    except TooCostlyError as e:
        raise _broken("$", e.reason) from e
    kinds = schema.get("type", "object")
    if isinstance(kinds, str | list) and "object" not in kinds:
        raise _broken("$.type", f"{json.dumps(kinds)} allows no object; an answer is one object")
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True, mask="the value")
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        raise _broken("$", str(e).partition("\n")[0]) from e
    return Compiled(schema, validator, deepest)


def _broken(path: str, reason: str) -> UnreadableError:
    violation = Violation(
        path=path, keyword="schema", message=f"the schema cannot be used: {reason}", expected="a JSON Schema"
    )
    return UnreadableError(Stage.SCHEMA_INVALID, [violation])


def _is_large(value: Any) -> bool:
    left = _VALUES_SEARCHED_IN_FULL
    level = [value]
    while level and left > 0:
        left -= len(level)
        level = [child for node in level for child in _children(node)]
    return left <= 0


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _not_json(value: Any, path: str, depth: int = 0) -> Iterator[Violation]:
    if depth > MAX_DEPTH:
        yield Violation(path=path, keyword="json", message=f"is nested deeper than {MAX_DEPTH} levels")
    elif isinstance(value, float | Decimal) and not math.isfinite(value):
        yield Violation(
            path=path, keyword="json", message=f"{value} is not a JSON number", expected="a finite number"
        )
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _not_json(child, member_path(path, str(key)), depth + 1)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _not_json(child, f"{path}[{index}]", depth + 1)
