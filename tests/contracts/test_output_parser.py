"""What every output parser promises, and parsers that break each promise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured import (
    Accepted,
    InstructorParser,
    OutputParser,
    Rejected,
    SemanticCheck,
    StructuredLogProbsParser,
)
from tests.build import response
from tests.structured.asking import ORDER, SEALED, asked, capability
from tests.structured.test_strict_json import ANY_TEXT

ADAPTERS: list[OutputParser] = [InstructorParser(), StructuredLogProbsParser()]
MODELS = [capability(), capability(native_schema=False)]
VALID = '{"side": "BUY", "qty": 1}'

Promise = Callable[[OutputParser], None]


def ask(parser: OutputParser, model: Capability = MODELS[0], **changes: Any) -> ModelRequest:
    """Return the parser's request of an envelope that wants `ORDER`."""
    envelope = asked(**{"expected_output_schema": ORDER, **changes})
    return parser.request(envelope, model, attempt=3, answer=2)


def a_request_carries_its_envelope_and_counts(parser: OutputParser) -> None:
    made = ask(parser)

    assert (made.envelope.expected_output_schema, made.attempt, made.answer) == (ORDER, 3, 2)
    assert made.max_tokens == made.envelope.budget.max_output_tokens


def a_request_holds_instructions_apart_from_data(parser: OutputParser) -> None:
    for model in MODELS:
        made = ask(parser, model, instructions="Say it.", context={"fact": "BTC"})

        assert "Say it." in made.system
        assert "BTC" in made.user
        assert "BTC" not in made.system
        assert "Say it." not in made.user


def a_request_says_what_form_is_wanted(parser: OutputParser) -> None:
    for model in MODELS:
        made = ask(parser, model)

        assert ("SELL" in made.system) or (made.response_schema is not None)
        assert (made.response_schema is not None) is (made.transport == "native_schema")


def equal_inputs_give_equal_requests(parser: OutputParser) -> None:
    envelope = asked()

    assert len({repr(parser.request(envelope, MODELS[0], attempt=1, answer=1)) for _ in range(3)}) == 1


def a_valid_answer_is_accepted(parser: OutputParser) -> None:
    outcome = parser.read(response(VALID), ask(parser))

    assert isinstance(outcome, Accepted)
    assert outcome.value == {"side": "BUY", "qty": 1}
    assert outcome.trace.parser == parser.name


def an_answer_outside_the_original_schema_is_rejected(parser: OutputParser) -> None:
    outcome = parser.read(response('{"side": "BUY", "qty": 400}'), ask(parser))

    assert isinstance(outcome, Rejected)
    assert outcome.errors[0].path == "$.qty"


def a_cut_answer_is_rejected(parser: OutputParser) -> None:
    made = ask(parser)

    for cut in (
        response(VALID, stop_reason="max_tokens"),
        response(VALID, usage=response().usage.model_copy(update={"output_tokens": made.max_tokens})),
        response(VALID[:-1]),
    ):
        assert isinstance(parser.read(cut, made), Rejected)
    assert isinstance(parser.read(response(VALID), ask(parser, output_policy=SEALED)), Rejected)


def a_check_is_run(parser: OutputParser) -> None:
    def refuse(text: str) -> list[Any]:
        raise ValueError(text)

    assert isinstance(parser.read(response(VALID), ask(parser), check=refuse), Rejected)


def no_answer_raises(parser: OutputParser) -> None:
    made = ask(parser)

    @given(ANY_TEXT, st.sampled_from(["end_turn", "refusal", "length", ""]))
    def any_answer(text: str, reason: str) -> None:
        assert isinstance(parser.read(response(text, stop_reason=reason), made), Rejected)

    any_answer()


PROMISES: list[Promise] = [
    a_request_carries_its_envelope_and_counts,
    a_request_holds_instructions_apart_from_data,
    a_request_says_what_form_is_wanted,
    equal_inputs_give_equal_requests,
    a_valid_answer_is_accepted,
    an_answer_outside_the_original_schema_is_rejected,
    a_cut_answer_is_rejected,
    a_check_is_run,
    no_answer_raises,
]


@pytest.mark.parametrize("parser", ADAPTERS, ids=lambda parser: parser.name)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_output_parser_keeps_promise(promise: Promise, parser: OutputParser) -> None:
    promise(parser)


@dataclass
class Broken:
    """A parser that is right but for what a subclass spoils."""

    name: str = "Broken"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        made = InstructorParser().request(envelope, capability, attempt=attempt, answer=answer)
        return self.spoilt(made)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        return InstructorParser(self.name).read(response, request, check=check)

    def spoilt(self, made: ModelRequest) -> ModelRequest:
        return made


class LosesCount(Broken):
    def spoilt(self, made: ModelRequest) -> ModelRequest:
        return replace(made, attempt=1)


class MixesDataIn(Broken):
    def spoilt(self, made: ModelRequest) -> ModelRequest:
        return replace(made, system=made.system + made.user)


class ForgetsTheForm(Broken):
    def spoilt(self, made: ModelRequest) -> ModelRequest:
        return replace(made, system=made.envelope.instructions)


@dataclass
class Dices(Broken):
    rolled: int = 0

    def spoilt(self, made: ModelRequest) -> ModelRequest:
        self.rolled += 1
        return replace(made, system=f"{made.system}{self.rolled}")


class RefusesAll(Broken):
    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        return super().read(replace(response, text=""), request, check=check)


class ForgetsTheSchema(Broken):
    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        free = request.envelope.model_copy(update={"expected_output_schema": {}})
        return super().read(response, replace(request, envelope=free), check=check)


class ReadsCutAnswers(Broken):
    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        return super().read(replace(response, stop_reason="end_turn"), request, check=check)


class ForgetsTheCheck(Broken):
    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        return super().read(response, request)


class Raises(Broken):
    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        response.text.encode()
        return super().read(response, request, check=check)


BROKEN: list[tuple[Promise, OutputParser]] = [
    (a_request_carries_its_envelope_and_counts, LosesCount()),
    (a_request_holds_instructions_apart_from_data, MixesDataIn()),
    (a_request_says_what_form_is_wanted, ForgetsTheForm()),
    (equal_inputs_give_equal_requests, Dices()),
    (a_valid_answer_is_accepted, RefusesAll()),
    (an_answer_outside_the_original_schema_is_rejected, ForgetsTheSchema()),
    (a_cut_answer_is_rejected, ReadsCutAnswers()),
    (a_check_is_run, ForgetsTheCheck()),
    (no_answer_raises, Raises()),
]


@pytest.mark.parametrize(("promise", "parser"), BROKEN, ids=lambda part: getattr(part, "__name__", ""))
def test_broken_output_parser_is_detected(promise: Promise, parser: OutputParser) -> None:
    with pytest.raises((AssertionError, UnicodeError)):
        promise(parser)


def test_each_promise_has_broken_parser() -> None:
    assert [promise for promise, _ in BROKEN] == PROMISES
