"""Answers whose form the provider enforces."""

from dataclasses import dataclass

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import first_request
from agentic_trading.structured.semantic import SemanticCheck


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
