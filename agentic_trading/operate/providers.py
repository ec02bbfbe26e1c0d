"""The models of a live run, checked before anything is written."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from agentic_trading.cancellation import run_shielded
from agentic_trading.client.gateway import AskingGateway, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.errors import TradingError
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import (
    FailureKind,
    FailureReason,
    NoDecision,
    ProviderError,
    UnknownModelError,
)
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.models import (
    WEIGHTS,
    Capabilities,
    Capability,
    WeightsError,
    find_weights,
    verify_weights,
)
from agentic_trading.llm.provider import ModelRequest, Provider, Providers
from agentic_trading.operate.choices import CONFIGURED, ProviderOptions
from agentic_trading.operate.session_folder import AskedProvider
from agentic_trading.platform import adapters
from agentic_trading.platform.check import key_problems, model_problems
from agentic_trading.platform.config import FallbackConfig, PlatformConfig, ProviderConfig, provider_and_model
from agentic_trading.platform.errors import ConfigError, ConfigProblem, OptionError
from agentic_trading.platform.tables import Tables
from agentic_trading.structured.pydantic_schema import SemanticCheck

COUNTED_WITHIN_S = 15.0

FATAL = frozenset({FailureKind.AUTH_ERROR, FailureKind.BILLING})
"""Failures that all later calls would have too."""

FATAL_AT_FIRST = FATAL | {FailureKind.SERVER_ERROR, FailureKind.INVALID_REQUEST, FailureKind.INTERNAL_ERROR}
"""Failures that, before a provider's first answer, mean that it cannot be used."""


class UnusableProviderError(TradingError):
    """A live run cannot continue, because all later calls would fail too.

    Attributes:
        provider: The provider.
        reason: The failure.
        begun: Whether the session has a folder already, with its calls.

    """

    def __init__(self, provider: str, reason: FailureReason, *, begun: bool) -> None:
        self.provider = provider
        self.reason = reason
        self.begun = begun
        goes_on = ". Its calls are on record. Continue after them with --resume" if begun else ""
        problem = f"{provider} cannot be used ({reason.category}): {reason.description}"
        super().__init__(f"{problem}. Fix this, or use another --provider{goes_on}")


@dataclass(frozen=True, slots=True)
class ProviderSelection:
    """The models of a run.

    Attributes:
        llm: The requested provider.
        model: The requested model. Empty if each workflow has its default. For configured models, all of them
            as text.
        models: The model of each workflow.
        providers: The configuration of each provider that may be called.
        fallback: The fallback of each workflow.
        alternatives: The models of each fallback.

    """

    llm: LLMProvider
    model: str
    models: Mapping[EnvelopeWorkflow, Capability]
    providers: Mapping[str, ProviderConfig]
    fallback: Mapping[EnvelopeWorkflow, FallbackConfig] = field(default_factory=dict)
    alternatives: Mapping[EnvelopeWorkflow, Sequence[Capability]] = field(default_factory=dict)

    @property
    def is_configured(self) -> bool:
        """Whether the configuration selects the model of each workflow."""
        return self.llm == CONFIGURED

    @property
    def names(self) -> Mapping[EnvelopeWorkflow, str]:
        """The configured model of each workflow, as `PROVIDER/MODEL`. Empty for other selections."""
        return {
            workflow: f"{row.provider}/{row.model}"
            for workflow, row in self.models.items()
            if self.is_configured
        }

    @property
    def rows(self) -> Sequence[Capability]:
        """The rows of all models that may be called, each once."""
        others = [row for rows in self.alternatives.values() for row in rows]
        return list({(row.provider, row.model): row for row in (*self.models.values(), *others)}.values())


def select_provider(
    options: ProviderOptions, tables: Tables, *, now: datetime, model: str = ""
) -> ProviderSelection:
    """Return the models of a live run.

    Args:
        options: The options of the run.
        tables: The tables of models and prices.
        now: The time for prices and retirement, compared by UTC day.
        model: The model of a resumed run, used if the options have none.

    Raises:
        OptionError: If a model is unknown, has retired, or has no price.
        ConfigError: If a configured model is. The error lists all of them.

    """
    if options.provider == CONFIGURED:
        return _configured(options, tables, now)
    llm = LLMProvider(options.provider)
    name = options.model or model or _default(llm, tables)
    models = {
        workflow: _row(tables, llm, name or PRESETS[workflow].model, now) for workflow in options.workflows
    }
    return ProviderSelection(llm, name, models, options.asked)


