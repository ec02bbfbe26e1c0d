"""The process of the HTTP server: a platform in this process, its clients by principal, and the replay of a recording."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from agentic_trading.cancellation import on_first_signal
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.clock import SystemClock
from agentic_trading.governance.policy import Policy
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureReason
from agentic_trading.llm.event import Event
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.store import Records
from agentic_trading.llm.taps import Tap
from agentic_trading.platform.check import check_platform
from agentic_trading.platform.config import BusConfig, LedgerConfig, PlatformConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem, OptionError
from agentic_trading.platform.listener import server_tls
from agentic_trading.platform.metrics import (
    attempt_samples,
    budget_samples,
    http_samples,
    metrics_text,
    platform_samples,
)
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.recorded_gateway import recorded_attempts_in
from agentic_trading.platform.settings import load_config, load_settings, secret_variable
from agentic_trading.platform.signing_keys import signing_keys_of
from agentic_trading.platform.status_pages import is_loopback
from agentic_trading.platform.urls import without_password
from agentic_trading.server import errors
from agentic_trading.server.api_keys import KEY_PREFIX, ApiKey, ApiKeys, api_keys_file
from agentic_trading.server.errors import RequestError
from agentic_trading.server.recording import Replayed, ServedRecording, VolatileTexts
from agentic_trading.server.served_bus import ServedBus, client_names, client_of, served_bus
from agentic_trading.server.server import ApiServer, Served, api_server
from agentic_trading.server.shared_calls import SharedCalls

RECORDED: Final = "recorded"
"""The provider of a replay: the answers of a log."""

_FLAGS: Final = {"folder": "--store", "bus": "--bus", "ledger": "--ledger"}
"""The command options that set values of the configuration."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`.

    Attributes:
        config: The configuration file.
        host, port: The address. Port 0 selects a free port.
        folder: The folder of the log. None takes it from the configuration.
        recording: A log whose answers are served. None calls the providers.
        behind_proxy: Whether a proxy with TLS is in front, so that other hosts are allowed.
        drain_s: Seconds for calls under way after a signal.
        tls_files: The files of the certificate and of its key. None serves without TLS.
        volatile: Patterns of texts that differ between runs. A replay also matches requests without them.
        bus: The URL of a bus whose workers make the calls. None takes it from the configuration.
        ledger: The URL of the ledger. None takes it from the configuration.
        recorded_key: The API key whose recorded calls are served. Empty serves those of all keys.

    """

    config: Path | None
    host: str
    port: int
    folder: Path | None = None
    recording: Path | None = None
    behind_proxy: bool = False
    drain_s: float = 30.0
    volatile: Sequence[str] = ()
    tls_files: tuple[Path, Path] | None = None
    bus: str | None = None
    ledger: str | None = None
    recorded_key: str = ""


@dataclass(slots=True)
class ServedPlatform:
    """A platform as the server sees it, with a client for each principal of its keys."""

    platform: Platform
    keys: ApiKeys
    zone: ZoneInfo
    models_by_name: Sequence[str]
    clients: Mapping[str, StructuredGateway] = field(default_factory=dict)
    recording: ServedRecording | None = None

    @property
    def shared(self) -> SharedCalls | None:
        """No calls are shared, because no other server has this log."""
        return None

    def headers(self, envelope: LLMEnvelope) -> Mapping[str, str]:
        """Return the headers that a reply has beside those of its call."""
        is_volatile = self.recording is not None and self.recording.is_volatile_match(envelope.envelope_id)
        return {"x-agentic-matched": "volatile"} if is_volatile else {}

    def models(self, key: ApiKey) -> Sequence[str]:
        """Return the names of the models that a key may use."""
        return tuple(key.models) or self.models_by_name

    def gateway(self, key: ApiKey) -> StructuredGateway:
        """Return the client of a key's principal. Raises `RequestError` for a principal of a newer key."""
        return client_of(self.clients, key)

    async def count_tokens(self, envelope: LLMEnvelope, key: ApiKey) -> int:
        """Return the provider's count of input tokens. Raises `RequestError` without one."""
        counted = await self.platform.count_tokens(envelope, principal=key.principal)
        if isinstance(counted, FailureReason):
            raise RequestError(errors.failure_of(counted), counted.description)
        if counted is None:
            raise RequestError(errors.NO_COUNT, "the provider has no count of input tokens now")
        return counted

    async def keep(self, event: Event) -> None:
        """Write an event to the log. It returns when the event is durable."""
        await self.platform.keep(event)

    @property
    def records(self) -> Records:
        """The queries of the log."""
        return self.platform.records

    @property
    def taps(self) -> MutableMapping[str, Tap] | None:
        """The clients that get events as they come, by envelope id. None if other processes take calls, too."""
        return self.platform.taps

    @property
    def secrets(self) -> Redaction:
        """The secrets that no client may read."""
        return self.platform.config.redaction

    def output_cap(self, envelope: LLMEnvelope, choices: int) -> int:
        """Return the most output tokens of an attempt with so many answers, by its budget and its model."""
        return self.platform.verbatim_cap(envelope, choices)

    async def problems(self) -> Mapping[str, str]:
        """Return the reason for each part that cannot be used now."""
        found = dict(await self.platform.problems())
        return found if self.keys.problem is None else {**found, "api_keys": self.keys.problem}

    async def metrics(self, requests: Mapping[tuple[str, str, str], int]) -> bytes:
        """Return the metrics of the requests and of the platform."""
        statistics = self.platform.statistics()
        parts = [
            http_samples(requests),
            platform_samples(statistics),
            attempt_samples(statistics.pool.attempts),
        ]
        if statistics.pool.budgets is not None:
            reporting = await self.platform.reporting()
            parts.append(await asyncio.to_thread(budget_samples, statistics.pool.budgets, reporting))
        return await asyncio.to_thread(metrics_text, *parts)


