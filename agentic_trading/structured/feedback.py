"""Say what is wrong with an answer as a numbered list in Markdown: for people, and for a prompt that asks again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Literal

from agentic_trading.llm.result import Stage, Violation

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
"""What is wrong with a field; of an answer that cannot be read there is one item, a `parse_error`."""

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
    """One thing that is wrong with a field: a view of the violations at its path.

    `field_path` is such as `params.stop_loss`, `answer` for the whole; `given_value` is None for a field that is
    missing or unknown. `allowed_values` are those that would pass, in words in `expected` where they cannot be listed; `suggestion`
    is for people and models, never applied. `message` says what the other fields leave unsaid.
    """

    field_path: str
    error_type: ErrorType
    given_value: Any
    allowed_values: list[Any]
    suggestion: str
    expected: str = ""
    message: str = ""


class StructuredErrorFeedback:
    """Writes errors as text that a model can act on."""

    def format_errors(self, errors: Sequence[ValidationErrorDetail]) -> str:
        """Return the errors as a numbered list in Markdown; an empty text for none."""
        if not errors:
            return ""
        items = [_item(number, error) for number, error in enumerate(errors, start=1)]
        return "\n\n".join([_HEADING, *items, _CLOSING])

    def integrate_with_prompt(self, original_prompt: str, errors: Sequence[ValidationErrorDetail]) -> str:
        """Return the prompt with the errors behind it; without any it is unchanged."""
        return f"{original_prompt}\n\n{self.format_errors(errors)}" if errors else original_prompt


def error_details(
    violations: Sequence[Violation],
    stage: Stage = Stage.SCHEMA_VALIDATION,
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[ValidationErrorDetail, ...]:
    """Return one detail a field, in the order in which the fields are first named.

    `stage` is where reading ended: before the schema there are no fields, only a text. `defaults` are suggested for
    fields that are missing, by path (`params.n_stocks`).
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
    """Return a value as JSON; a number among others that have decimals with as many of them as the longest."""
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
