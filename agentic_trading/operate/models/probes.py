"""The tiny requests that show whether a model is as its row says, how each answer is judged, and the report on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal

from pydantic import BaseModel

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Transport
from agentic_trading.llm.result import Usage
from agentic_trading.structured.decode import truncation_sign
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted
from agentic_trading.structured.prompts import request_over

MAX_TOKENS = 256
"""Room for a word and a little thinking: an answer that needs more is truncated, and cheap."""

LiveVerdict = Literal["as told", "differs", "not proved"]

_READY = "Answer with the one word ready."
_GREEN = "Answer with the plain word green and nothing else: no JSON, no braces, no quotes."
_COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["ultramarine", "vermilion"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that shows one thing: `offered` and `expected` are what the table says of it.

    `judge` returns whether an answer shows the thing (None: it does not show whether), and what was seen. A request
    that is refused itself shows that the thing is not offered; `on_refusal` is what was seen then.
    """

    about: str
    offered: bool
    expected: str
    request: ModelRequest
    judge: Callable[[ModelResponse], tuple[bool | None, str]]
    on_refusal: str


class LiveCheckRow(BaseModel, frozen=True):
    """One thing about a model: what the table says, what was seen, and what the request cost in nano-dollars."""

    about: str
    told: str
    seen: str
    verdict: LiveVerdict
    cost_nusd: int = 0
    usage: Usage | None = None


class LiveCheckProof(BaseModel, frozen=True):
    """What one model (`provider/model`) has shown; `stopped` says why it was sent nothing after the first request."""

    model: str
    lines: tuple[LiveCheckRow, ...]
    stopped: str = ""

    @property
    def cost_nusd(self) -> int:
        """What the requests were charged together, in nano-dollars."""
        return sum(line.cost_nusd for line in self.lines)


class LiveReport(BaseModel, frozen=True):
    """What a live check found on `checked_on` (UTC).

    `address` is `the provider's own` or `another one`; no key stands in any line. `price_book` names
    the book that the costs were computed with; the provider's console says whether it billed the same.
    """

    version: str
    checked_on: date
    address: str
    price_book: str
    max_nusd: int
    proofs: tuple[LiveCheckProof, ...]

    @property
    def cost_nusd(self) -> int:
        """What all requests were charged together, in nano-dollars."""
        return sum(proof.cost_nusd for proof in self.proofs)

    @property
    def proved(self) -> bool:
        """Whether every line came out as the table says, and every model was sent every request."""
        lines = [line for proof in self.proofs for line in proof.lines]
        return all(line.verdict == "as told" for line in lines) and not any(p.stopped for p in self.proofs)


def probes(capability: Capability, *, tenant: str) -> list[Probe]:
    """Return the requests to a model, the plain one first: where it fails, the others show nothing.

    A model that takes no effort by the table is sent none: a run sends it none, and many servers ignore it.
    """
    efforts = [_effort_probe(capability, tenant)] if capability.effort else []
    temperature = Probe(
        about="temperature",
        offered=capability.sampling,
        expected="takes one" if capability.sampling else "takes none",
        request=replace(_request(capability, tenant), temperature=0.0),
        judge=lambda _: (True, "0.0 was taken"),
        on_refusal="0.0 was refused",
    )
    return [_plain_probe(capability, tenant), _schema_probe(capability, tenant), *efforts, temperature]


def _plain_probe(capability: Capability, tenant: str) -> Probe:
    served = (capability.model, *capability.served_as)

    def judge(response: ModelResponse) -> tuple[bool | None, str]:
        usage = response.usage
        is_whole = usage.total_input_tokens > 0 and usage.output_tokens > 0 and bool(response.stop_reason)
        seen = (
            f"served by {response.model or 'an unnamed model'}, {usage.total_input_tokens} tokens in, "
            f"{usage.output_tokens} out, stopped by {response.stop_reason or 'nothing'}"
        )
        return response.model in served and is_whole, seen

    return Probe(
        about="answer and usage",
        offered=True,
        expected=f"served by {' or '.join(served)}, tokens counted",
        request=_request(capability, tenant),
        judge=judge,
        on_refusal="the plainest request was refused",
    )


def _schema_probe(capability: Capability, tenant: str) -> Probe:
    """Ask for one thing in words and for another by schema: only a schema that is enforced wins."""
    # The system text is replaced: our own demands JSON, which would name the form in words, too.
    request = replace(_request(capability, tenant, _GREEN, "native_schema"), system=_GREEN)

    def judge(response: ModelResponse) -> tuple[bool | None, str]:
        if sign := truncation_sign(response, request.max_tokens):
            return None, f"the answer was truncated: {sign}"
        if isinstance(read_answer(response, request, parser="models check"), Accepted):
            return True, "the schema won over the words"
        return False, "the words won over the schema"

    return Probe(
        about="native schema",
        offered=capability.native_schema,
        expected="enforced" if capability.native_schema else "not enforced",
        request=request,
        judge=judge,
        on_refusal="a schema was refused",
    )


def _effort_probe(capability: Capability, tenant: str) -> Probe:
    highest = capability.effort[-1]
    return Probe(
        about="effort",
        offered=True,
        expected=f"takes {', '.join(capability.effort)}",
        request=replace(_request(capability, tenant), effort=highest),
        judge=lambda _: (True, f"{highest} was taken"),
        on_refusal=f"{highest} was refused",
    )


def _request(
    capability: Capability, tenant: str, words: str = _READY, transport: Transport = "text"
) -> ModelRequest:
    """Return a request in an envelope of its own, with no parameter set but the effort that keeps thinking short."""
    builder = EnvelopeBuilder().for_general().with_agent("models-check").with_tenant(tenant)
    builder.with_instructions(words).with_provider(capability.provider, capability.model)
    builder.with_budget(max_output_tokens=min(MAX_TOKENS, capability.max_output_tokens))
    envelope = builder.with_output_schema(_COLOUR if transport == "native_schema" else {}).build()
    request = request_over(transport, envelope, capability, attempt=1, answer=1)
    return replace(request, effort=capability.effort[0] if capability.effort else None, temperature=None)
