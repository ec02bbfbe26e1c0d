"""Check the tables against live models with a few tiny requests, up to a cost limit."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Literal, assert_never

from pydantic import BaseModel

from agentic_trading import __version__
from agentic_trading.clock import Clock
from agentic_trading.governance.admission import Admitted, AlreadyDispatched, Charge, Deferred, Denied
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.prices import input_bound
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, Transport
from agentic_trading.llm.result import Usage
from agentic_trading.operate.choices import LEAST_BUDGET_USD, MOST_BUDGET_USD, ProviderOptions, listed
from agentic_trading.operate.models.catalogue import Catalogue, CatalogueEntry
from agentic_trading.operate.providers import ready, select_provider
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import budget_ledger
from agentic_trading.platform.tables import Tables
from agentic_trading.structured.decode import truncation_sign
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted
from agentic_trading.structured.prompts import request_over

MAX_TOKENS = 256
"""Room for a word and a little thinking. A longer answer is truncated, and cheap."""

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
    """A request that shows one property of a model.

    Attributes:
        about: The property.
        offered: Whether the table lists it as offered.
        expected: The expected result as text.
        request: The request.
        judge: Returns whether an answer shows the property (None if it shows neither), and the observation.
        on_refusal: The observation if the request is refused, which shows that the property is not offered.

    """

    about: str
    offered: bool
    expected: str
    request: ModelRequest
    judge: Callable[[ModelResponse], tuple[bool | None, str]]
    on_refusal: str


class LiveCheckRow(BaseModel, frozen=True):
    """One property of a model: the table's value, the observation, and the cost in nano-dollars."""

    about: str
    told: str
    seen: str
    verdict: LiveVerdict
    cost_nusd: int = 0
    usage: Usage | None = None


class LiveCheckProof(BaseModel, frozen=True):
    """The results of one model (`provider/model`). `stopped` is the reason if only one request was sent."""

    model: str
    lines: tuple[LiveCheckRow, ...]
    stopped: str = ""

    @property
    def cost_nusd(self) -> int:
        """The cost of all requests, in nano-dollars."""
        return sum(line.cost_nusd for line in self.lines)


class LiveReport(BaseModel, frozen=True):
    """The report of a live check. It contains no keys.

    Attributes:
        version: The version of the package.
        checked_on: The day (UTC).
        address: `the provider's own` or `another one`.
        price_book: The price book of the costs. Compare them with the provider's console.
        max_nusd: The limit in nano-dollars.
        proofs: The results by model.

    """

    version: str
    checked_on: date
    address: str
    price_book: str
    max_nusd: int
    proofs: tuple[LiveCheckProof, ...]

    @property
    def cost_nusd(self) -> int:
        """The cost of all requests, in nano-dollars."""
        return sum(proof.cost_nusd for proof in self.proofs)

    @property
    def proved(self) -> bool:
        """Whether all observations match the tables, and every model received every request."""
        lines = [line for proof in self.proofs for line in proof.lines]
        return all(line.verdict == "as told" for line in lines) and not any(p.stopped for p in self.proofs)


