"""Validate values against schemas. The complexity of a schema is limited first."""

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
MAX_CHECKS = 20_000  # on one path down an answer: the validator makes about ten of them per microsecond
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
    """A schema is refused because checking an answer could take too long."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def max_answer_depth(schema: Any, size: int) -> int:
    """Return how deep an answer may be nested so that checking it takes limited time.

    `size` is the size of the schema in bytes.

    Raises:
        SchemaTooComplexError: If the schema is too large, too deep, or needs too many checks.

    """
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooComplexError(f"it has {size} bytes. Allowed: at most {MAX_SCHEMA_BYTES} bytes")
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise SchemaTooComplexError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    # The checks on one path down an answer are counted with all references expanded, because a chain of definitions that
    # refer twice to the next one doubles at each step. Only a schema that refers to itself more than once needs SHALLOW.
    for depth in (MAX_DEPTH, SHALLOW):
        try:
            if _Count(schema).checks(schema, depth) <= MAX_CHECKS:
                return depth
        except RecursionError:
            continue
    raise SchemaTooComplexError(
        f"it expands to more than {MAX_CHECKS} checks of one value. Combine fewer references"
    )


def schema_complexity(schema: Any, depth: int) -> int:
    """Return how many schemas apply on one path down an answer of `depth` levels.

    `depth` must not exceed the result of `max_answer_depth`.
    """
    return _Count(schema).checks(schema, depth)


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and arrays in `value` are nested deeper than `levels`."""
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
    """Counts the schemas on one path down an answer. References count once per depth."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[str, int], int] = {}
        self._left = _MAX_STEPS

    def checks(self, schema: Any, depth: int) -> int:
        """Return the number of checks of a value with `depth` more levels."""
        if not isinstance(schema, dict) or depth < 0:
            return 0
        self._left -= 1
        if self._left < 0:
            raise SchemaTooComplexError(
                f"counting its checks takes more than {_MAX_STEPS} steps. Make it smaller"
            )
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise SchemaTooComplexError(
                "it contains another schema with its own $id. Allowed: one $id at the top"
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
            # A reference back to itself at the same depth applies once. Otherwise the count would not end.
            self._known[key] = 0
            self._known[key] = self.checks(self._target(reference), depth)
        return self._known[key]

    def _target(self, reference: str) -> Any:
        base, _, pointer = reference.partition("#")
        if base and base != self._root.get("$id"):
            raise SchemaTooComplexError(
                f"it refers to {reference[:80]!r}. Allowed: references within it (#/...)"
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
                return None  # the compiler reports it
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
    """Return the schemas that apply to one member each."""
    # Only the largest is counted, because a path down an answer passes one member.
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


MAX_ERRORS = 100_000  # in one value: finding one takes up to 30 microseconds
MAX_PATTERN_CHARS = 4_096
# Copying this many bytes into an error takes as long as finding the error.
_PAYLOAD_BYTES = 1_000
_MAX_BACKTRACKS = 10_000  # of one text against a pattern: about 0.1 ms
_LARGEST_BITS = 1024  # of an integer that a double can hold
_LONG_NUMBER = re.compile(rb"[0-9.]{17}|[0-9][eE]")
_LOOKS_AROUND = re.compile(rb"\(\?[=!<]|\\\\[1-9]")
_WHOLE = "json-schema:///whole"  # a base that any `$id` can be resolved against


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A valid schema with its validator and limits.

    Attributes:
        schema: The schema.
        spelling: The schema as canonical JSON.
        validator: The validator.
        deepest: Maximum nesting of an answer.
        is_short: Whether all numbers of the schema are short enough for a double.
        looks_around: Whether a pattern looks around or refers back. Its time grows with the square of the
            text.
        weight: How many times longer the slowest error takes to find than other errors.

    """

    schema: Any
    spelling: bytes
    validator: jsonschema_rs.Validator
    deepest: int
    is_short: bool
    looks_around: bool
    weight: int

    def part(self, steps: Sequence[str | int]) -> jsonschema_rs.Validator:
        """Return the validator of the schema at `steps`, with references into the whole."""
        pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
        return _part(self.spelling, quote(pointer))


