"""The tiny requests that show whether a model is as its row says, and how each answer is judged."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Transport
from agentic_trading.structured.decode import truncation_sign
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted
from agentic_trading.structured.prompts import request_over

MAX_TOKENS = 256
"""Room for a word and a little thinking: an answer that needs more is cut, and cheap."""

_COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["ultramarine", "vermilion"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What an answer shows: whether the thing is offered (None where it cannot be told), and what was seen."""

    offered: bool | None
    seen: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about one thing that a model may offer.

    `offered` and `told` are what the table says. `read` is given an answer; `on_refusal` says what was seen where
    the provider refused the request itself, which shows that the thing is not offered.
    """

    name: str
    offered: bool
    told: str
    request: ModelRequest
    read: Callable[[ModelResponse], ProbeResult]
    on_refusal: str


def probes(capability: Capability, *, tenant: str) -> list[Probe]:
    """Return the questions to a model, the plain one first: where it fails, the others show nothing.

    No effort is asked of a model that takes none by the table: a run sends it none, and many servers ignore it.
    """
    return [
        _plain(capability, tenant),
        _native_schema(capability, tenant),
        *([_effort(capability, tenant)] if capability.effort else []),
        _temperature(capability, tenant),
    ]


def _plain(capability: Capability, tenant: str) -> Probe:
    served = (capability.model, *capability.served_as)

    def read(response: ModelResponse) -> ProbeResult:
        usage = response.usage
        seen = (
            f"served by {response.model or 'nobody'}, {usage.total_input_tokens} tokens in, "
            f"{usage.output_tokens} out, stopped by {response.stop_reason or 'nothing'}"
        )
        counted = usage.total_input_tokens > 0 and usage.output_tokens > 0
        return ProbeResult(response.model in served and counted and bool(response.stop_reason), seen)

    return Probe(
        name="answer and usage",
        offered=True,
        told=f"served by {' or '.join(served)}, tokens counted",
        request=_request(capability, tenant),
        read=read,
        on_refusal="the plainest request was refused",
    )


def _native_schema(capability: Capability, tenant: str) -> Probe:
    """Ask for one thing in words and for another by schema: only one that is enforced wins."""
    words = "Answer with the plain word green and nothing else: no JSON, no braces, no quotes."
    asked = _request(capability, tenant, words=words, transport="native_schema")
    request = replace(
        asked, system=words
    )  # without our own demand for JSON, which would tell the form in words

    def read(response: ModelResponse) -> ProbeResult:
        if sign := truncation_sign(response, request.max_tokens):
            return ProbeResult(None, f"the answer was cut: {sign}")
        enforced = isinstance(read_answer(response, request, parser="models check"), Accepted)
        return ProbeResult(
            enforced, "the schema won over the words" if enforced else "the words won over the schema"
        )

    return Probe(
        name="native schema",
        offered=capability.native_schema,
        told="enforced" if capability.native_schema else "not enforced",
        request=request,
        read=read,
        on_refusal="a schema was refused",
    )


def _effort(capability: Capability, tenant: str) -> Probe:
    dearest = capability.effort[-1]
    return Probe(
        name="effort",
        offered=True,
        told=f"takes {', '.join(capability.effort)}",
        request=replace(_request(capability, tenant), effort=dearest),
        read=lambda _: ProbeResult(True, f"{dearest} was taken"),  # noqa: FBT003 - a field, by its place
        on_refusal=f"{dearest} was refused",
    )


def _temperature(capability: Capability, tenant: str) -> Probe:
    return Probe(
        name="temperature",
        offered=capability.sampling,
        told="takes one" if capability.sampling else "takes none",
        request=replace(_request(capability, tenant), temperature=0.0),
        read=lambda _: ProbeResult(True, "0.0 was taken"),  # noqa: FBT003 - a field, by its place
        on_refusal="0.0 was refused",
    )


def _request(
    capability: Capability,
    tenant: str,
    *,
    words: str = "Answer with the one word ready.",
    transport: Transport = "text",
) -> ModelRequest:
    """Return a request with no dial turned but the one that keeps thinking short."""
    envelope = _envelope(capability, tenant, words, with_schema=transport == "native_schema")
    request = request_over(transport, envelope, capability, attempt=1, answer=1)
    return replace(request, effort=capability.effort[0] if capability.effort else None, temperature=None)


def _envelope(capability: Capability, tenant: str, words: str, *, with_schema: bool) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_general().with_agent("models-check").with_tenant(tenant)
    builder.with_instructions(words).with_provider(capability.provider, capability.model)
    builder.with_budget(max_output_tokens=min(MAX_TOKENS, capability.max_output_tokens))
    return builder.with_output_schema(_COLOUR if with_schema else {}).build()