def _configured(options: ProviderOptions, tables: Tables, now: datetime) -> ProviderSelection:
    """Return the configured models of the workflows in a session."""
    config = options.config
    problems = [
        ConfigProblem(config.origin_of("models"), f"models.{workflow}", "not set", "PROVIDER/MODEL")
        for workflow in options.workflows
        if workflow not in config.models
    ]
    problems += model_problems(config, tables.capabilities, tables.prices, now)
    if problems:
        raise ConfigError(problems)

    def row_of(name: str) -> Capability:
        provider, model = provider_and_model(name)
        return tables.capabilities.of(LLMProvider(provider), model)

    named = {workflow: config.models[workflow] for workflow in options.workflows}
    fallback = {workflow: row for workflow, row in config.fallback.items() if workflow in named}
    return ProviderSelection(
        llm=LLMProvider(CONFIGURED),
        model=", ".join(dict.fromkeys(named.values())),
        models={workflow: row_of(name) for workflow, name in named.items()},
        providers=options.asked,
        fallback=fallback,
        alternatives={workflow: [row_of(name) for name in row.to] for workflow, row in fallback.items()},
    )


async def ready(
    options: ProviderOptions, selection: ProviderSelection, rules: adapters.Rules = MappingProxyType({})
) -> Providers:
    """Create the providers of a live run. Sends nothing. The caller closes them.

    If workers elsewhere make the calls, the result is empty.

    Raises:
        ConfigError: If an extra is missing, an adapter cannot be created, or a key is missing.
        WeightsError: If weights are missing or do not match the published ones.

    """
    config = options.config.model_copy(update={"providers": dict(selection.providers)})
    made: dict[str, Provider] = {}
    try:
        for name in () if options.is_remote else selection.providers:
            await _make(config, name, selection, options, made, rules)
    except BaseException:
        await Providers(made).aclose()
        raise
    return Providers(made)


async def _make(
    config: PlatformConfig,
    name: str,
    selection: ProviderSelection,
    options: ProviderOptions,
    made: dict[str, Provider],
    rules: adapters.Rules,
) -> None:
    row = config.providers[name]
    origin = config.origin_of(f"providers.{name}.adapter")
    factory = await asyncio.to_thread(adapters.factory_of, name, row, origin=origin)
    if isinstance(factory, adapters.ShippedAdapter):
        with adapters.explained(origin, f"providers.{name}.adapter", row.adapter_of(name)):
            factory.require_installed()
    if row.adapter_of(name) == LLMProvider.LOCAL:
        model = row.options.get("model", selection.model or next(iter(WEIGHTS)))
        row = row.model_copy(update={"options": {**row.options, "model": model}})
        config = config.model_copy(update={"providers": {name: row}})
        await asyncio.to_thread(_check_weights, config, str(model))
    if problems := await key_problems(config, name, factory, [options.tenant]):
        raise ConfigError(problems)

    def make() -> None:
        rows = Capabilities(selection.rows)
        made[name] = adapters.configured_provider(config, name, factory, rows, rules=rules)

    # Shielded, so that a provider that is created during a cancellation is closed.
    await run_shielded(asyncio.to_thread(make), longest_s=math.inf)


def asked_providers(options: ProviderOptions) -> dict[str, AskedProvider]:
    """Return the providers that may be called, as a manifest keeps them."""
    return {
        name: AskedProvider(adapter=row.adapter_of(name), base_url=host_free(row.base_url))
        for name, row in options.asked.items()
    }


def base_url_of(options: ProviderOptions) -> str:
    """Return the URL of the selected provider without its host. Empty for the default URL."""
    row = None if options.provider == CONFIGURED else options.asked.get(options.provider)
    return "" if row is None else host_free(row.base_url)


def host_free(base_url: str | None) -> str:
    """Return a URL without its host, for records. Empty for the default URL."""
    if base_url is None:
        return ""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, "…", parts.path.rstrip("/"), "", ""))


async def check_providers(providers: Providers, selection: ProviderSelection) -> None:
    """Check that hosted models can be used, with free requests. Raises `UnusableProviderError`."""
    for name, row in selection.providers.items():
        if row.adapter_of(name) == LLMProvider.LOCAL:
            continue
        requests = [_tiny_request(one) for one in selection.rows if one.provider == name]
        await refuse_unusable(providers.of(name), requests, has_own_server=row.base_url is not None)


async def refuse_unusable(
    provider: Provider, requests: Sequence[ModelRequest], *, has_own_server: bool
) -> None:
    """Count a request of each model, if the provider counts for free. This proves key, URL and model.

    Temporary failures, such as a timeout, are left to the first call. So are errors of your own server about
    a request (`has_own_server`), because it may not support counting.

    Raises:
        UnusableProviderError: If the provider cannot be used.

    """
    fatal = FATAL | ({FailureKind.SERVER_ERROR} if has_own_server else FATAL_AT_FIRST)
    for request in requests:
        try:
            async with asyncio.timeout(COUNTED_WITHIN_S):
                await provider.count_tokens(request)
        except TimeoutError:
            return
        except ProviderError as e:
            if e.kind in fatal and not (has_own_server and e.sent):
                reason = FailureReason(category=e.kind, description=e.message)
                raise UnusableProviderError(request.envelope.provider, reason, begun=False) from e


def _tiny_request(row: Capability) -> ModelRequest:
    envelope = EnvelopeBuilder().with_instructions("Answer.").with_provider(row.provider, row.model).build()
    return ModelRequest(envelope, 1, 1, envelope.instructions, "Answer.", "text", max_tokens=16)