async def serve_api(
    options: ServeOptions,
    say: Callable[[str], None],
    on_signal: Callable[[], None] = lambda: None,
    during: Callable[[str], Coroutine[None, None, None]] | None = None,
) -> Replayed | None:
    """Serve until SIGINT or SIGTERM, then end the calls under way. A second signal ends the process at once.

    Args:
        options: The options.
        say: It is called with each line about the state of the server.
        on_signal: Called on the first signal.
        during: Called with the URL. The server stops when it returns, and a signal cancels it.

    Returns:
        The use of the recording, or None without one.

    Raises:
        OptionError: If an option is wrong.
        ConfigError: If the configuration or a key is invalid.
        ListenError: If the address cannot be used.
        StoreError: If a log cannot be used.
        BusError: If the bus cannot be used.
        LedgerUnavailableError: If the Redis of the ledger cannot be used.

    """
    is_local = is_loopback(options.host) and not options.behind_proxy
    tls = None if options.tls_files is None else await asyncio.to_thread(server_tls, *options.tls_files)
    if tls is None:
        _refuse_open_address(options)
    config = await asyncio.to_thread(_config, options)
    answers = None if options.recording is None else await _recording(options, options.recording, config)
    is_on_bus = config.bus.url is not None
    # On a bus, the providers and their keys are those of the workers.
    if answers is None and not is_on_bus and (problems := await check_platform(config)):
        raise ConfigError(problems)
    ports = Ports() if answers is None else Ports(providers=Providers.every(answers), recorded=answers)
    keys = await asyncio.to_thread(_keys, options, config)
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        on_signal()

    opened: AbstractAsyncContextManager[Served] = (
        _on_bus(config, keys) if is_on_bus else _served(config, ports, keys, options.drain_s, answers)
    )
    with on_first_signal(stop):
        async with opened as served:
            server = ApiServer(keys, served, SystemClock(), config.bus.max_message_bytes, is_local=is_local)
            async with api_server(
                server, options.host, options.port, drain_s=options.drain_s, tls=tls
            ) as url:
                where = "in memory" if config.folder is None else f"in {config.folder / config.name}"
                say(f"log: {where}")
                if config.bus.url is not None:
                    say(f"workers on {without_password(config.bus.url)} make the calls")
                say(f"serving {url} for {len(keys.names)} API keys")
                await _until(stopping, None if during is None else during(url))
                say("stopping")
    return None if answers is None else answers.use


def _refuse_open_address(options: ServeOptions) -> None:
    """Raise `OptionError` for an address that other machines reach without TLS."""
    if not (options.behind_proxy or is_loopback(options.host)):
        allowed = (
            "127.0.0.1, [::1] or localhost, or --tls-cert and --tls-key, or --behind-proxy if a proxy with TLS is in "
            "front"
        )
        raise OptionError("--http", f"{options.host}, which other machines reach without TLS", allowed)


