"""Ask a model what it takes and offers, with the user's own key and under a ceiling that holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never, runtime_checkable

from pydantic import BaseModel

from agentic_trading.app.models.directory import differences
from agentic_trading.app.models.probes import Probe, ProbeResult, probes
from agentic_trading.governance.admission_decisions import (
    Admitted,
    AlreadyDispatched,
    Charge,
    Deferred,
    Denied,
)
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.prices import input_bound
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import Usage

ANSWER_WITHIN_S = 60.0
"""How long a probe waits for its answer, in seconds."""

LiveVerdict = Literal["as told", "differs", "not proved"]


class LiveCheckRow(BaseModel, frozen=True):
    """One thing about a model: what the table tells, what was seen, and what the request cost in nano-dollars."""

    about: str
    told: str
    seen: str
    verdict: LiveVerdict
    cost_nusd: int = 0
    usage: Usage | None = None


class LiveCheckProof(BaseModel, frozen=True):
    """What was found out about one model (`provider/model`); `stopped` says why the provider was not asked on."""

    model: str
    lines: tuple[LiveCheckRow, ...]
    stopped: str = ""

    @property
    def cost_nusd(self) -> int:
        """What the requests were charged together, in nano-dollars."""
        return sum(line.cost_nusd for line in self.lines)


@runtime_checkable
class ModelDirectory(Protocol):
    """A provider that can say what it offers."""

    async def describe_model(self, tenant_id: str, model: str) -> Mapping[str, Any]:
        """Return the provider's own entry of a model as JSON; raises `ProviderError`. Nothing is billed."""
        ...


@dataclass(frozen=True, slots=True)
class _Answered:
    response: ModelResponse
    charge: Charge


@dataclass(frozen=True, slots=True)
class _Unanswered:
    failure: ProviderError | None
    told: str
    cost_nusd: int = 0


class LiveCheck:
    """Ask through the gate, one request after the other: what it lets through is all that can be spent."""

    def __init__(self, gate: Gate, provider: Provider, *, tenant: str) -> None:
        self._gate = gate
        self._provider = provider
        self._tenant = tenant

    async def prove(self, capability: Capability) -> LiveCheckProof:
        """Return what the model shows; a failure is a line of it, never an exception."""
        name = f"{capability.provider}/{capability.model}"
        lines: list[LiveCheckRow] = []
        for number, probe in enumerate(probes(capability, tenant=self._tenant)):
            outcome = await self._asked(probe.request)
            lines.append(_line(probe, outcome))
            if number == 0:
                if stopped := _why_no_further(outcome):
                    return LiveCheckProof(model=name, lines=tuple(lines), stopped=stopped)
                lines += await self._of_money(capability, probe.request, outcome)
        return LiveCheckProof(model=name, lines=(*lines, *await self._of_directory(capability)))

    async def _of_money(
        self, capability: Capability, request: ModelRequest, outcome: _Answered | _Unanswered
    ) -> list[LiveCheckRow]:
        if isinstance(outcome, _Unanswered):
            return []
        return [_price_line(outcome), await self._bound_line(capability, request, outcome.response.usage)]

    async def _bound_line(self, capability: Capability, request: ModelRequest, usage: Usage) -> LiveCheckRow:
        """Hold the provider's two counts against ours, on which every reservation rests."""
        most = input_bound(request, capability)
        try:
            counted = await self._provider.count_tokens(request)
        except ProviderError as e:
            counted, told = None, f"not counted beforehand ({e.kind})"
        else:
            told = "not counted beforehand" if counted is None else f"{counted} counted beforehand"
        fits = max(usage.total_input_tokens, counted or 0) <= most
        return LiveCheckRow(
            about="tokens of a request",
            told=f"at most {most}",
            seen=f"{usage.total_input_tokens} billed, {told}",
            verdict="as told" if fits else "differs",
        )

    async def _of_directory(self, capability: Capability) -> list[LiveCheckRow]:
        if not isinstance(self._provider, ModelDirectory):
            return []
        try:
            facts = await self._provider.describe_model(self._tenant, capability.model)
        except ProviderError as e:
            return [LiveCheckRow(about="directory", told="listed", seen=str(e), verdict="not proved")]
        found = differences(capability, facts)
        seen = "; ".join(found) or "the same in all that it lists"
        return [
            LiveCheckRow(
                about="directory", told="as in the row", seen=seen, verdict="differs" if found else "as told"
            )
        ]

    async def _asked(self, request: ModelRequest) -> _Answered | _Unanswered:
        admitted = await self._gate.admit(request)
        match admitted:
            case Admitted():
                return await self._sent(request, admitted)
            case Denied():
                return _Unanswered(None, admitted.reason.description)
            case Deferred() | AlreadyDispatched():
                return _Unanswered(None, "another request is under way")
            case _:
                assert_never(admitted)

    async def _sent(self, request: ModelRequest, admission: Admitted) -> _Answered | _Unanswered:
        sent = self._gate.sent(admission, request.envelope, patience_s=ANSWER_WITHIN_S)
        try:
            async with sent:
                response = await self._provider.complete(request)
                await sent.answered(response.usage, served_model=response.model)
        except ProviderError as e:
            return _Unanswered(e, str(e), sent.charge.cost_nusd)
        return _Answered(response, sent.charge)


def _line(probe: Probe, outcome: _Answered | _Unanswered) -> LiveCheckRow:
    shown = _shown(probe, outcome)
    return LiveCheckRow(
        about=probe.name,
        told=probe.told,
        seen=shown.seen,
        verdict=_verdict(shown.offered, probe.offered),
        cost_nusd=outcome.charge.cost_nusd if isinstance(outcome, _Answered) else outcome.cost_nusd,
        usage=outcome.response.usage if isinstance(outcome, _Answered) else None,
    )


def _shown(probe: Probe, outcome: _Answered | _Unanswered) -> ProbeResult:
    match outcome:
        case _Answered():
            return probe.read(outcome.response)
        case _Unanswered(
            failure=ProviderError(kind=FailureKind.INVALID_REQUEST | FailureKind.SCHEMA_REFUSED)
        ):
            return ProbeResult(offered=False, seen=f"{probe.on_refusal}: {outcome.told}")
        case _Unanswered():
            return ProbeResult(offered=None, seen=outcome.told)
        case _:
            assert_never(outcome)


def _verdict(seen: bool | None, told: bool) -> LiveVerdict:  # noqa: FBT001 - two of a kind
    if seen is None:
        return "not proved"
    return "as told" if seen == told else "differs"


def _why_no_further(outcome: _Answered | _Unanswered) -> str:
    """Return why nothing else is worth asking after the plain request, or nothing."""
    return "" if isinstance(outcome, _Answered) else outcome.told


def _price_line(answered: _Answered) -> LiveCheckRow:
    charge, usage = answered.charge, answered.response.usage
    words = [usage.service_tier, usage.speed, usage.inference_geo]
    reported = ", ".join(word for word in words if word) or "nothing but tokens"
    fits = charge.priced and not charge.overrun_nusd
    return LiveCheckRow(
        about="price",
        told="every reported word has a price, within what was set aside",
        seen=f"reported: {reported}"
        + ("" if fits else "; not priced by the book, or above what was set aside"),
        verdict="as told" if fits else "differs",
    )
