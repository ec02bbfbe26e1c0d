"""The port to a way of asking and reading, and the choice between them: one a model, never swapped midway."""

from typing import Protocol

import structlog

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured.native import StructuredLogProbsParser
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompted import InstructorParser
from agentic_trading.structured.semantic import SemanticCheck
from agentic_trading.structured.transport import choice_for

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
