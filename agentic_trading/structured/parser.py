"""The port to a way of asking and reading, and the choice between them: one a model, never swapped midway."""

from dataclasses import dataclass
from typing import Protocol

import structlog

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import first_request, request_over
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.structured.strict_schema import choice_for, told_in_words


@dataclass(frozen=True, slots=True)
class StructuredLogProbsParser:
    """Ask with a schema that the provider enforces; hold the answer against the original one all the same.

    The schema is that of the answer, or of the one tool whose input is the answer. One that has no enforceable form,
    or too large a one for the provider, is told in words instead, and the request's transport says so. An object
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
    """Tell the schema in the prompt, ask for JSON by the model's JSON mode where it has one, and read the text."""

    name: str = "InstructorParser"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`."""
        transport = told_in_words(envelope, capability)
        return request_over(transport, envelope, capability, attempt=attempt, answer=answer)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the object that the answer to `request` is, or why it must not be used."""
        return read_answer(response, request, parser=self.name, check=check)


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


_NATIVE = StructuredLogProbsParser()
_PROMPTED = InstructorParser()


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
