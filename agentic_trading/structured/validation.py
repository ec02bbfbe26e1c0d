"""Validate a candidate against a schema, whose complexity is bounded before it is compiled."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import orjson

from agentic_trading.canonical import CanonicalError, canonical_bytes, exact_bytes
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured.decode import MAX_DEPTH, member_path, pointer_steps
from agentic_trading.structured.outcome import ParserException, UnreadableError
from agentic_trading.structured.pydantic_schema import SchemaLike, check_of_model, schema_of, violations_of
from agentic_trading.structured.violations import (
    MAX_VIOLATIONS,
    describe_violations,
    more_broken,
    rules_broken,
    short_value,
)

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_CHECKS = 20_000  # on one way down an answer; the validator makes about ten of them a microsecond
SHALLOW = 16
_MAX_STEPS = 100_000

_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTED = ("allOf", "anyOf", "oneOf")
_IN_PLACE_NAMED = ("dependentSchemas", "dependencies")
_BELOW = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains",
    "propertyNames",
)  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaTooComplexError(ValueError):
    """A schema is not used, for `reason`: checking one answer against it could take too long."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def max_answer_depth(schema: Any, size: int) -> int:
    """Return how deep an answer to `schema`, of `size` bytes, may be nested to be checked in bounded time.

    Counted is how many schemas can apply on one way down an answer, references and combinations expanded: a chain
    of definitions that each refer twice to the next doubles with every one. Only a schema that refers to itself
    more than once is held to shallow answers. Raises `SchemaTooComplexError`.
    """
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooComplexError(f"it has {size} bytes; allowed are {MAX_SCHEMA_BYTES}")
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise SchemaTooComplexError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    for depth in (MAX_DEPTH, SHALLOW):
        try:
            if _Count(schema).checks(schema, depth) <= MAX_CHECKS:
                return depth
        except RecursionError:
            continue
    raise SchemaTooComplexError(
        f"it expands to more than {MAX_CHECKS} checks of one value; combine fewer references"
    )


def schema_complexity(schema: Any, depth: int) -> int:
    """Return how many schemas can apply on one way down an answer of `depth` levels.

    For a schema of which `max_answer_depth` returned at least `depth`.
    """
    return _Count(schema).checks(schema, depth)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and arrays of `value` lie more than `levels` deep within each other."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


class _Count:
    """How many schemas apply on one way down an answer; each reference is counted once for each depth."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[str, int], int] = {}
        self._left = _MAX_STEPS

    def checks(self, schema: Any, depth: int) -> int:
        """Return the checks of a value against `schema`, where the value has `depth` more levels in it."""
        if not isinstance(schema, dict) or depth < 0:
            return 0
        self._left -= 1
        if self._left < 0:
            raise SchemaTooComplexError(
                f"counting its checks takes more than {_MAX_STEPS} steps; make it smaller"
            )
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise SchemaTooComplexError(
                "it holds another schema with an $id of its own; allowed is one at the top"
            )
        total = 1
        for inner in _in_place(schema):
            total += self.checks(inner, depth)
        for reference in _references(schema):
            total += self._referred(reference, depth)
        for below in _everywhere_below(schema):
            total += self.checks(below, depth - 1)
        return total + max([self.checks(below, depth - 1) for below in _by_member(schema)], default=0)

    def _referred(self, reference: str, depth: int) -> int:
        key = (reference, depth)
        if key not in self._known:
            self._known[key] = 0  # one that comes back to itself without going deeper applies once
            self._known[key] = self.checks(self._target(reference), depth)
        return self._known[key]

    def _target(self, reference: str) -> Any:
        base, _, pointer = reference.partition("#")
        if base and base != self._root.get("$id"):
            raise SchemaTooComplexError(
                f"it refers to {reference[:80]!r}; allowed are references within it (#/...)"
            )
        if pointer and not pointer.startswith("/"):
            return _anchored(self._root, pointer)
        node = self._root
        for name in pointer_steps(pointer):
            if isinstance(node, dict):
                node = node.get(name)
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None  # the compiler says so
        return node


def _references(schema: dict[str, Any]) -> list[str]:
    return [schema[keyword] for keyword in _REFERENCES if isinstance(schema.get(keyword), str)]


def _in_place(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that apply to the same value."""
    inner = [schema.get(keyword) for keyword in _IN_PLACE]
    for keyword in _IN_PLACE_LISTED:
        inner += _items(schema.get(keyword))
    for keyword in _IN_PLACE_NAMED:
        inner += _values(schema.get(keyword))
    return inner


