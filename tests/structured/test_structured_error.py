"""What is wrong with an answer is listed so that a model can correct it: one item a field, what was given and what is allowed."""

from typing import Any

import pytest

from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured import read_json, validate
from agentic_trading.structured.feedback import (
    StructuredErrorFeedback,
    ValidationErrorDetail,
    error_details,
)
from agentic_trading.structured.outcome import ParserException

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string", "minLength": 10, "maxLength": 20},
        "params": {
            "type": "object",
            "properties": {
                "momentum_period": {"type": "integer", "enum": [5, 10, 20, 30]},
                "stop_loss": {"type": "number", "enum": [0.08, 0.1, 0.12, 0.15]},
                "resample": {"type": "string", "enum": ["W", "M"]},
                "weight": {"type": "number", "minimum": 0, "maximum": 1},
            },
            "required": ["momentum_period", "stop_loss"],
            "additionalProperties": False,
        },
    },
    "required": ["reasoning", "params"],
    "additionalProperties": False,
}
VALID: dict[str, Any] = {"reasoning": "long enough", "params": {"momentum_period": 20, "stop_loss": 0.1}}
TWO_ERRORS = """\
## VALIDATION ERRORS (Please Fix)

1. **params.momentum_period**: Invalid value
   - Given: 25
   - Allowed: [5, 10, 20, 30]
   - Suggestion: Use 20 (closest valid value)

2. **params.stop_loss**: Type error
   - Given: "10%"
   - Expected: float
   - Allowed: [0.08, 0.10, 0.12, 0.15]
   - Suggestion: Use 0.10 instead of "10%"

Please output corrected JSON with valid values."""


def listed(answer: dict[str, Any], **defaults: Any) -> str:
    """Return the list of what is wrong with an answer, without its heading and end."""
    errors = error_details(
        validate(answer, SCHEMA), defaults={f"params.{name}": value for name, value in defaults.items()}
    )
    return StructuredErrorFeedback().format_errors(errors).partition("\n\n")[2].rpartition("\n\n")[0]


def params(**changed: Any) -> dict[str, Any]:
    """Return an answer with these parameters; None leaves one out."""
    given = {**VALID["params"], **changed}
    return {**VALID, "params": {name: value for name, value in given.items() if value is not None}}


def test_two_error_example_is_byte_identical() -> None:
    violations = validate(params(momentum_period=25, stop_loss="10%"), SCHEMA)

    assert StructuredErrorFeedback().format_errors(error_details(violations)) == TWO_ERRORS
    assert len(violations) == 3


def test_handmade_details_format_alike() -> None:
    by_hand = [
        ValidationErrorDetail(
            "params.momentum_period", "invalid_value", 25, [5, 10, 20, 30], "Use 20 (closest valid value)"
        ),
        ValidationErrorDetail(
            field_path="params.stop_loss",
            error_type="type_error",
            given_value="10%",
            allowed_values=[0.08, 0.10, 0.12, 0.15],
            suggestion='Use 0.10 instead of "10%"',
            expected="float",
        ),
    ]

    assert StructuredErrorFeedback().format_errors(by_hand) == TWO_ERRORS


def test_errors_are_appended_to_prompt() -> None:
    errors = error_details(validate(params(momentum_period=25, stop_loss="10%"), SCHEMA))
    feedback = StructuredErrorFeedback()

    assert (
        feedback.integrate_with_prompt("Choose parameters.", errors) == f"Choose parameters.\n\n{TWO_ERRORS}"
    )
    assert feedback.integrate_with_prompt("Choose parameters.", []) == "Choose parameters."
    assert feedback.format_errors([]) == ""


def test_missing_field_gives_allowed_and_default() -> None:
    assert listed(params(stop_loss=None), stop_loss=0.1) == (
        "1. **params.stop_loss**: Missing field\n"
        "   - Expected: float\n"
        "   - Allowed: [0.08, 0.10, 0.12, 0.15]\n"
        "   - Suggestion: Use 0.10 (default)"
    )
    assert listed(params(stop_loss=None)).endswith("Suggestion: Add it")
    assert listed({"reasoning": "long enough"}) == (
        "1. **params**: Missing field\n   - Expected: object\n   - Suggestion: Add it"
    )