def probes(capability: Capability, *, tenant: str) -> list[Probe]:
    """Return the requests to a model, starting with the plain one.

    A model without effort in the table gets no effort probe, because a run sends it none, and many servers
    ignore it.
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
    """Ask for one thing in words and for another by schema. Only an enforced schema wins."""
    # The system text is replaced, because ours would ask for JSON in words too.
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
    """Return a request in its own envelope, with no parameter except the lowest effort."""
    builder = EnvelopeBuilder().for_general().with_agent("models-check").with_tenant(tenant)
    builder.with_instructions(words).with_provider(capability.provider, capability.model)
    builder.with_budget(max_output_tokens=min(MAX_TOKENS, capability.max_output_tokens))
    envelope = builder.with_output_schema(_COLOUR if transport == "native_schema" else {}).build()
    request = request_over(transport, envelope, capability, attempt=1, answer=1)
    return replace(request, effort=capability.effort[0] if capability.effort else None, temperature=None)


ANSWER_WITHIN_S = 60.0
"""Time limit of an answer, in seconds."""

_NO_CHARGE = Charge(0)


async def run_live_check(
    names: Sequence[str],
    catalogue: Catalogue,
    config: PlatformConfig,
    clock: Clock,
    *,
    max_usd: Decimal,
    on_model: Callable[[str], None],
) -> LiveReport:
    """Check models with a few live requests.

    Args:
        names: The models. Empty means the default models of all workflows.
        catalogue: The catalogue.
        config: The configuration of the providers.
        clock: The clock.
        max_usd: The most US dollars that all requests may cost.
        on_model: Called with the name of each model before its requests.

    Raises:
        UnknownModelError: Before any request, if a name is unknown.
        OptionError: Before any request, if a provider has no model, or `max_usd` is out of range.
        ConfigError: Before any request, if a key or extra is missing.
        WeightsError: Before any request, if weights are missing or wrong.

    """
    entries = _select(catalogue, names, config)
    if not max_usd.is_finite() or not LEAST_BUDGET_USD <= max_usd <= MOST_BUDGET_USD:
        raise OptionError("--max-usd", max_usd, f"an amount above 0, up to {MOST_BUDGET_USD}")
    max_nusd = int(max_usd * NANO)
    gate = Gate(
        ledger=budget_ledger(max_nusd),
        prices=catalogue.prices,
        capabilities=catalogue.capabilities,
        clock=clock,
        mode="live",
        tenants=frozenset({DEFAULT_TENANT}),
    )
    proofs: list[LiveCheckProof] = []
    async with AsyncExitStack() as stack:
        providers = [await _open_provider(entry, catalogue, config, stack) for entry in entries]
        for entry, provider in zip(entries, providers, strict=True):
            on_model(entry.name)
            check = LiveCheck(gate, provider, tenant=DEFAULT_TENANT)
            proofs.append(await check.prove(entry.capability))
    return LiveReport(
        version=__version__,
        checked_on=catalogue.today,
        address=_address(entries, config),
        price_book=catalogue.prices.id,
        max_nusd=max_nusd,
        proofs=tuple(proofs),
    )


def _select(catalogue: Catalogue, names: Sequence[str], config: PlatformConfig) -> list[CatalogueEntry]:
    defaults = dict.fromkeys(f"{LLMProvider.ANTHROPIC}/{preset.model}" for preset in PRESETS.values())
    entries = [catalogue.of(name) for name in names or defaults]
    for entry in entries:
        if entry.capability.provider not in config.providers:
            allowed = f"a model of {listed(sorted(config.providers))}"
            raise OptionError("MODEL", f"{entry.name}, which is no model", allowed)
    return entries


async def _open_provider(
    entry: CatalogueEntry,
    catalogue: Catalogue,
    config: PlatformConfig,
    stack: AsyncExitStack,
) -> Provider:
    """Return the provider of a model as a run would choose it. It is closed with `stack`."""
    options = ProviderOptions(
        config=config.model_copy(update={"tenants": {}}),
        provider=entry.capability.provider,
        model=entry.capability.model,
    )
    tables = Tables(catalogue.capabilities, catalogue.prices)
    providers = await ready(options, select_provider(options, tables, now=catalogue.now))
    stack.push_async_callback(providers.aclose)
    return providers.of(entry.capability.provider)


def _address(entries: Sequence[CatalogueEntry], config: PlatformConfig) -> str:
    others = any(config.providers[entry.capability.provider].base_url for entry in entries)
    return "another one" if others else "the provider's own"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An answer, or a failure. `is_refused` if the provider refused the request itself."""

    response: ModelResponse | None = None
    charge: Charge = _NO_CHARGE
    failure: str = ""
    is_refused: bool = False