def _everywhere_below(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that may apply to any member of the value."""
    return [schema.get(keyword) for keyword in _BELOW] + _values(schema.get("patternProperties"))


def _by_member(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas that apply to one member each: no way down an answer passes two of them."""
    return _values(schema.get("properties")) + _items(schema.get("prefixItems")) + _items(schema.get("items"))


def _anchored(root: Any, name: str) -> Any:
    level = [root]
    while level:
        for node in level:
            if isinstance(node, dict) and name in {node.get("$anchor"), node.get("$dynamicAnchor")}:
                return node
        level = [child for node in level for child in _values(node) + _items(node)]
    return None


def _values(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else []


def _items(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []


MAX_ERRORS = 100_000  # that may be found in one value: to find one takes up to 30 microseconds
MAX_PATTERN_CHARS = 4_096
# Values of so many bytes that an error carries with it take as long to copy as it takes to find the error.
_PAYLOAD_BYTES = 1_000
_MAX_BACKTRACKS = 10_000  # of one text against a pattern, which take about a tenth of a millisecond
_LARGEST_BITS = 1024  # of an integer that a double can hold
_LONG_NUMBER = re.compile(rb"[0-9.]{17}|[0-9][eE]")
_LOOKS_AROUND = re.compile(rb"\(\?[=!<]|\\\\[1-9]")
_WHOLE = "json-schema:///whole"  # a base that any `$id` can be resolved against


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema that is fit for use, its canonical JSON and validator, and how deep an answer to it may be nested.

    `is_short`: no number in it has more digits than every double has. `looks_around`: a pattern in it does, or refers
    back, so that its time grows with the square of a text. `weight`: how many times as long as another the most
    expensive error takes to find.
    """

    schema: Any
    spelling: bytes
    validator: jsonschema_rs.Validator
    deepest: int
    is_short: bool
    looks_around: bool
    weight: int

    def part(self, steps: Sequence[str | int]) -> jsonschema_rs.Validator:
        """Return the validator of the schema that stands at `steps` within this one; what it refers to is known to it."""
        pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
        return _part(self.spelling, quote(pointer))


def validate(value: Any, schema: SchemaLike) -> list[Violation]:
    """Return every rule of `schema` that `value` breaks; an empty list means that it is valid.

    All drafts, formats on, `$schema` chooses; without it the newest. Of a pydantic model the JSON Schema holds, then
    the model's own validators run on the value as JSON. What JSON does not have (NaN, Infinity, a number beyond a
    double's range, a lone surrogate, other types than its own) is a violation anywhere. At most `MAX_VIOLATIONS` are
    named, the rest are counted. Raises `ParserException` with stage `schema_invalid` for a schema that is broken or
    refers outside itself, and for what is neither a mapping nor a pydantic model.
    """
    unspeakable = list(islice(_not_json(value, "$"), MAX_VIOLATIONS))
    if unspeakable:
        return unspeakable
    try:
        broken = find_violations(value, compile_schema(schema_bytes(schema_of(schema))))
    except UnreadableError as e:
        raise ParserException("validate", "", e.stage, "", e) from e
    if broken or isinstance(schema, Mapping):
        return broken
    return violations_of(check_of_model(schema), exact_bytes(value).decode())


def find_violations(value: Any, schema: CompiledSchema, rounded: Any = None) -> list[Violation]:
    """Return what decoded JSON breaks; valid values cost a few microseconds.

    `rounded` is `DecodedJson.rounded` of the same value: if that is valid, so is the value, as no number of it is near
    enough to a bound to be taken for another. What is not is judged, and described, by its exact numbers.
    """
    if is_too_deep(value, schema):
        message = (
            f"is nested deeper than {schema.deepest} levels, the most for a schema that refers to itself so"
        )
        return [Violation(path="$", keyword="depth", message=message)]
    if schema.looks_around and is_too_long(value):
        message = f"holds a text of more than {MAX_PATTERN_CHARS} characters, the most for a pattern that looks around"
        return [Violation(path="$", keyword="size", message=message)]
    if rounded is not None and schema.is_short and schema.validator.is_valid(rounded):
        return []
    if schema.validator.is_valid(value):
        return []
    if errors_at_most(value, schema) <= MAX_ERRORS:
        return _describe(schema.validator.iter_errors(value), value, schema)
    return _describe_first(value, schema)


@lru_cache(maxsize=256)
def compile_schema(schema_json: bytes) -> CompiledSchema:
    """Return the validator of a schema in canonical JSON.

    Raises `UnreadableError` with stage `schema_invalid` if the schema is broken, refers outside itself, costs too
    much to check against or allows no object at its top.
    """
    schema = orjson.loads(schema_json)
    try:
        deepest = max_answer_depth(schema, len(schema_json))
    except SchemaTooComplexError as e:
        raise _schema_error("$", e.reason) from e
    kinds = schema.get("type", "object")
    if isinstance(kinds, str | list) and "object" not in kinds:
        raise _schema_error("$.type", f"{json.dumps(kinds)} allows no object; an answer is one object")
    try:
        validator = _validator(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        raise _schema_error("$", str(e).partition("\n")[0]) from e
    is_short = _LONG_NUMBER.search(schema_json) is None
    weight = 1 + max(map(len, _payloads(schema)), default=0) // _PAYLOAD_BYTES
    looks_around = _LOOKS_AROUND.search(schema_json) is not None
    return CompiledSchema(schema, schema_json, validator, deepest, is_short, looks_around, weight)


def schema_bytes(schema: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a schema, by which its validator is found again.

    Raises `UnreadableError` with stage `schema_invalid` for what is not JSON.
    """
    try:
        return canonical_bytes(schema)
    except CanonicalError as e:
        raise _schema_error(e.path, e.reason) from e


def is_too_deep(value: Any, schema: CompiledSchema) -> bool:
    """Whether `value` is nested deeper than can be checked against `schema` in bounded time."""
    return schema.deepest < MAX_DEPTH and is_deeper(value, schema.deepest)


def is_too_long(value: Any) -> bool:
    """Whether a text in `value` is longer than a pattern that looks around can go through in bounded time."""
    level = [value]
    while level:
        if any(isinstance(node, str) and len(node) > MAX_PATTERN_CHARS for node in level):
            return True
        level = [child for node in level for child in _members(node)]
    return False


def errors_at_most(value: Any, schema: CompiledSchema) -> int:
    """Return a bound of how many errors `value` can have, those within each branch of a choice counted too.

    One that takes longer to be found counts as several.
    """
    count = depth = 0
    level = [value]
    while count <= MAX_ERRORS and level:
        count += len(level)
        level = [child for node in level for child in _members(node)]
        depth += bool(level)
    return count * _checks(schema.spelling, min(depth, schema.deepest)) * schema.weight


@lru_cache(maxsize=1024)
def _checks(schema_json: bytes, depth: int) -> int:
    try:
        return schema_complexity(orjson.loads(schema_json), depth)
    except RecursionError:  # there was none when the schema was compiled: the stack was not as deep then
        return MAX_ERRORS + 1


def _describe_first(value: Any, schema: CompiledSchema) -> list[Violation]:
    """Describe one error; where there is a choice, even one may hold a great many others."""
    if b'"anyOf"' not in schema.spelling and b'"oneOf"' not in schema.spelling:
        try:
            schema.validator.validate(value)
        except jsonschema_rs.ValidationError as e:
            return _describe([e], value, schema)
    message = "breaks rules of the schema, and is too large to say where"
    return [Violation(path="$", keyword="size", message=message, actual=short_value(value))]


def _describe(
    errors: Iterable[jsonschema_rs.ValidationError], value: Any, schema: CompiledSchema
) -> list[Violation]:
    """Describe the first errors and count the others: to describe one takes longer than to find it."""
    found: list[Violation] = []
    more = 0
    for error in errors:
        named = list(islice(describe_violations(error, value, schema.schema), MAX_VIOLATIONS - len(found)))
        found += named
        more += max(0, rules_broken(error) - len(named))
    return [*found, more_broken(more)] if more else found


@lru_cache(maxsize=512)
def _part(schema_json: bytes, pointer: str) -> jsonschema_rs.Validator:
    whole = orjson.loads(schema_json)
    reference = {"$ref": f"{_WHOLE}#{pointer}"}
    if "$schema" in whole:
        reference["$schema"] = whole["$schema"]
    return _validator(reference, registry=jsonschema_rs.Registry([(_WHOLE, whole)]))


def _validator(schema: Any, **known: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        offline=True,
        mask="the value",
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
        **known,
    )


def _payloads(schema: Any) -> Iterator[bytes]:
    """Yield what an error may carry with it: the values that would have passed, or the schema that must not fit."""
    if isinstance(schema, dict):
        yield from (
            orjson.dumps(schema[keyword]) for keyword in ("enum", "const", "not") if keyword in schema
        )
    for child in _members(schema):
        yield from _payloads(child)


def _schema_error(path: str, reason: str) -> UnreadableError:
    violation = Violation(
        path=path, keyword="schema", message=f"the schema cannot be used: {reason}", expected="a JSON Schema"
    )
    return UnreadableError(Stage.SCHEMA_INVALID, [violation])


def _members(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _not_json(value: Any, path: str, depth: int = 0) -> Iterator[Violation]:
    if depth > MAX_DEPTH:
        yield _no_json(path, f"is nested deeper than {MAX_DEPTH} levels")
    elif isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str) or not _is_text(key):
                yield _no_json(path, f"the key {key!r:.80} is not text")
            else:
                yield from _not_json(child, member_path(path, key), depth + 1)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _not_json(child, f"{path}[{index}]", depth + 1)
    elif reason := _not_scalar(value):
        yield _no_json(path, reason)


def _no_json(path: str, reason: str) -> Violation:
    return Violation(path=path, keyword="json", message=reason, expected="JSON")


def _not_scalar(value: Any) -> str:
    """Return why a leaf is not JSON, or nothing."""
    match value:
        case None | bool():
            return ""
        case int():
            return "an integer is beyond the range of a double" if value.bit_length() > _LARGEST_BITS else ""
        case float() | Decimal():
            return "" if math.isfinite(value) else f"{value} is not a JSON number"
        case str():
            return "" if _is_text(value) else "holds a lone surrogate"
        case _:
            return f"a {type(value).__name__} is not a JSON value"


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
