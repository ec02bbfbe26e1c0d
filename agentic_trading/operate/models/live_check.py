"""A check of the tables against the models: a few tiny requests each, with the user's own key and up to a sum."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from decimal import Decimal
from typing import assert_never

from agentic_trading import __version__
from agentic_trading.clock import Clock
from agentic_trading.governance.admission_decisions import (
    Admitted,
    AlreadyDispatched,
    Charge,
    Deferred,
    Denied,
)
from agentic_trading.governance.estimate import input_bound
from agentic_trading.governance.gate import Gate
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import Usage
from agentic_trading.operate.choices import LEAST_BUDGET_USD, MOST_BUDGET_USD, ProviderOptions, listed
from agentic_trading.operate.models.catalogue import Catalogue, CatalogueEntry
from agentic_trading.operate.models.probes import (
    LiveCheckProof,
    LiveCheckRow,
    LiveReport,
    LiveVerdict,
    Probe,
    probes,
)
from agentic_trading.operate.providers import ready, select_provider
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import budget_ledger
from agentic_trading.platform.tables import Tables

ANSWER_WITHIN_S = 60.0
"""How long a request waits for its answer, in seconds."""

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
    """Check the models with these names, or else the defaults of all workflows, and return what was found.

    `config` has the providers. All requests pass one gate over a ledger that has `max_usd` and no more. Before anything is
    sent it raises `UnknownModelError`, `OptionError` for what is no model and a sum that cannot be spent, `ConfigError`
    for a missing key or extra, and `WeightsError` for weights that are not right.
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
    """Return the provider of a model as a run would choose it; it is closed with `stack`."""
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
    """An answer, or why there is none; `is_refused` where the provider refused the request itself."""

    response: ModelResponse | None = None
    charge: Charge = _NO_CHARGE
    failure: str = ""
    is_refused: bool = False


class LiveCheck:
    """The requests to one model, one after the other, through the gate: what it admits is all that can be spent."""

    def __init__(self, gate: Gate, provider: Provider, *, tenant: str) -> None:
        self._gate = gate
        self._provider = provider
        self._tenant = tenant

    async def prove(self, capability: Capability) -> LiveCheckProof:
        """Return what the model shows; a failure is a line of it, never an exception."""
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
        """Compare the provider's two counts with ours, on which every reservation rests."""
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
