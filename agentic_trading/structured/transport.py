"""How the form of an answer is asked for: the best way that model and schema allow."""

from dataclasses import dataclass
from functools import lru_cache

from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.provider import Transport
from agentic_trading.structured.strict_schema import strict_problem

_NOT_OFFERED = "the model does not offer it"


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport, and why each better one was passed over (`native_schema: …`), the best first."""

    transport: Transport
    passed_over: tuple[str, ...] = ()


_TEXT = TransportChoice("text")


def choice_for(envelope: LLMEnvelope, capability: Capability) -> TransportChoice:
    """Return the first that model and schema allow of: native schema, strict tool, JSON mode, told in words."""
    if envelope.response_format is ResponseFormat.TEXT:
        return _TEXT
    return _choice(
        envelope.output_schema_json,
        native_schema=capability.native_schema,
        strict_tool=capability.strict_tool,
        json_mode=capability.json_mode,
        most_optional=capability.most_optional,
        most_unions=capability.most_unions,
    )


@lru_cache(maxsize=256)
def _choice(
    schema_json: bytes,
    *,
    native_schema: bool,
    strict_tool: bool,
    json_mode: bool,
    most_optional: int | None,
    most_unions: int | None,
) -> TransportChoice:
    problem = strict_problem(schema_json, most_optional=most_optional, most_unions=most_unions)
    ways: list[tuple[Transport, str | None]] = [
        ("native_schema", problem if native_schema else _NOT_OFFERED),
        ("strict_tool", problem if strict_tool else _NOT_OFFERED),
        ("json_mode", None if json_mode else _NOT_OFFERED),
    ]
    passed_over: list[str] = []
    for transport, reason in ways:
        if reason is None:
            return TransportChoice(transport, tuple(passed_over))
        passed_over.append(f"{transport}: {reason}")
    return TransportChoice("prompted", tuple(passed_over))


def told_in_words(envelope: LLMEnvelope, capability: Capability) -> Transport:
    """Return how the form is asked for where it shall not be enforced."""
    if envelope.response_format is ResponseFormat.TEXT:
        return "text"
    return "json_mode" if capability.json_mode else "prompted"
