"""Parser selection, both parsers, and the border at which an exception becomes a value: one test a scenario."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import agentic_trading
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Stage
from agentic_trading.structured import (
    Accepted,
    InstructorParser,
    ParserException,
    Rejected,
    StructuredLogProbsParser,
    select,
)
from agentic_trading.structured.outcome import UnreadableError, to_failure
from agentic_trading.structured.pipeline import RawAnswer, parse_answer
from tests.build import response
from tests.structured.asking import ANSWER, STRICT, asked, capability, request

NATIVE = capability()
TOOL = capability(native_schema=False, strict_tool=True)
JSON_MODE = capability(native_schema=False, json_mode=True)
PROMPTED = capability(native_schema=False)
QUESTION = "Answer the following question directly:\n\nQuestion: What is 2+2?"


def failing(parser: Any, text: str, stage: Stage) -> ParserException:
    """Return the exception that reading `text` raises inside."""
    with pytest.raises(ParserException) as raised:
        parse_answer(
            RawAnswer(response(text), ANSWER, None, STRICT, None, 1000, parser.name, "model-1", "prompted")
        )
    assert raised.value.stage == stage
    return raised.value


def read(parser: Any, answer: ModelResponse, to: ModelRequest) -> Accepted | Rejected:
    """Read an answer with `parser`."""
    outcome: Accepted | Rejected = parser.read(answer, to)
    return outcome


class TestParserSelection:
    def test_native_schema_model_selects_logprobs_parser(self) -> None:
        with capture_logs() as logs:
            parser = select(NATIVE, asked())

        assert isinstance(parser, StructuredLogProbsParser)
        assert [entry["event"] for entry in logs] == ["Selected StructuredLogProbsParser"]

    def test_strict_tool_model_selects_logprobs_parser(self) -> None:
        assert isinstance(select(TOOL, asked()), StructuredLogProbsParser)
        assert select(TOOL, asked()).request(asked(), TOOL, attempt=1, answer=1).transport == "strict_tool"

    def test_selection_log_explains_transport(self) -> None:
        with capture_logs() as logs:
            select(NATIVE, asked(expected_output_schema={"type": "object"}))

        assert {key: logs[0][key] for key in ("log_level", "model", "transport", "passed_over")} == {
            "log_level": "debug",
            "model": "scripted-1",
            "transport": "prompted",
            "passed_over": (
                "native_schema: #: an open object",
                "strict_tool: the model does not offer it",
                "json_mode: the model does not offer it",
            ),
        }

    def test_schemaless_model_selects_instructor_parser(self) -> None:
        with capture_logs() as logs:
            parser = select(PROMPTED, asked())

        assert isinstance(parser, InstructorParser)
        assert [entry["event"] for entry in logs] == ["Selected InstructorParser"]

    def test_model_keeps_parser_across_envelopes(self) -> None:
        envelopes = [asked(), asked(expected_output_schema={}), asked(workflow="planning")]

        assert len({id(select(NATIVE, envelope)) for envelope in envelopes}) == 1


class TestStructuredLogProbsParser:
    def test_logprobs_parser_uses_native_schema(self) -> None:
        to = StructuredLogProbsParser().request(asked(), NATIVE, attempt=1, answer=1)

        assert (to.transport, to.response_schema) == (
            "native_schema",
            {key: value for key, value in ANSWER.items() if key != "$id"},
        )
        outcome = read(StructuredLogProbsParser(), response('{"answer": "4"}', logprobs=(-0.25,)), to)
        assert isinstance(outcome, Accepted)
        assert outcome.trace.logprob_mean == -0.25
        assert isinstance(read(StructuredLogProbsParser(), response('{"reply": "4"}'), to), Rejected)

    def test_logprobs_parser_reads_structured_data(self) -> None:
        outcome = read(StructuredLogProbsParser(), response("", structured={"answer": "4"}), request(NATIVE))

        assert isinstance(outcome, Accepted)
        assert (outcome.value, outcome.text) == ({"answer": "4"}, '{"answer":"4"}')

    def test_logprobs_parser_reads_text_content(self) -> None:
        outcome = read(StructuredLogProbsParser(), response('{"answer": "4"}'), request(NATIVE))

        assert isinstance(outcome, Accepted)
        assert outcome.trace.parser == "StructuredLogProbsParser"
        assert outcome.trace.transport == "native_schema"

    def test_logprobs_parser_raises_on_invalid_json(self) -> None:
        e = failing(StructuredLogProbsParser(), "The answer is four.", Stage.JSON_PARSE)

        assert (e.parser_type, e.model, e.content) == (
            "StructuredLogProbsParser",
            "model-1",
            "The answer is four.",
        )


class TestInstructorParser:
    def test_instructor_parser_adds_schema_to_prompt(self) -> None:
        to = InstructorParser().request(asked(instructions=QUESTION), PROMPTED, attempt=1, answer=1)

        assert QUESTION in to.system
        assert "valid JSON" in to.system
        assert '"answer": string' in to.system
        assert "no other properties" in to.system

    def test_instructor_parser_reads_json_response(self) -> None:
        with capture_logs() as logs:
            outcome = read(InstructorParser(), response('{"answer": "4"}'), request(PROMPTED))

        assert isinstance(outcome, Accepted)
        assert outcome.value == {"answer": "4"}
        assert logs[-1]["event"] == "answer_accepted"

    def test_instructor_parser_raises_on_malformed_json(self) -> None:
        e = failing(InstructorParser(), '{"answer": incomplete}', Stage.JSON_PARSE)

        assert e.content == '{"answer": incomplete}'
        assert "expected a JSON value: line 1 column 12" in str(e.original_error)

    def test_instructor_parser_raises_on_schema_mismatch(self) -> None:
        e = failing(InstructorParser(), '{"wrong_field": "value"}', Stage.SCHEMA_VALIDATION)

        assert {violation.path for violation in e.errors} == {"$.answer", "$.wrong_field"}

    def test_instructor_parser_raises_on_empty_response(self) -> None:
        e = failing(InstructorParser(), "  ", Stage.RESPONSE_EMPTY)

        assert (e.content, str(e.original_error)) == ("  ", "$: the answer is empty")

    def test_instructor_parser_never_uses_native_schema(self) -> None:
        assert InstructorParser().request(asked(), NATIVE, attempt=1, answer=1).transport == "prompted"
        assert InstructorParser().request(asked(), JSON_MODE, attempt=1, answer=1).transport == "json_mode"


class TestACLTranslation:
    def test_parser_exception_becomes_failure_reason(self) -> None:
        content = "x" * 300
        e = ParserException("InstructorParser", "model-1", Stage.JSON_PARSE, content, ValueError("no JSON"))

        failure = to_failure(e)

        assert failure.category == "parsing_error"
        assert failure.description == "InstructorParser failed at json_parse"
        assert failure.technical_details == (
            f"Model: model-1\nStage: json_parse\nOriginal Error: no JSON\nContent: {'x' * 200}..."
        )

    @pytest.mark.parametrize(
        ("stage", "category"),
        [
            (Stage.REFUSAL, FailureKind.REFUSAL),
            (Stage.TRUNCATED, FailureKind.TRUNCATED),
            (Stage.SCHEMA_INVALID, FailureKind.INVALID_REQUEST),
            (Stage.TRANSPORT, FailureKind.INVALID_REQUEST),
            (Stage.SEMANTIC, FailureKind.PARSING_ERROR),
        ],
    )
    def test_failure_category_follows_stage(self, stage: Stage, category: FailureKind) -> None:
        assert to_failure(ParserException("p", "m", stage, "", ValueError())).category is category

    def test_application_layer_never_sees_parser_exception(self) -> None:
        outcome = read(InstructorParser(), response("no JSON"), request(PROMPTED))

        assert isinstance(outcome, Rejected)
        assert isinstance(outcome.failure, FailureReason)
        assert {path for path, names in imports_outside() if "ParserException" in names} == set()


def imports_outside() -> Iterator[tuple[str, set[str]]]:
    """Yield the names that each file imports which is outside `structured` and names the exception.

    A file that calls `read_json` hears it.
    """
    root = Path(agentic_trading.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "structured" in path.parts or "ParserException" not in text:
            continue
        nodes = ast.walk(ast.parse(text))
        names = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        if "read_json" not in names:
            yield str(path), names


class TestErrorHandlingAndLogging:
    def test_rejection_log_has_parser_and_stage(self) -> None:
        with capture_logs() as logs:
            outcome = read(InstructorParser(), response("no JSON"), request(PROMPTED))

        assert isinstance(outcome, Rejected)
        (entry,) = (entry for entry in logs if entry["event"] == "answer_rejected")
        assert (entry["parser_type"], entry["stage"]) == ("InstructorParser", Stage.JSON_PARSE)
        assert (entry["model"], entry["content_chars"]) == ("claude-sonnet-5-5", 7)
        assert entry["rules"] == {"json": 1}
        assert "no JSON" in outcome.failure.technical_details

    def test_answer_text_is_not_logged(self) -> None:
        with capture_logs() as logs:
            read(InstructorParser(), response("private words"), request(PROMPTED))

        assert "private" not in str(logs)

    def test_exception_without_error_has_no_rules(self) -> None:
        e = ParserException("p", "m", Stage.JSON_PARSE, "\ud800", ValueError("x"))

        assert (e.errors, e.changes) == ((), {})
        assert "\\ud800" in to_failure(e).technical_details

    def test_error_names_first_three_rules(self) -> None:
        wrong = failing(InstructorParser(), '{"a": 1, "b": 1, "c": 1, "d": 1}', Stage.SCHEMA_VALIDATION)

        assert isinstance(wrong.error, UnreadableError)
        assert str(wrong.error).count(";") == 2
