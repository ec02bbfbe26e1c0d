"""Phase 3 of the parsers' test plan: expected behaviours of both parsers and their border."""

from typing import Any

import pytest

from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.result import Stage
from agentic_trading.structured import (
    Accepted,
    InstructorParser,
    ParserException,
    Rejected,
    StructuredLogProbsParser,
    select,
)
from agentic_trading.structured.outcome import to_failure
from agentic_trading.structured.pipeline import RawAnswer, parse_answer
from tests.build import response
from tests.structured.asking import ANSWER, STRICT, asked, capability, request

NATIVE = capability(logprobs=True)
PROMPTED = capability(native_schema=False)
VALID = '{"answer": "4"}'
INVALID = '{"answer": incomplete}'
NATURAL = "The answer is four because two plus two equals four."
PLAIN = "Answer the following question directly:\n\nQuestion: What is 2+2?"
THINKING = f"{PLAIN}\n\nThink about it step by step before you answer."


def failed(parser: Any, text: str) -> ParserException:
    """Return the exception that reading `text` on behalf of `parser` raises inside."""
    with pytest.raises(ParserException) as raised:
        parse_answer(
            RawAnswer(response(text), ANSWER, None, STRICT, None, 1000, parser.name, "model-1", "prompted")
        )
    return raised.value


def test_selects_logprobs_parser_for_native_schema() -> None:
    assert isinstance(select(NATIVE, asked()), StructuredLogProbsParser)


def test_selects_instructor_parser_without_native_schema() -> None:
    assert isinstance(select(PROMPTED, asked()), InstructorParser)


@pytest.mark.parametrize("domain_prompt", [PLAIN, THINKING])
def test_schema_is_added_to_domain_prompt(domain_prompt: str) -> None:
    enhanced = (
        InstructorParser().request(asked(instructions=domain_prompt), PROMPTED, attempt=1, answer=1).system
    )

    assert enhanced.startswith(domain_prompt)
    assert '"answer"' in enhanced
    assert "valid JSON" in enhanced


def test_instructor_parser_parses_valid_json_response() -> None:
    outcome = InstructorParser().read(response(VALID), request(PROMPTED))

    assert isinstance(outcome, Accepted)
    assert (outcome.value, outcome.text) == ({"answer": "4"}, VALID)


@pytest.mark.parametrize("text", [INVALID, NATURAL])
def test_instructor_parser_fails_on_malformed_json(text: str) -> None:
    assert failed(InstructorParser(), text).stage == "json_parse"


def test_instructor_parser_fails_on_schema_mismatch() -> None:
    e = failed(InstructorParser(), '{"wrong_field": "value"}')

    assert e.stage == "schema_validation"
    assert {violation.path for violation in e.errors} == {"$.answer", "$.wrong_field"}


def test_instructor_parser_fails_on_empty_response() -> None:
    assert failed(InstructorParser(), "").stage == "response_empty"


def test_parser_exception_contains_full_context() -> None:
    e = failed(InstructorParser(), INVALID)

    assert (e.parser_type, e.model, e.stage, e.content) == (
        "InstructorParser",
        "model-1",
        "json_parse",
        INVALID,
    )
    assert isinstance(e.original_error, ValueError)
    assert "InstructorParser failed at json_parse" in str(e)


def test_structured_logprobs_uses_response_format() -> None:
    made = StructuredLogProbsParser().request(asked(), NATIVE, attempt=1, answer=1)

    assert made.transport == "native_schema"
    assert made.response_schema is not None
    assert made.response_schema["properties"] == {"answer": {"type": "string"}}


def test_structured_logprobs_prefers_structured_data() -> None:
    answered = response("not read", structured={"answer": "4"}, logprobs=(-0.5, -0.1))

    outcome = StructuredLogProbsParser().read(answered, request(NATIVE))

    assert isinstance(outcome, Accepted)
    assert outcome.value == {"answer": "4"}
    assert (outcome.trace.logprob_mean, outcome.trace.logprob_min) == (-0.3, -0.5)


def test_structured_logprobs_parses_json_content() -> None:
    outcome = StructuredLogProbsParser().read(response(VALID), request(NATIVE))

    assert isinstance(outcome, Accepted)
    assert outcome.value == {"answer": "4"}


def test_structured_logprobs_raises_exception_on_failure() -> None:
    assert failed(StructuredLogProbsParser(), NATURAL).parser_type == "StructuredLogProbsParser"


def test_parser_exception_translates_to_failure_reason() -> None:
    failure = to_failure(failed(InstructorParser(), INVALID))

    assert isinstance(failure, FailureReason)
    assert (failure.category, failure.recoverable) == (FailureKind.PARSING_ERROR, True)


def test_failure_reason_contains_parser_context() -> None:
    failure = to_failure(failed(InstructorParser(), INVALID))

    assert "InstructorParser" in failure.description
    assert "json_parse" in failure.description
    for fact in ("Model: model-1", "Stage: json_parse", "Original Error: ", f"Content: {INVALID}"):
        assert fact in failure.technical_details


@pytest.mark.parametrize("text", ["", INVALID, NATURAL, '{"wrong_field": "value"}', "\x00", "[" * 1000])
def test_application_never_sees_parser_exception(text: str) -> None:
    for parser, takes in ((InstructorParser(), PROMPTED), (StructuredLogProbsParser(), NATIVE)):
        outcome = parser.read(response(text), request(takes))
        assert isinstance(outcome, Rejected)
        assert isinstance(outcome.failure, FailureReason)
        assert outcome.trace.verdict is not Stage.DONE