def test_invalid_value_suggests_closest_valid() -> None:
    assert listed(params(resample="weekly")) == (
        '1. **params.resample**: Invalid value\n   - Given: "weekly"\n   - Allowed: ["W", "M"]\n'
        '   - Suggestion: Use one of the allowed values, such as "W"'
    )
    assert listed(params(stop_loss=0.11)).endswith("Suggestion: Use 0.10 (closest valid value)")
    assert listed(params(weight=1.5)) == (
        "1. **params.weight**: Invalid value\n   - Given: 1.5\n   - Expected: <= 1\n"
        "   - Suggestion: Use 1 (closest valid value)"
    )


@pytest.mark.parametrize(
    ("given", "shown", "suggestion"),
    [
        (True, "true", "Use one of the allowed values, such as 5"),
        ("20", '"20"', 'Use 20 instead of "20"'),
        (15.5, "15.5", "Use 20 instead of 15.5"),
        ([20], '"an array of 1 items"', "Use one of the allowed values, such as 5"),
    ],
)
def test_wrong_type_gives_type_and_example(given: Any, shown: str, suggestion: str) -> None:
    assert listed(params(momentum_period=given)) == (
        f"1. **params.momentum_period**: Type error\n   - Given: {shown}\n   - Expected: int\n"
        f"   - Allowed: [5, 10, 20, 30]\n   - Suggestion: {suggestion}"
    )


def test_null_is_wrong_type_not_missing() -> None:
    assert listed({**VALID, "params": None}) == (
        "1. **params**: Type error\n   - Given: null\n   - Expected: object\n   - Suggestion: Use object"
    )


def test_short_text_error_asks_for_detail() -> None:
    assert listed({**VALID, "reasoning": "short"}) == (
        '1. **reasoning**: Too short\n   - Given: "short"\n   - Expected: at least 10 characters\n'
        "   - Suggestion: Explain in more detail: at least 10 characters"
    )
    assert "Suggestion: Shorten it: at most 20 characters" in listed({**VALID, "reasoning": "x" * 21})


def test_unknown_field_is_removed_or_corrected() -> None:
    assert listed(params(stoploss=0.1)) == (
        "1. **params.stoploss**: Unknown field\n"
        '   - Allowed: ["momentum_period", "resample", "stop_loss", "weight"]\n'
        '   - Suggestion: Use "stop_loss" instead'
    )
    assert listed({**VALID, "mood": 1}).endswith("Suggestion: Leave it out")


def test_cross_field_rule_shows_problem() -> None:
    violation = Violation(
        path="$.params.momentum_period",
        keyword="inconsistent",
        message="momentum_period (30) should be <= ma_periods (20)",
        actual=30,
        allowed=[5, 10, 20],
        suggestion=20,
    )

    (error,) = error_details([violation], Stage.SEMANTIC)

    assert (error.error_type, error.given_value, error.allowed_values) == ("inconsistent", 30, [5, 10, 20])
    assert "   - Problem: momentum_period (30) should be <= ma_periods (20)\n" in (
        StructuredErrorFeedback().format_errors([error])
    )


@pytest.mark.parametrize(
    "text", ["no JSON", '{"a": 10%}', '{"a": 1', '{"a": 1} {"a": 2}', '{"a": 1, "a": 2}']
)
def test_unreadable_text_gives_form_hint(text: str) -> None:
    with pytest.raises(ParserException) as raised:
        read_json(text, mode="lossless")

    (error,) = error_details(raised.value.errors, raised.value.stage)

    assert (error.error_type, error.suggestion) == ("parse_error", "Output one JSON object and nothing else")
    shown = StructuredErrorFeedback().format_errors([error])
    assert f"   - Problem: {raised.value.errors[0].message}\n" in shown
    assert "Given" not in shown
