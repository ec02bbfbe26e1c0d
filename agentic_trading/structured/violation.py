"""Say of a broken rule where it stands, what was there, and what would have passed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from jsonschema_rs import ValidationError

from agentic_trading.llm.reading import Violation
from agentic_trading.structured.reading import member_path

_SHOWN_CHARS = 200
_SHOWN_OPTIONS = 50
_EXACT_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class _Hint:
    expected: Any = None
    allowed: Any = None
    suggestion: Any = None


def described(error: ValidationError, root: Any, schema: Any) -> list[Violation]:
    """Return the violations behind one error of the validator, in words that a model can act on.

    `root` is the whole value: the error's own copy has rounded numbers. A missing or undeclared property is named
    by its own path; where only one branch of an `anyOf` or `oneOf` fits at all, that branch's errors are given.
    """
    facts = error.kind.as_dict()
    path = json_path(error.instance_path)
    match error.kind.name:
        case "required":
            return [_missing(member_path(path, facts["property"]))]
        case "additionalProperties" | "unevaluatedProperties" as keyword:
            declared = _declared(schema, error.schema_path)
            return [_undeclared(path, key, keyword, declared) for key in facts["unexpected"]]
        case "anyOf" | "oneOf" if branch := _meant(facts["context"], error.instance_path):
            return [violation for inner in branch for violation in described(inner, root, schema)]
    actual = _at(root, error.instance_path)
    hint = _HINTS.get(error.kind.name, _no_hint)(facts, actual)
    return [
        Violation(
            path=path,
            keyword=error.kind.name,
            message=error.message[:_SHOWN_CHARS],
            expected=hint.expected,
            actual=shown(actual),
            allowed=hint.allowed,
            suggestion=hint.suggestion,
        )
    ]


def json_path(steps: Sequence[str | int]) -> str:
    """Return `steps` as a JSON path: `$.legs[0].qty`."""
    path = "$"
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else member_path(path, step)
    return path


def shown(value: Any) -> Any:
    """Return `value` short, and so that it reads back from a log as it was put in."""
    match value:
        case None | bool() | float():
            return value
        case str():
            return value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…"
        case int() | Decimal():
            return _plain_number(value)
        case dict():
            return f"an object with {len(value)} properties"
        case list():
            return f"an array of {len(value)} items"
        case _:
            return f"{value!r:.{_SHOWN_CHARS}}"


def _plain_number(value: int | Decimal) -> int | float | str:
    if isinstance(value, int):
        return value if abs(value) < _EXACT_INTEGER else str(value)[:_SHOWN_CHARS]
    rounded = float(value)
    return rounded if Decimal(repr(rounded)) == value else str(value)[:_SHOWN_CHARS]


def _missing(path: str) -> Violation:
    return Violation(path=path, keyword="required", message="is required and missing", expected="a value")


def _undeclared(parent: str, name: str, keyword: str, declared: list[str] | None) -> Violation:
    return Violation(
        path=member_path(parent, name),
        keyword=keyword,
        message="is not a property of the schema",
        expected="no such property",
        allowed=declared,
        suggestion=_nearest_text(name, declared or []),
    )


def _declared(schema: Any, schema_path: Sequence[str | int]) -> list[str] | None:
    # The path may lead through a reference, to what does not stand in this document.
    with suppress(KeyError, IndexError, TypeError):
        return list(_at(schema, [*schema_path[:-1], "properties"]))[:_SHOWN_OPTIONS]
    return None


def _meant(
    branches: Sequence[Sequence[ValidationError]], place: Sequence[str | int]
) -> Sequence[ValidationError]:
    """Return the errors of the only branch that the value's type fits, if there is exactly one."""
    fitting = [branch for branch in branches if not any(_is_other_type(error, place) for error in branch)]
    return fitting[0] if len(fitting) == 1 else ()


def _is_other_type(error: ValidationError, place: Sequence[str | int]) -> bool:
    return error.kind.name == "type" and list(error.instance_path) == list(place)


def _at(root: Any, steps: Sequence[str | int]) -> Any:
    node = root
    for step in steps:
        node = node[step]
    return node


def _no_hint(_facts: dict[str, Any], _actual: Any) -> _Hint:
    return _Hint()


def _type(facts: dict[str, Any], _actual: Any) -> _Hint:
    return _Hint(expected=" or ".join(sorted(facts["types"])))


def _options(facts: dict[str, Any], actual: Any) -> _Hint:
    options = facts["options"]
    return _Hint(
        allowed=[shown(option) for option in options[:_SHOWN_OPTIONS]], suggestion=_nearest(actual, options)
    )


def _constant(facts: dict[str, Any], _actual: Any) -> _Hint:
    value = shown(facts["expected_value"])
    return _Hint(allowed=[value], suggestion=value)


def _bound(sign: str, *, inclusive: bool = True) -> Callable[[dict[str, Any], Any], _Hint]:
    def hint(facts: dict[str, Any], _actual: Any) -> _Hint:
        limit = shown(facts["limit"])
        return _Hint(allowed=f"{sign} {limit}", suggestion=limit if inclusive else None)

    return hint


def _size(sign: str, unit: str) -> Callable[[dict[str, Any], Any], _Hint]:
    def hint(facts: dict[str, Any], _actual: Any) -> _Hint:
        return _Hint(allowed=f"{sign} {facts['limit']} {unit}")

    return hint


def _multiple(facts: dict[str, Any], actual: Any) -> _Hint:
    unit = _number(facts["multiple_of"])
    nearest = (Decimal(actual) / unit).to_integral_value() * unit
    return _Hint(allowed=f"multiples of {shown(unit)}", suggestion=shown(nearest))


def _named(fact: str) -> Callable[[dict[str, Any], Any], _Hint]:
    def hint(facts: dict[str, Any], _actual: Any) -> _Hint:
        return _Hint(expected=shown(facts[fact]))

    return hint


_HINTS: dict[str, Callable[[dict[str, Any], Any], _Hint]] = {
    "type": _type,
    "enum": _options,
    "const": _constant,
    "minimum": _bound(">="),
    "maximum": _bound("<="),
    "exclusiveMinimum": _bound(">", inclusive=False),
    "exclusiveMaximum": _bound("<", inclusive=False),
    "minLength": _size("at least", "characters"),
    "maxLength": _size("at most", "characters"),
    "minItems": _size("at least", "items"),
    "maxItems": _size("at most", "items"),
    "minProperties": _size("at least", "properties"),
    "maxProperties": _size("at most", "properties"),
    "multipleOf": _multiple,
    "format": _named("format"),
    "pattern": _named("pattern"),
}


def _nearest(actual: Any, options: Sequence[Any]) -> Any:
    if isinstance(actual, str):
        return _nearest_text(actual, [option for option in options if isinstance(option, str)])
    if isinstance(actual, int | Decimal) and not isinstance(actual, bool):
        numbers = list(_numbers(options))
        return shown(min(numbers, key=lambda number: abs(number - actual))) if numbers else None
    return None


def _nearest_text(actual: str, options: Sequence[str]) -> str | None:
    by_lower = {option.lower(): option for option in reversed(options)}
    close = get_close_matches(actual[:_SHOWN_CHARS].lower(), list(by_lower), n=1)
    return by_lower[close[0]] if close else None


def _numbers(options: Sequence[Any]) -> Iterator[Decimal]:
    for option in options:
        if isinstance(option, int | float | Decimal) and not isinstance(option, bool):
            yield _number(option)


def _number(value: float | Decimal) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(repr(value))
