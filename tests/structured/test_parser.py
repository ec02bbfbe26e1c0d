"""A parser reads an answer with all that it asked with: the schema to the last digit, the cap, the data."""

import pytest

from agentic_trading.llm.envelope import EvidenceItem
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Stage, Usage
from agentic_trading.structured import (
    Accepted,
    InstructorParser,
    OutputParser,
    Prepared,
    Rejected,
    StructuredLogProbsParser,
    prepare,
    schema_problem,
    select,
)
from tests.build import NOW, response
from tests.structured.asking import ORDER, REASKED, SEALED, STRICT, asked, capability, request

PARSERS: list[OutputParser] = [InstructorParser(), StructuredLogProbsParser()]


@pytest.mark.parametrize("qty", ["10.00000000000000001", "10.0000000000000000000000001", "0.0"])
def test_last_digit_beyond_bound_is_refused(qty: str) -> None:
    for policy, end in ((STRICT, ""), (SEALED, ', "end": "ok"')):
        asked_with = request(output_policy=policy, expected_output_schema=ORDER)

        outcome = PARSERS[0].read(response(f'{{"side": "BUY", "qty": {qty}{end}}}'), asked_with)

        assert outcome.trace.verdict is Stage.SCHEMA_VALIDATION


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_cut_answers_and_copies_are_detected(parser: OutputParser) -> None:
    shown = EvidenceItem(
        evidence_id="E", source="wire", content='{"side": "BUY", "qty": 1}', retrieved_at=NOW
    )
    asked_with = request(
        capability(native_schema=False),
        output_policy=REASKED,
        expected_output_schema=ORDER,
        retrieved_evidence=[shown],
    )
    copied = response('They say {"side": "BUY", "qty": 1}, and I do not.')
    own = response('They say much, and I {"side": "SELL", "qty": 1}.')
    full = ModelResponse(own.text, "end_turn", Usage(output_tokens=asked_with.max_tokens), model="any")

    verdicts = [parser.read(answer, asked_with).trace.verdict for answer in (copied, own, full)]

    assert verdicts == [Stage.AMBIGUOUS, Stage.DONE, Stage.TRUNCATED]


@pytest.mark.parametrize("native_schema", [True, False])
def test_prepared_call_has_parser_and_request(*, native_schema: bool) -> None:
    model, envelope = capability(native_schema=native_schema), asked(expected_output_schema=ORDER)

    prepared = prepare(envelope, model)

    assert isinstance(prepared, Prepared)
    assert prepared.parser == select(model, envelope)
    assert prepared.request == prepared.parser.request(envelope, model, attempt=1, answer=1)
    assert prepared.read(response('{"side": "BUY", "qty": 1}'), prepared.request).trace.parser == (
        prepared.parser.name
    )


def test_unfittable_schema_is_found_before_sending() -> None:
    envelope = asked(expected_output_schema={"type": "array"})

    prepared = prepare(envelope, capability())

    assert isinstance(prepared, FailureReason)
    assert prepared.category is FailureKind.INVALID_REQUEST
    assert prepared == schema_problem({"type": "array"}, STRICT)


@pytest.mark.parametrize("body", ["no json", '{"model":"another"}', "[]"])
def test_body_that_is_passed_on_is_checked_before_sending(body: str) -> None:
    envelope = asked(response_format="verbatim", context={"api": "chat_completions", "body": body})

    prepared = prepare(envelope, capability())

    assert isinstance(prepared, FailureReason)
    assert prepared.category is FailureKind.INVALID_REQUEST
    assert "body" in prepared.description


def test_unenforced_schema_goes_into_prompt() -> None:
    prepared = prepare(asked(expected_output_schema=ORDER), capability(), enforced=False)

    assert isinstance(prepared, Prepared)
    assert (prepared.request.transport, prepared.request.response_schema) == ("prompted", None)
    assert '"SELL"' in prepared.request.system


def test_each_step_continues_from_last_request() -> None:
    prepared = prepare(
        asked(expected_output_schema=ORDER, output_policy=REASKED), capability(max_output_tokens=5_000)
    )
    assert isinstance(prepared, Prepared)
    outcome = prepared.read(response("none"), prepared.request)
    assert isinstance(outcome, Rejected)

    again = prepared.reask(prepared.request, outcome, attempt=2)
    prompted = prepared.move_schema_to_prompt(again, attempt=3)
    raised = prepared.raise_cap(prompted, attempt=4)

    assert [(made.attempt, made.answer) for made in (again, prompted, raised)] == [(2, 2), (3, 2), (4, 2)]
    assert raised.user == prompted.user == again.user
    assert [made.transport for made in (again, prompted, raised)] == ["native_schema", "prompted", "prompted"]
    assert raised.max_tokens == 5_000


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_outcome_carries_read_text(parser: OutputParser) -> None:
    made = request(output_policy=REASKED, expected_output_schema=ORDER)
    good, bad = 'Sure: {"side": "BUY", "qty": 1}', 'Sure: {"side": "BUY"}'

    accepted, rejected = (parser.read(response(text), made) for text in (good, bad))

    assert isinstance(accepted, Accepted)
    assert (accepted.raw_output, accepted.text) == (good, '{"side": "BUY", "qty": 1}')
    assert rejected.raw_output == bad