async def _until(stopping: asyncio.Event, work: Coroutine[None, None, None] | None) -> None:
    """Wait for a signal, or for the end of `work`. Work that a signal interrupts is cancelled."""
    if work is None:
        await stopping.wait()
        return
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        working.add_done_callback(lambda _: stopping.set())
        await stopping.wait()
        working.cancel()


@asynccontextmanager
async def _served(
    config: PlatformConfig, ports: Ports, keys: ApiKeys, drain_s: float, answers: ServedRecording | None
) -> AsyncGenerator[ServedPlatform]:
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(Platform(config, ports, drain_s=drain_s))
        await stack.enter_async_context(keys.followed())
        clients = {
            name: await stack.enter_async_context(platform.client(f"http-{name}", sign_as=name))
            for name in client_names(config, keys)
        }
        names = await asyncio.to_thread(lambda: [*_model_names(config)])
        yield ServedPlatform(platform, keys, ZoneInfo(config.zone), names, clients, answers)


@asynccontextmanager
async def _on_bus(config: PlatformConfig, keys: ApiKeys) -> AsyncGenerator[ServedBus]:
    names = await asyncio.to_thread(lambda: [*_model_names(config)])
    async with served_bus(config, (config.folder or Path()) / config.name, keys, names) as served:
        yield served


def _model_names(config: PlatformConfig) -> Sequence[str]:
    own = [f"{name}/{row.model}" for name, each in config.providers.items() for row in each.models]
    shipped = [
        f"{row.provider}/{row.model}" for row in Capabilities.load() if row.provider in config.providers
    ]
    return [*dict.fromkeys([*own, *shipped])]


def _config(options: ServeOptions) -> PlatformConfig:
    """Return the configuration. A replay is in memory and in this process, so that it changes no record."""
    urls = {"bus": options.bus, "ledger": options.ledger}
    given = {name: {"url": url} for name, url in urls.items() if url is not None}
    loaded = load_config(options.config, flags=_FLAGS, folder=options.folder, **given)
    # A fallback would ask models that the key does not name, and could cost the ceiling of a call once a model.
    config = loaded.model_copy(update={"fallback": {}})
    if options.recording is not None:
        changes = {"folder": options.folder, "bus": BusConfig(), "ledger": LedgerConfig()}
        return config.model_copy(update=changes)
    if config.bus.url is not None and config.ledger.url is None:
        allowed = (
            "redis://HOST:PORT, shared with the workers of the bus, or url in [ledger] of the configuration"
        )
        raise OptionError("--ledger", "not set", allowed)
    if not (config.providers or config.bus.url):
        raise OptionError("--config", "a configuration without a provider", "one with [providers.NAME]")
    _check_provider_keys(config)
    folder = config.folder or load_settings().runs / "server"
    return config.model_copy(update={"folder": folder})


def _check_provider_keys(config: PlatformConfig) -> None:
    """Raise `ConfigError` if an agent's key would be sent to a provider: the SDKs read it from the same variable."""
    if config.secrets_folder is not None:
        return  # its files come before the variables
    problems = [
        ConfigProblem(
            "the environment",
            secret_variable(provider.secret_of(name)),
            "an API key of `api-keys create`",
            f"the key of {name}. Set that of the agent after the start, or in another shell",
        )
        for name, provider in config.providers.items()
        if (key := config.secret_of(name)) is not None and key.get_secret_value().startswith(KEY_PREFIX)
    ]
    if problems:
        raise ConfigError(problems)


def _keys(options: ServeOptions, config: PlatformConfig) -> ApiKeys:
    keys = ApiKeys(api_keys_file(options.config), SystemClock())
    policy = None if config.policy is None else Policy.load(config.policy)
    keys.check(policy)
    folder = config.principals_folder
    keys.check_signing(config.sign_as, lambda: None if folder is None else signing_keys_of(folder, policy))
    return keys


async def _recording(options: ServeOptions, path: Path, config: PlatformConfig) -> ServedRecording:
    """Return the answers of the logs at `path`. Raises `OptionError` without a log, or if a pattern is wrong."""
    answers = ServedRecording(VolatileTexts(options.volatile), config.redaction, key=options.recorded_key)
    async with aclosing(recorded_attempts_in(path, option="--from")) as attempts:
        async for attempt in attempts:
            answers.add(attempt)
    return answers
