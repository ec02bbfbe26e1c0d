"""The provider of a run: which models it uses, and whether they can be used, found before anything is written."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from agentic_trading.app import trading
from agentic_trading.app.options import HOSTED, OptionError, RunOptions, check_url
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
from agentic_trading.llm.models import (
    WEIGHTS,
    Capabilities,
    Capability,
    WeightsError,
    find_weights,
    verify_weights,
)
from agentic_trading.llm.provider import ModelRequest, Provider
from agentic_trading.platform import adapters
from agentic_trading.platform.provider_config import ProviderConfig
from agentic_trading.platform.settings import Settings, variable_of
from agentic_trading.platform.tables import Tables

WORKFLOWS: Final = (EnvelopeWorkflow.ANALYSIS, EnvelopeWorkflow.EXECUTION)
"""The workflows of a session."""

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
    """The models of a run: `model` is empty where each workflow has its own, which `models` gives.

    `base_url` is None for the provider's own address.
    """

    llm: LLMProvider
    model: str
    models: Mapping[EnvelopeWorkflow, Capability]
    base_url: str | None = None


def select_provider(
    options: RunOptions, tables: Tables, *, now: datetime, model: str = ""
) -> ProviderSelection:
    """Return the models of a live run; `model` is that of a resumed run, and holds where the options name none.

    Raises `OptionError` for a model that is unknown, has retired by the day of `now` (UTC) or has no price.
    """
    llm = LLMProvider(options.provider)
    name = options.model or model or _default(llm, tables)
    models = {workflow: _row(tables, llm, name or PRESETS[workflow].model, now) for workflow in WORKFLOWS}
    return ProviderSelection(llm, name, models, base_url_of(options))


async def ready(options: RunOptions, selection: ProviderSelection) -> Provider:
    """Return the provider of a live run; nothing has been sent yet, and the caller closes it.

    Raises `OptionError` where an extra is not installed or no key is to be found, `WeightsError` for weights that are
    missing or are not those that were published.
    """
    name, settings = options.provider, options.settings
    adapter = await asyncio.to_thread(_adapter, name)
    config = ProviderConfig(base_url=selection.base_url)
    if name == "local":
        await asyncio.to_thread(_check_weights, settings, selection.model)
        config = ProviderConfig(options={"model": selection.model})
    context = adapters.ProviderContext(
        name,
        config,
        adapters.MissingKey(name, secrets_file(name)),
        Capabilities(selection.models.values()),
        weights_folder=settings.models_dir if settings else None,
    )
    if name in HOSTED:
        context = await _with_keys(context, settings, is_free=not adapter.needs_key(config))
    return await asyncio.to_thread(adapters.provider_of, context, adapter)


def base_url_of(options: RunOptions) -> str | None:
    """Return the address of a run's server, None for the provider's own.

    Raises `OptionError` for a variable that holds none.
    """
    settings = options.settings
    if options.provider not in HOSTED or settings is None or options.base_url is not None:
        return options.base_url
    url = settings.of(options.provider).base_url
    if url is not None:
        check_url(variable_of(options.provider, "base_url"), url)
    return url


def host_free(base_url: str | None) -> str:
    """Return an address without its host, as a record may keep it: empty for the provider's own."""
    if base_url is None:
        return ""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, "…", parts.path.rstrip("/"), "", ""))


async def check_provider(provider: Provider, selection: ProviderSelection) -> None:
    """Check that a hosted model can be used, by a request that costs nothing; raises `UnusableProviderError`."""
    names = dict.fromkeys(row.model for row in selection.models.values())
    requests = [_tiny_request(selection, name) for name in names]
    await refuse_unusable(provider, requests, has_own_server=selection.base_url is not None)


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


def _tiny_request(selection: ProviderSelection, model: str) -> ModelRequest:
    envelope = EnvelopeBuilder().with_instructions("Answer.").with_provider(selection.llm, model).build()
    return ModelRequest(envelope, 1, 1, envelope.instructions, "Answer.", "text", max_tokens=16)


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


def _adapter(provider: str) -> adapters.ShippedAdapter:
    """Return the adapter that is shipped for a provider; raises `OptionError` where it needs what is not installed."""
    adapter = adapters.factory_of(provider, ProviderConfig())
    if not isinstance(adapter, adapters.ShippedAdapter) or not adapter.is_installed:
        was = f"{provider}, which needs a package that is not installed"
        raise OptionError("--provider", was, f"after pip install 'agentic-trading[{provider}]'")
    return adapter


def _check_weights(settings: Settings | None, model: str) -> None:
    """Read the weights of a model, and hold them against their checksum."""
    known = WEIGHTS.get(model)
    if known is None:
        raise OptionError("--model", f"{model!r}, whose weights are not known", ", ".join(WEIGHTS))
    if settings is None:
        raise WeightsError(Path(known.file), model, "no folder of weights is set")
    verify_weights(find_weights(settings.models_dir, model), known)


async def _with_keys(
    context: adapters.ProviderContext, settings: Settings | None, *, is_free: bool
) -> adapters.ProviderContext:
    """Return the context with the keys of a hosted provider; raises `OptionError` where there is none of use."""
    name = context.name
    key = settings.of(name).api_key if settings else None
    folder = settings.secrets_dir if settings else None
    variable, file = variable_of(name, "api_key"), secrets_file(name)
    keys = trading.keys(key.get_secret_value() if key else None, folder=folder, name=file, is_free=is_free)
    allowed = f"a key in it, or in the file {file} of the folder that AGENTIC_SECRETS_DIR names"
    if keys is None:
        raise OptionError(variable, "not set", allowed)
    try:
        await keys.key_of(trading.DEFAULT_TENANT)
    except ProviderError as e:
        raise OptionError(variable, f"of no use: {e.message}", allowed) from None
    return replace(context, keys=keys)


def secrets_file(provider: str) -> str:
    """Return the name of the file of a provider's key in the folder of secrets."""
    return f"{provider}_api_key"


@dataclass(slots=True)
class ProviderOutage:
    """What a run has seen of its provider: whether it ever answered, and a failure that further calls would share."""

    answered: bool = False
    failure: FailureReason | None = None

    def around(self, gateway: Gateway) -> Gateway:
        """Return a gateway that notes each answer."""
        return OutageAwareGateway(gateway, self)

    def note(self, answer: GatewayReply) -> None:
        """Note a call that has ended, after its retries; one that was not sent, or not live, is no evidence."""
        if isinstance(answer, NoDecision):
            return
        result = answer.result
        if result.dispatched_at is None or result.served_from == "recorded":
            return
        if result.reading is not None:
            self.answered = True
            return
        failed_of = FATAL if self.answered else FATAL_AT_FIRST
        if result.failure is not None and result.failure.category in failed_of:
            self.failure = self.failure or result.failure


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
