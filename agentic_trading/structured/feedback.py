"""Feedback on a rejected answer: a numbered list with the nearest allowed values."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from agentic_trading.llm.result import Stage, Violation

_SHOWN_CHARS = 200
_EXACT_INTEGER = 2**63
_SHORTEST_STEM = 3
_ANOTHER_WORD = 4
_PRECISION = 700  # a number that is read has at most 308 places on either side of the point
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SPELLED_NUMBER = re.compile(r"[$€£]? ?(-?[0-9]{1,20}(?:\.[0-9]{1,20})?) ?(%?)")


def near_miss(name: str, names: Iterable[str]) -> str | None:
    """Return the name that `name` misspells, abbreviates or spells out, or None."""
    return _nearest_name(name[:_SHOWN_CHARS], tuple(names))


def misspelt(name: str, names: Iterable[str]) -> str | None:
    """Return the same as `near_miss`, but skip names that `name` merely contains.

    `sides`, `reasoning` and `price_usd` may mean `side`, `reason` and `price`. `note` does not mean `n`, and
    `price_reason` does not mean `price`.
    """
    letters = _letters(name[:_SHOWN_CHARS])
    return near_miss(name, [other for other in names if not _merely_contains(letters, _letters(other))])


def nearest_option(actual: Any, options: Sequence[Any]) -> Any:
    """Return the option nearest to a value, or None.

    A text is compared by its letters. Other values, and texts that spell a number, are compared as numbers.
    """
    if isinstance(actual, str):
        texts = [option for option in options if isinstance(option, str)]
        if text := _nearest_text(actual, texts):
            return text
    possible = _possible_numbers(actual)
    numbers = list(_numbers(options)) if possible else []
    if not numbers:
        return None
    return _suggested_number(min(numbers, key=lambda number: min(abs(number - meant) for meant in possible)))


def nearest_number(value: float | Decimal, rules: dict[str, Any]) -> Any:
    """Return the nearest number that satisfies the bounds and step of a schema.

    Returns None if no number is allowed or nearest: there is no smallest number greater than 0.
    """
    bounds = list(_numbers(rules.get(keyword) for keyword in _BOUNDS))
    exact = _exact_number(value)
    with localcontext(prec=_PRECISION):
        candidates = bounds
        if step := _step(rules):
            counts = [(number / step).to_integral_value() for number in (exact, *bounds)]
            multiples = [(count + by) * step for count in counts for by in (-1, 0, 1)]
            candidates = [number for number in multiples if _is_allowed(rules, number)]
        closest = min(candidates, key=lambda number: abs(number - exact), default=None)
        return None if closest is None or not _is_allowed(rules, closest) else _suggested_number(closest)


def number_bounds(rules: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return the four bounds of a schema as in draft 6. None means no bound.

    The order is `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`.
    """
    least, most = rules.get("minimum"), rules.get("maximum")
    above, below = rules.get("exclusiveMinimum"), rules.get("exclusiveMaximum")
    # In draft 4 the exclusive bounds are booleans. They would compare as 0 and 1.
    if isinstance(above, bool):
        least, above = (None, least) if above else (least, None)
    if isinstance(below, bool):
        most, below = (None, most) if below else (most, None)
    return least, most, above, below


def plain_number(value: int | Decimal) -> int | float | str:
    """Return a number that is exact in a log: as text if a double would round it."""
    if isinstance(value, int):
        return value if abs(value) < _EXACT_INTEGER else str(value)[:_SHOWN_CHARS]
    rounded = float(value)
    return rounded if Decimal(repr(rounded)) == value else str(value)[:_SHOWN_CHARS]


def _merely_contains(letters: str, other: str) -> bool:
    if other not in letters or letters == other:
        return False
    # Four letters more are another word. Names of one or two letters are excluded because many words contain them.
    return len(other) < _SHORTEST_STEM or len(letters) - len(other) >= _ANOTHER_WORD


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


@lru_cache(maxsize=1024)  # a list of a thousand items has the same error a thousand times
def _nearest_name(name: str, names: tuple[str, ...]) -> str | None:
    return _nearest_text(name, names) or next(
        (other for other in names if _is_abbreviation(name, other)), None
    )


def _nearest_text(actual: str, options: Sequence[str]) -> str | None:
    by_lower = {option.lower(): option for option in reversed(options)}
    close = get_close_matches(actual[:_SHOWN_CHARS].lower(), list(by_lower), n=1)
    return by_lower[close[0]] if close else None


