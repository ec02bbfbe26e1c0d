"""The provider of a run: which models it uses, and whether they can be used, found before anything is written."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from agentic_trading.cancellation import run_shielded
from agentic_trading.client.gateway import Gateway, GatewayReply
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

COUNTED_WITHIN_S = 15.0

FATAL = frozenset({FailureKind.AUTH_ERROR, FailureKind.BILLING})
"""Failures that every later call would share."""

FATAL_AT_FIRST = FATAL | {FailureKind.SERVER_ERROR, FailureKind.INVALID_REQUEST, FailureKind.INTERNAL_ERROR}
"""Failures that say of a provider without any answer so far that it will not: no server, an unknown model, no schema."""


class UnusableProviderError(TradingError):
    """A live run cannot go on: its calls fail, and every later one would; `reason` says why.

    `begun` says that the session has a folder already, where its calls are on record.
    """

    def __init__(self, provider: str, reason: FailureReason, *, begun: bool) -> None:
        self.provider = provider
        self.reason = reason
        self.begun = begun
        goes_on = "; its calls are on record, and --resume goes on after them" if begun else ""
        problem = f"{provider} cannot be used ({reason.category}): {reason.description}"
        super().__init__(f"{problem}; put that right, or take another --provider{goes_on}")


@dataclass(frozen=True, slots=True)
class ProviderSelection:
    """The models of a run: those that the workflows of a session ask, and what is asked when a call fails.

    `llm` and `model` are what was asked for: `model` is empty where each workflow has the default of its own, and for
    the models of the configuration all of them in one text. `providers` are the rows of those that may be asked.
    """

    llm: LLMProvider
    model: str
    models: Mapping[EnvelopeWorkflow, Capability]
    providers: Mapping[str, ProviderConfig]
    fallback: Mapping[EnvelopeWorkflow, FallbackConfig] = field(default_factory=dict)
    alternatives: Mapping[EnvelopeWorkflow, Sequence[Capability]] = field(default_factory=dict)

    @property
    def is_configured(self) -> bool:
        """Whether each workflow asks what the configuration says."""
        return self.llm == CONFIGURED

    @property
    def names(self) -> Mapping[EnvelopeWorkflow, str]:
        """The model that each workflow asks, as `PROVIDER/MODEL`, where the configuration says it."""
        return {
            workflow: f"{row.provider}/{row.model}"
            for workflow, row in self.models.items()
            if self.is_configured
        }

    @property
    def rows(self) -> Sequence[Capability]:
        """The rows of all models that may be asked, each once."""
        others = [row for rows in self.alternatives.values() for row in rows]
        return list({(row.provider, row.model): row for row in (*self.models.values(), *others)}.values())


def select_provider(
    options: ProviderOptions, tables: Tables, *, now: datetime, model: str = ""
) -> ProviderSelection:
    """Return the models of a live run; `model` is that of a resumed run, and holds where the options name none.

    Raises `OptionError` for a model that is unknown, has retired by the day of `now` (UTC) or has no price, and
    `ConfigError` for all such models of the configuration.
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
    """Return the models that the configuration has for the workflows of a session."""
    config = options.config
    problems = [
        ConfigProblem(config.origin_of("models"), f"models.{workflow}", "left out", "PROVIDER/MODEL")
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
    """Return the providers of a live run, with `rules` for the provider of that name; the caller closes them.

    Nothing has been sent yet. Where workers elsewhere make the calls there are none.

    Raises `ConfigError` where an extra is not installed, an adapter cannot be made or no key is to be found,
    `WeightsError` for weights that are missing or are not those that were published.
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

    await run_shielded(asyncio.to_thread(make), longest_s=math.inf)


def asked_providers(options: ProviderOptions) -> dict[str, AskedProvider]:
    """Return what a manifest keeps of the providers that may be asked."""
    return {
        name: AskedProvider(adapter=row.adapter_of(name), base_url=host_free(row.base_url))
        for name, row in options.asked.items()
    }


def base_url_of(options: ProviderOptions) -> str:
    """Return the address of the one provider that `--provider` names, without its host; empty for its own."""
    row = None if options.provider == CONFIGURED else options.asked.get(options.provider)
    return "" if row is None else host_free(row.base_url)


def host_free(base_url: str | None) -> str:
    """Return an address without its host, as a record may keep it: empty for the provider's own."""
    if base_url is None:
        return ""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, "…", parts.path.rstrip("/"), "", ""))


