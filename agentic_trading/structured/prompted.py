"""Answers whose form is told in words."""

from dataclasses import dataclass

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import request_over
from agentic_trading.structured.semantic import SemanticCheck
from agentic_trading.structured.transport import told_in_words


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