def _is_abbreviation(name: str, other: str) -> bool:
    """Return whether one name is the other with letters left out: `qty`, `quantity`."""
    short, long = sorted((name.lower(), other.lower()), key=len)
    rest = iter(long[1:])
    return bool(short) and short[0] == long[0] and all(letter in rest for letter in short[1:])


def _possible_numbers(actual: Any) -> list[Decimal]:
    """Return the numbers that a value may mean: `10%` is 10 or 0.1."""
    if isinstance(actual, str):
        spelled = _SPELLED_NUMBER.fullmatch(actual.strip())
        if spelled is None:
            return []
        number = Decimal(spelled[1])
        return [number, number / 100] if spelled[2] else [number]
    return list(_numbers([actual]))


def _step(rules: dict[str, Any]) -> Decimal | None:
    """Return `multipleOf` or None. For integers, return a whole step, by default 1."""
    steps = list(_numbers([rules.get("multipleOf")]))
    if rules.get("type") != "integer":
        return steps[0] if steps else None
    return next((step for step in steps if step % 1 == 0), Decimal(1))


def _is_allowed(rules: dict[str, Any], number: Decimal) -> bool:
    least, most, above, below = number_bounds(rules)
    return (
        all(number >= bound for bound in _numbers([least]))
        and all(number <= bound for bound in _numbers([most]))
        and all(number > bound for bound in _numbers([above]))
        and all(number < bound for bound in _numbers([below]))
        and all(number % step == 0 for step in _numbers([rules.get("multipleOf")]))
    )


def _numbers(values: Iterable[Any]) -> Iterator[Decimal]:
    for value in values:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            yield _exact_number(value)


def _exact_number(value: float | Decimal) -> Decimal:
    """Return a number as the decimal of its shortest notation."""
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def _suggested_number(number: Decimal) -> int | float | str:
    """Return a number in plain form: 20, not 20.0."""
    whole = number.to_integral_value()
    return plain_number(int(whole) if whole == number else number)


ErrorType = Literal[
    "parse_error",
    "missing_field",
    "invalid_value",
    "type_error",
    "too_short",
    "too_long",
    "unknown_field",
    "inconsistent",
]
"""The kind of error in a field. An unreadable answer has one item: `parse_error`."""

INCONSISTENT: Final = "inconsistent"
"""The keyword of a violation of a rule between fields."""

_TYPES: Final[Mapping[str, ErrorType]] = MappingProxyType({
    "required": "missing_field",
    "type": "type_error",
    "minLength": "too_short",
    "maxLength": "too_long",
    "additionalProperties": "unknown_field",
    "unevaluatedProperties": "unknown_field",
    INCONSISTENT: "inconsistent",
    "value_error": "inconsistent",
    "semantic": "inconsistent",
})
_KINDS: Final = {"number": "float", "integer": "int"}
_WITH_VALUE: Final[Mapping[ErrorType, str]] = MappingProxyType({
    "missing_field": "Use {value} (default)",
    "unknown_field": "Use {value} instead",
    "type_error": "Use {value} instead of {given}",
})
_WITHOUT_VALUE: Final[Mapping[ErrorType, str]] = MappingProxyType({
    "missing_field": "Add it",
    "unknown_field": "Leave it out",
    "too_short": "Explain in more detail: {expected}",
    "too_long": "Shorten it: {expected}",
})
_WORST_FIRST: Final = (
    "required",
    "type",
)  # of several rules that one field breaks, the one that names the item
_HEADING: Final = "## VALIDATION ERRORS (Please Fix)"
_CLOSING: Final = "Please output corrected JSON with valid values."


@dataclass(frozen=True, slots=True)
class ValidationErrorDetail:
    """One error in a field, made from the violations at its path.

    Attributes:
        field_path: The path, such as `params.stop_loss`. `answer` for the whole answer.
        error_type: The kind of error.
        given_value: The value. None for a missing or unknown field.
        allowed_values: The values that would pass, if they can be listed.
        suggestion: The suggested change. It is shown to the model and to people, and never applied.
        expected: The allowed values in words, if they cannot be listed.
        message: More about the error, if the other attributes do not explain it.

    """

    field_path: str
    error_type: ErrorType
    given_value: Any
    allowed_values: list[Any]
    suggestion: str
    expected: str = ""
    message: str = ""


