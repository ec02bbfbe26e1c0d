"""Prove models live: who is asked, with whose key, up to which sum."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from agentic_trading import __version__
from agentic_trading.app import wire, wire_budgets
from agentic_trading.app.models.catalogue import Catalogue, CatalogueEntry
from agentic_trading.app.models.live_check import LiveCheck, LiveCheckProof
from agentic_trading.app.models.report import LiveReport
from agentic_trading.app.options import (
    LEAST_BUDGET_USD,
    MOST_BUDGET_USD,
    OptionError,
    ProviderName,
    RunOptions,
)
from agentic_trading.app.providers import ready, select_provider
from agentic_trading.app.settings import Settings
from agentic_trading.clock import Clock
from agentic_trading.governance.gate import Gate
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import Provider

_ASKABLE: Mapping[LLMProvider, ProviderName] = {
    LLMProvider.ANTHROPIC: "anthropic",
    LLMProvider.OPENAI: "openai",
    LLMProvider.LOCAL: "local",
}


@dataclass(frozen=True, slots=True)
class LiveCheckPlan:
    """What a live check is asked to be; raises `OptionError` for a sum that cannot be spent.

    `base_url` is the address of a server, else that of the environment, else the provider's own.
    """

    entries: tuple[CatalogueEntry, ...]
    max_usd: Decimal
    settings: Settings
    base_url: str | None = None

    def __post_init__(self) -> None:
        """Check the sum."""
        if not self.max_usd.is_finite() or not LEAST_BUDGET_USD <= self.max_usd <= MOST_BUDGET_USD:
            raise OptionError("--max-usd", self.max_usd, f"an amount above 0, up to {MOST_BUDGET_USD}")

    @property
    def max_nusd(self) -> int:
        """The most that may be spent, in whole nano-dollars, rounded down."""
        return int(self.max_usd * NANO)


def to_ask(catalogue: Catalogue, names: Sequence[str]) -> tuple[CatalogueEntry, ...]:
    """Return the models to ask: those named, else the defaults of all workflows.

    Raises `UnknownModelError`, and `OptionError` for one that nobody answers over a network or from weights.
    """
    defaults = dict.fromkeys(f"{LLMProvider.ANTHROPIC}/{preset.model}" for preset in PRESETS.values())
    entries = tuple(catalogue.of(name) for name in names or defaults)
    for entry in entries:
        if entry.capability.provider not in _ASKABLE:
            raise OptionError(
                "MODEL", f"{entry.name}, which is no model", "a model of anthropic, openai or local"
            )
    return entries


async def asked_live(
    questions: LiveCheckPlan, catalogue: Catalogue, clock: Clock, *, on_model: Callable[[str], None]
) -> LiveReport:
    """Ask every model and return what was found.

    All requests pass one gate over a ledger that has `max_usd` and no more. Raises `OptionError` for a missing key or
    extra and `WeightsError` for weights that are not right, before anything is sent.
    """
    gate = Gate(
        ledger=wire_budgets.budget_ledger(questions.max_nusd),
        prices=catalogue.prices,
        capabilities=catalogue.capabilities,
        clock=clock,
        mode="live",
        tenants=frozenset({wire.DEFAULT_TENANT}),
    )
    proofs: list[LiveCheckProof] = []
    async with AsyncExitStack() as closing:
        askers = [
            (entry, await _provider(entry, questions, catalogue, closing)) for entry in questions.entries
        ]
        for entry, provider in askers:
            on_model(entry.name)
            check = LiveCheck(gate, provider, tenant=wire.DEFAULT_TENANT)
            proofs.append(await check.prove(entry.capability))
    return LiveReport(
        version=__version__,
        checked_on=catalogue.today,
        address=_address(questions),
        price_book=catalogue.prices.id,
        max_nusd=questions.max_nusd,
        proofs=tuple(proofs),
    )


async def _provider(
    entry: CatalogueEntry, questions: LiveCheckPlan, catalogue: Catalogue, closing: AsyncExitStack
) -> Provider:
    """Return who answers for a model, as a run would choose it; it is closed with `closing`."""
    hosted = entry.capability.provider is not LLMProvider.LOCAL
    options = RunOptions(
        data=(entry.name,),
        out=Path(),
        provider=_ASKABLE[entry.capability.provider],
        model=entry.capability.model,
        base_url=questions.base_url if hosted else None,
        record=True,
        settings=questions.settings,
    )
    tables = wire.Tables(catalogue.capabilities, catalogue.prices)
    provider = await ready(options, select_provider(options, tables, now=catalogue.now))
    closing.push_async_callback(provider.aclose)
    return provider


def _address(questions: LiveCheckPlan) -> str:
    settings = questions.settings
    given = {
        LLMProvider.ANTHROPIC: questions.base_url or settings.anthropic_base_url,
        LLMProvider.OPENAI: questions.base_url or settings.openai_base_url,
    }
    others = [entry for entry in questions.entries if given.get(entry.capability.provider)]
    return "another one" if others else "the provider's own"