def model_row(tables: Tables, llm: LLMProvider, name: str, *, now: datetime) -> Capability:
    """Return the row of a model, or of the provider's default.

    Raises `OptionError` as `select_provider` does.
    """
    return _row(tables, llm, name or _default(llm, tables) or PRESETS[EnvelopeWorkflow.GENERAL].model, now)


def _default(llm: LLMProvider, tables: Tables) -> str:
    if llm is LLMProvider.ANTHROPIC:
        return ""
    if llm is LLMProvider.LOCAL:
        return next(iter(WEIGHTS))
    names = [row.model for row in tables.capabilities if row.provider == llm]
    if len(names) == 1:
        return names[0]
    raise OptionError("--model", "left out", _allowed(names))


def _row(tables: Tables, llm: LLMProvider, name: str, now: datetime) -> Capability:
    today = now.astimezone(UTC).date()
    rows = [row for row in tables.capabilities if row.provider == llm]
    usable = [row.model for row in rows if row.retires_on is None or today <= row.retires_on]
    row = next((row for row in rows if row.model == name), None)
    if row is None:
        raise OptionError("--model", f"{name!r}, which is not in the table of models", _allowed(usable))
    if name not in usable:
        was = f"{name}, which retired on {row.retires_on} (recorded answers can still be replayed)"
        raise OptionError("--model", was, _allowed(usable))
    try:
        tables.prices.price(llm, name, at=now)
    except UnknownModelError:
        allowed = "a model of the price book, or a row for it in AGENTIC_PRICES_FILE"
        raise OptionError("--model", f"{name}, which has no price", allowed) from None
    return row


def _allowed(names: list[str]) -> str:
    return ", ".join([*names, "a row of your own in AGENTIC_MODELS_FILE"])


def _check_weights(config: PlatformConfig, model: str) -> None:
    """Check the weights of a model against their checksum."""
    known = WEIGHTS.get(model)
    if known is None:
        raise OptionError("--model", f"{model!r}, whose weights are unknown", ", ".join(WEIGHTS))
    if config.weights_folder is None:
        raise WeightsError(Path(known.file), model, "weights_folder is not set")
    verify_weights(find_weights(config.weights_folder, model), known)


@dataclass(slots=True)
class ProviderOutage:
    """The state of the providers of a run.

    Attributes:
        answered: Providers that have answered.
        failure: The first failure that later calls would have too, with its provider.

    """

    answered: set[str] = field(default_factory=set)
    failure: tuple[str, FailureReason] | None = None

    def around(self, gateway: AskingGateway) -> AskingGateway:
        """Return a gateway that notes each answer."""
        return OutageAwareGateway(gateway, self)

    def note(self, answer: GatewayReply) -> None:
        """Note a call that has ended after its retries. Calls that were not sent live are ignored."""
        if not isinstance(answer, NoDecision):
            result = answer.result
            is_live = result.dispatched_at is not None and result.served_from != "recorded"
            self._note(
                answer.envelope.provider, result.failure, is_live=is_live, is_read=result.reading is not None
            )

    def note_outcome(self, outcome: StructuredOutcome) -> None:
        """Note a typed call, as `note` does."""
        for last in outcome.attempts[-1:]:
            is_live = last.sent and last.first_cost_nusd is None
            self._note(last.provider, last.failure, is_live=is_live, is_read=last.trace is not None)

    def _note(self, provider: str, failure: FailureReason | None, *, is_live: bool, is_read: bool) -> None:
        if not is_live:
            return
        if is_read:
            self.answered.add(provider)
            return
        failed_of = FATAL if provider in self.answered else FATAL_AT_FIRST
        if failure is not None and failure.category in failed_of:
            self.failure = self.failure or (provider, failure)


class OutageAwareGateway:
    """A gateway that reports its answers to a `ProviderOutage`."""

    def __init__(self, gateway: AskingGateway, outage: ProviderOutage) -> None:
        self._gateway = gateway
        self._outage = outage

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, and note the answer."""
        answer = await self._gateway.ask(envelope, earlier=earlier)
        self._outage.note(answer)
        return answer

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a typed call, and note its outcome."""
        outcome = await self._gateway.ask_structured(envelope, check=check)
        self._outage.note_outcome(outcome)
        return outcome

    async def record(self, event: Event) -> None:
        """Append an event to the trace."""
        await self._gateway.record(event)


PATIENCE = {LLMProvider.LOCAL.value: RetryPolicy(attempt_timeout_s=300.0)}
"""Retry policies by adapter, in place of the default. A local model is slow."""


def patience_of(providers: Mapping[str, AskedProvider | ProviderConfig]) -> Mapping[str, RetryPolicy]:
    """Return the retry policies of these providers. Other names are treated as adapters."""
    adapters = {name: name for name in PATIENCE}
    adapters |= {name: one.adapter or name for name, one in providers.items()}
    return {name: PATIENCE[adapter] for name, adapter in adapters.items() if adapter in PATIENCE}