def validate(value: Any, schema: SchemaLike) -> list[Violation]:
    """Return every rule of `schema` that `value` breaks. Empty if the value is valid.

    `$schema` selects the draft, by default the newest. Formats are checked. For a pydantic model, its JSON
    Schema is checked first, then its validators run. NaN, Infinity, numbers beyond the range of a double,
    lone surrogates and values of other types than JSON are always violations.

    Returns:
        At most `MAX_VIOLATIONS` violations. One more has the number of the others.

    Raises:
        ParserException: With stage `schema_invalid`, if the schema is invalid or has references to other
            documents, or if it is neither a mapping nor a pydantic model.

    Example:
        broken = validate({"qty": 0}, {"properties": {"qty": {"exclusiveMinimum": 0}}})
        print(broken[0].path)  # $.qty

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
    """Return the violations of decoded JSON. A valid value takes a few microseconds.

    `rounded` is `DecodedJson.rounded` of the same value, and makes the check faster.
    """
    if is_too_deep(value, schema):
        message = (
            f"is nested deeper than {schema.deepest} levels, the most for a schema that refers to itself so"
        )
        return [Violation(path="$", keyword="depth", message=message)]
    if schema.looks_around and is_too_long(value):
        message = f"holds a text of more than {MAX_PATTERN_CHARS} characters, the most for a pattern that looks around"
        return [Violation(path="$", keyword="size", message=message)]
    # If the rounded value is valid, so is the exact one, because different short numbers have different doubles.
    # An invalid value is checked again, so that its errors are described with exact numbers.
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

    Raises:
        UnreadableError: With stage `schema_invalid`, if the schema is invalid, refers to other documents, is
            too complex, or does not allow an object.

    """
    schema = orjson.loads(schema_json)
    try:
        deepest = max_answer_depth(schema, len(schema_json))
    except SchemaTooComplexError as e:
        raise _schema_error("$", e.reason) from e
    kinds = schema.get("type", "object")
    if isinstance(kinds, str | list) and "object" not in kinds:
        raise _schema_error(
            "$.type", f"{json.dumps(kinds)} does not allow an object. An answer is one object"
        )
    try:
        validator = _validator(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as e:
        raise _schema_error("$", str(e).partition("\n")[0]) from e
    is_short = _LONG_NUMBER.search(schema_json) is None
    weight = 1 + max(map(len, _payloads(schema)), default=0) // _PAYLOAD_BYTES
    looks_around = _LOOKS_AROUND.search(schema_json) is not None
    return CompiledSchema(schema, schema_json, validator, deepest, is_short, looks_around, weight)


def schema_bytes(schema: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a schema. It is the key of its cached validator.

    Raises:
        UnreadableError: With stage `schema_invalid`, if the schema is not JSON.

    """
    try:
        return canonical_bytes(schema)
    except CanonicalError as e:
        raise _schema_error(e.path, e.reason) from e


def is_too_deep(value: Any, schema: CompiledSchema) -> bool:
    """Return whether `value` is nested too deep to be checked in limited time."""
    return schema.deepest < MAX_DEPTH and is_deeper(value, schema.deepest)


def is_too_long(value: Any) -> bool:
    """Return whether a text is too long for a pattern that looks around."""
    level = [value]
    while level:
        if any(isinstance(node, str) and len(node) > MAX_PATTERN_CHARS for node in level):
            return True
        level = [child for node in level for child in _members(node)]
    return False


def errors_at_most(value: Any, schema: CompiledSchema) -> int:
    """Return an upper bound for the errors of `value`, including those in branches.

    An error that takes longer to find counts as several.
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
    except RecursionError:  # possible, because the stack may be deeper than when the schema was compiled
        return MAX_ERRORS + 1


def _describe_first(value: Any, schema: CompiledSchema) -> list[Violation]:
    """Describe the first error."""
    # With a choice, even one error may contain a great many others and would take too long.
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
    """Describe the first errors and count the others."""
    # The rest is only counted, because describing an error takes longer than finding it.
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
    """Yield the values that an error may carry: allowed values, or a forbidden schema."""
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
    """Return why a leaf is not JSON, or an empty string."""
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