async def check_providers(providers: Providers, selection: ProviderSelection) -> None:
    """Check that hosted models can be used, by requests that cost nothing; raises `UnusableProviderError`."""
    for name, row in selection.providers.items():
        if row.adapter_of(name) == LLMProvider.LOCAL:
            continue
        requests = [_tiny_request(one) for one in selection.rows if one.provider == name]
        await refuse_unusable(providers.of(name), requests, has_own_server=row.base_url is not None)


async def refuse_unusable(
    provider: Provider, requests: Sequence[ModelRequest], *, has_own_server: bool
) -> None:
    """Have a request of each model counted, where the provider counts for nothing: it proves key, address and model.

    Raises `UnusableProviderError`. What may pass (a time-out, a rate limit) is left to the first call, and so is what
    a server of one's own (`has_own_server`) says about a request: it may not know how to count.
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
    """Return the row of a model, by default that of its provider; raises `OptionError` as `select_provider` does."""
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
        raise OptionError("--model", f"{name!r}, which is in no table of models", _allowed(usable))
    if name not in usable:
        was = f"{name}, which retired on {row.retires_on}; what it answered is replayed for ever"
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
    """Read the weights of a model, and hold them against their checksum."""
    known = WEIGHTS.get(model)
    if known is None:
        raise OptionError("--model", f"{model!r}, whose weights are not known", ", ".join(WEIGHTS))
    if config.weights_folder is None:
        raise WeightsError(Path(known.file), model, "no folder of weights is set")
    verify_weights(find_weights(config.weights_folder, model), known)


@dataclass(slots=True)
class ProviderOutage:
    """What a run has seen of its providers: which ever answered, and a failure that further calls would share, with whose it is."""

    answered: set[str] = field(default_factory=set)
    failure: tuple[str, FailureReason] | None = None

    def around(self, gateway: Gateway) -> Gateway:
        """Return a gateway that notes each answer."""
        return OutageAwareGateway(gateway, self)

    def note(self, answer: GatewayReply) -> None:
        """Note a call that has ended, after its retries; one that was not sent, or not live, is no evidence."""
        if isinstance(answer, NoDecision):
            return
        result, provider = answer.result, answer.envelope.provider
        if result.dispatched_at is None or result.served_from == "recorded":
            return
        if result.reading is not None:
            self.answered.add(provider)
            return
        failed_of = FATAL if provider in self.answered else FATAL_AT_FIRST
        if result.failure is not None and result.failure.category in failed_of:
            self.failure = self.failure or (provider, result.failure)


class OutageAwareGateway:
    """A gateway whose answers a `ProviderOutage` notes."""

    def __init__(self, gateway: Gateway, outage: ProviderOutage) -> None:
        self._gateway = gateway
        self._outage = outage

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Ask, and note the answer."""
        answer = await self._gateway.ask(envelope)
        self._outage.note(answer)
        return answer

    async def record(self, event: Event) -> None:
        """Record."""
        await self._gateway.record(event)


PATIENCE = {LLMProvider.LOCAL.value: RetryPolicy(attempt_timeout_s=300.0)}
"""How calls are retried where the default does not fit, by adapter: a small machine takes its time."""


def patience_of(providers: Mapping[str, AskedProvider | ProviderConfig]) -> Mapping[str, RetryPolicy]:
    """Return how calls to these providers are retried; to a name that is none of them, as its adapter's."""
    adapters = {name: name for name in PATIENCE}
    adapters |= {name: one.adapter or name for name, one in providers.items()}
    return {name: PATIENCE[adapter] for name, adapter in adapters.items() if adapter in PATIENCE}