class LiveCheck:
    """The requests to one model, one after the other, through a gate that limits their cost."""

    def __init__(self, gate: Gate, provider: Provider, *, tenant: str) -> None:
        self._gate = gate
        self._provider = provider
        self._tenant = tenant

    async def prove(self, capability: Capability) -> LiveCheckProof:
        """Return the results of a model. Failures are part of the result and not raised."""
        name = f"{capability.provider}/{capability.model}"
        first, *others = probes(capability, tenant=self._tenant)
        outcome = await self._send(first.request)
        lines = [_row(first, outcome)]
        if outcome.response is None:
            return LiveCheckProof(model=name, lines=tuple(lines), stopped=outcome.failure)
        lines.append(_price_row(outcome.response.usage, outcome.charge))
        lines.append(await self._bound_row(capability, first.request, outcome.response.usage))
        lines += [_row(probe, await self._send(probe.request)) for probe in others]
        return LiveCheckProof(model=name, lines=tuple(lines))

    async def _bound_row(self, capability: Capability, request: ModelRequest, usage: Usage) -> LiveCheckRow:
        """Compare the provider's two token counts with our bound, on which reservations depend."""
        most = input_bound(request, capability)
        try:
            counted = await self._provider.count_tokens(request)
        except ProviderError as e:
            counted, count = None, f"not counted beforehand ({e.kind})"
        else:
            count = "not counted beforehand" if counted is None else f"{counted} counted beforehand"
        fits = max(usage.total_input_tokens, counted or 0) <= most
        return LiveCheckRow(
            about="tokens of a request",
            told=f"at most {most}",
            seen=f"{usage.total_input_tokens} billed, {count}",
            verdict="as told" if fits else "differs",
        )

    async def _send(self, request: ModelRequest) -> _Outcome:
        admitted = await self._gate.admit(request)
        match admitted:
            case Admitted():
                return await self._dispatch(request, admitted)
            case Denied():
                return _Outcome(failure=admitted.reason.description)
            case Deferred() | AlreadyDispatched():
                return _Outcome(failure="another request is under way")
            case _:
                assert_never(admitted)

    async def _dispatch(self, request: ModelRequest, admission: Admitted) -> _Outcome:
        sent = self._gate.sent(admission, request.envelope, patience_s=ANSWER_WITHIN_S)
        try:
            async with sent:
                response = await self._provider.complete(request)
                await sent.answered(response.usage, served_model=response.model)
        except ProviderError as e:
            is_refused = e.kind in {FailureKind.INVALID_REQUEST, FailureKind.SCHEMA_REFUSED}
            return _Outcome(charge=sent.charge, failure=str(e), is_refused=is_refused)
        return _Outcome(response, sent.charge)


def _row(probe: Probe, outcome: _Outcome) -> LiveCheckRow:
    offered, seen = None, outcome.failure
    if outcome.response is not None:
        offered, seen = probe.judge(outcome.response)
    elif outcome.is_refused:
        offered, seen = False, f"{probe.on_refusal}: {outcome.failure}"
    verdict: LiveVerdict = "as told" if offered == probe.offered else "differs"
    return LiveCheckRow(
        about=probe.about,
        told=probe.expected,
        seen=seen,
        verdict="not proved" if offered is None else verdict,
        cost_nusd=outcome.charge.cost_nusd,
        usage=outcome.response.usage if outcome.response else None,
    )


def _price_row(usage: Usage, charge: Charge) -> LiveCheckRow:
    words = [word for word in (usage.service_tier, usage.speed, usage.inference_geo) if word]
    fits = not charge.unpriced and not charge.overrun_nusd
    return LiveCheckRow(
        about="price",
        told="every reported word has a price, within what was set aside",
        seen=f"reported: {', '.join(words) or 'nothing but tokens'}"
        + ("" if fits else "; not priced by the book, or above what was set aside"),
        verdict="as told" if fits else "differs",
    )
