"""From an envelope to its first request and the parser that reads the answers: one parser a call, never swapped midway."""

from dataclasses import dataclass
from typing import Protocol

import structlog

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureReason
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured.engine import read_answer, schema_problem
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import (
    first_request,
    prompted_request,
    raised_cap_request,
    reask_request,
    request_over,
)
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.structured.strict_schema import choice_for, unenforced_transport

log = structlog.get_logger()


class OutputParser(Protocol):
    """Turn an envelope into a request and the answer into an object; values in, values out, no error for any answer.

    Equal inputs give equal requests and outcomes.
    """

    @property
    def name(self) -> str:
        """What records and failures call this parser."""
        ...

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`; `attempt` and `answer` count from 1."""
        ...

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the object that the answer to `request` is, or why it must not be used."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An envelope that can be sent to a model: `request` comes first, `parser` reads every answer of the call."""

    parser: OutputParser
    capability: Capability
    request: ModelRequest

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the object that the answer to `request` is, or why it must not be used."""
        return self.parser.read(response, request, check=check)

    def reask(self, request: ModelRequest, rejected: Rejected, *, attempt: int) -> ModelRequest:
        """Return `request` with the last answer and what was wrong with it."""
        return reask_request(request, rejected, attempt=attempt)

    def raise_cap(self, request: ModelRequest, *, attempt: int) -> ModelRequest:
        """Return `request` with room for a longer answer, as far as the model can write one."""
        return raised_cap_request(request, attempt=attempt, limit=self.capability.max_output_tokens)

    def move_schema_to_prompt(self, request: ModelRequest, *, attempt: int) -> ModelRequest:
        """Return `request` with its schema in the prompt, for a provider that does not take it to enforce it."""
        return prompted_request(request, self.capability, attempt=attempt)


def prepare(
    envelope: LLMEnvelope, capability: Capability, *, enforced: bool = True
) -> Prepared | FailureReason:
    """Return the parser and the first request of `envelope`, or why no answer to it could be used.

    The schema is compiled and checked here, so that nothing is paid for one that no answer can fit. `enforced=False`
    puts it into the prompt, whatever the model offers: its provider refused to enforce it before.
    """
    problem = schema_problem(
        envelope.expected_output_schema, envelope.output_policy, schema_json=envelope.output_schema_json
    )
    if problem is not None:
        return problem
    parser = select(capability, envelope)
    if enforced:
        request = parser.request(envelope, capability, attempt=1, answer=1)
    else:
        request = request_over("prompted", envelope, capability, attempt=1, answer=1)
    return Prepared(parser, capability, request)


def select(capability: Capability, envelope: LLMEnvelope) -> OutputParser:
    """Return the parser of a model: the native one where the model takes a schema, for its answer or for a tool.

    The log says by which transport the envelope is asked, and why each better one was passed over.
    """
    enforces = capability.native_schema or capability.strict_tool
    parser = _NATIVE if enforces else _PROMPTED
    choice = choice_for(envelope, capability)
    log.debug(
        "Selected StructuredLogProbsParser" if enforces else "Selected InstructorParser",
        model=capability.model,
        envelope_id=envelope.envelope_id,
        transport=choice.transport,
        passed_over=choice.passed_over,
    )
    return parser


@dataclass(frozen=True, slots=True)
class StructuredLogProbsParser:
    """Ask with a schema that the provider enforces; hold the answer against the original one all the same.

    The schema is that of the answer, or of the one tool whose input is the answer. One that has no enforceable form,
    or too large a one for the provider, goes into the prompt instead, and the request's transport says so. An object
    that the provider parsed already is used directly, else the text is read; logprobs go into the trace.
    """

    name: str = "StructuredLogProbsParser"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`."""
        return first_request(envelope, capability, attempt=attempt, answer=answer)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the object that the answer to `request` is, or why it must not be used."""
        return read_answer(response, request, parser=self.name, check=check)


@dataclass(frozen=True, slots=True)
class InstructorParser:
    """Put the schema into the prompt, ask for JSON by the model's JSON mode where it has one, and read the text."""

    name: str = "InstructorParser"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`."""
        transport = unenforced_transport(envelope, capability)
        return request_over(transport, envelope, capability, attempt=attempt, answer=answer)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the object that the answer to `request` is, or why it must not be used."""
        return read_answer(response, request, parser=self.name, check=check)


_NATIVE = StructuredLogProbsParser()
_PROMPTED = InstructorParser()