class StructuredErrorFeedback:
    """Formats errors as text that a model can act on."""

    def format_errors(self, errors: Sequence[ValidationErrorDetail]) -> str:
        """Return the errors as a numbered list in Markdown, or an empty string."""
        if not errors:
            return ""
        items = [_item(number, error) for number, error in enumerate(errors, start=1)]
        return "\n\n".join([_HEADING, *items, _CLOSING])

    def integrate_with_prompt(self, original_prompt: str, errors: Sequence[ValidationErrorDetail]) -> str:
        """Return the prompt followed by the errors. Without errors it is unchanged."""
        return f"{original_prompt}\n\n{self.format_errors(errors)}" if errors else original_prompt


def error_details(
    violations: Sequence[Violation],
    stage: Stage = Stage.SCHEMA_VALIDATION,
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[ValidationErrorDetail, ...]:
    """Return one detail per field, in the order in which the fields are first named.

    Args:
        violations: The broken rules.
        stage: The stage at which reading ended. Stages before the schema have no fields, so each violation is
            one `parse_error`.
        defaults: Suggested values for missing fields, by path (`params.n_stocks`).

    """
    if stage not in {Stage.SCHEMA_VALIDATION, Stage.SEMANTIC}:
        return tuple(map(_unread, violations))
    fields: dict[str, list[Violation]] = {}
    for violation in violations:
        fields.setdefault(violation.path, []).append(violation)
    return tuple(_detail(path, found, defaults) for path, found in fields.items())


def _unread(violation: Violation) -> ValidationErrorDetail:
    return ValidationErrorDetail(
        field_path=_field_path(violation.path),
        error_type="parse_error",
        given_value=violation.actual,
        allowed_values=[],
        suggestion="Output one JSON object and nothing else",
        message=violation.message,
    )


def _detail(path: str, found: Sequence[Violation], defaults: Mapping[str, Any]) -> ValidationErrorDetail:
    keywords = [violation.keyword for violation in found]
    first = found[next((keywords.index(word) for word in _WORST_FIRST if word in keywords), 0)]
    kind = _TYPES.get(first.keyword, "invalid_value")
    allowed = next((each.allowed for each in found if isinstance(each.allowed, list)), [])
    bound = next((each.allowed for each in found if isinstance(each.allowed, str)), "")
    nearest = next((each.suggestion for each in found if each.suggestion is not None), None)
    expected = bound or " or ".join(
        _KINDS.get(word, word) for word in str(first.expected or "").split(" or ") if word
    )
    field_path = _field_path(path)
    if kind == "missing_field":
        nearest = defaults.get(field_path)
    return ValidationErrorDetail(
        field_path=field_path,
        error_type=kind,
        given_value=first.actual,
        allowed_values=allowed,
        suggestion=_suggestion(kind, first.actual, allowed, nearest, expected),
        expected=expected if kind != "unknown_field" else "",
        message=first.message if kind == "inconsistent" else "",
    )


def _suggestion(kind: ErrorType, given: Any, allowed: Sequence[Any], nearest: Any, expected: str) -> str:
    if nearest is not None:
        text = _WITH_VALUE.get(kind, "Use {value} (closest valid value)")
        return text.format(value=_shown(nearest, allowed), given=_shown(given))
    if kind in _WITHOUT_VALUE:
        return _WITHOUT_VALUE[kind].format(expected=expected)
    if allowed:
        return f"Use one of the allowed values, such as {_shown(allowed[0], allowed)}"
    return f"Use {expected or 'another value'}"


def _item(number: int, error: ValidationErrorDetail) -> str:
    allowed = [_shown(value, error.allowed_values) for value in error.allowed_values]
    has_given = error.error_type not in {"missing_field", "unknown_field", "parse_error"}
    lines = {
        "Given": _shown(error.given_value) if has_given else "",
        "Expected": error.expected,
        "Problem": error.message,
        "Allowed": f"[{', '.join(allowed)}]" if allowed else "",
        "Suggestion": error.suggestion,
    }
    title = error.error_type.replace("_", " ").capitalize()
    shown = [f"   - {name}: {text}" for name, text in lines.items() if text]
    return "\n".join([f"{number}. **{error.field_path}**: {title}", *shown])


def _field_path(path: str) -> str:
    return path.removeprefix("$").removeprefix(".") or "answer"


def _shown(value: Any, among: Sequence[Any] = ()) -> str:
    """Return a value as JSON, with as many decimals as the longest number in `among`."""
    decimals = max((_decimals(other) for other in among), default=0)
    if decimals and _is_number(value):
        return f"{value:.{decimals}f}"
    return json.dumps(value, ensure_ascii=False, default=str)


def _decimals(value: Any) -> int:
    if not _is_number(value) or isinstance(value, int):
        return 0
    exponent = Decimal(str(value)).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
