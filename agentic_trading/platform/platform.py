"""Set up a gateway from one configuration. Ports are opened in order, and closed in reverse."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

from agentic_trading import __version__
from agentic_trading.bus.topic import RECORDS, Broker
from agentic_trading.cancellation import on_first_signal
from agentic_trading.client.answer import TypedAnswers
from agentic_trading.client.gateway import GatewayReply, StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limiter import Limiter
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.governance.status_feed import StatusFeed
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureReason, UnknownModelError
from agentic_trading.llm.event import Event, RunStarted, check_event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Provider, Providers, ToolDefinition
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import InteractionStore, Records
from agentic_trading.llm.taps import Tap
from agentic_trading.platform import adapters, port_adapters, restart
from agentic_trading.platform.check import answer_problems
from agentic_trading.platform.clients import Clients, bus_problems, followed_keys
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.ledger_snapshots import snapshots_on_record
from agentic_trading.platform.port_adapters import PortStack
from agentic_trading.platform.tables import LoadedFiles, Tables
from agentic_trading.platform.workers import (
    OpenPorts,
    PlatformStatistics,
    RunningPorts,
    running,
    worker_pool_of,
)
from agentic_trading.structured.prompts import tools_by_name, verbatim_cap
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.worker.active_claim import RecoveryReport, recover
from agentic_trading.worker.call_context import Checks
from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.outbox import Outbox, cursor_file_of, streaming
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.runner import RecordedAnswerSource

_NOT_OPEN: Final = "the platform is not open. Use it inside `async with Platform(...) as platform`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports to use in place of those of the configuration. The platform does not close them.

    Attributes:
        providers: Providers by name, in addition to the configured ones. A `Providers` replaces all of them.
        store: The log. A log in a file locks its folder, as a configured one does.
        broker: The bus.
        claims: The claim store.
        ledger: The ledger. It is not restored from the log.
        limiter: The rate limiter.
        controls: The store of operator commands.
        statuses: The feed of worker statuses.
        clock: The clock. None means the system clock.
        tables: Tables of models and prices that are loaded already.
        recorded: Recorded answers, looked up before a provider is called. None means those of providers that
            are `RecordedAnswers`.
        lost: Attempts without a recorded end, by reservation id. They are not sent again. Used with
            `restore`.
        counts: Whether the provider counts the tokens of a request, to bound its input.
        restore: Restores the ledger and sets limits, in place of the log and of `[tenants]`.

    """

    providers: Providers | Mapping[str, Provider] = field(default_factory=dict)
    store: InteractionStore | None = None
    broker: Broker | None = None
    claims: ClaimStore | None = None
    ledger: Ledger | None = None
    limiter: Limiter | None = None
    controls: ControlStore | None = None
    statuses: StatusFeed | None = None
    clock: Clock | None = None
    tables: Tables | None = None
    recorded: RecordedAnswerSource | None = None
    lost: Mapping[str, LostAttempt] = field(default_factory=dict)
    counts: bool = False
    restore: Callable[[Ledger, ControlStore | None], Awaitable[None]] | None = None


class Platform(TypedAnswers):
    """A gateway with its workers in this process. Use it as an async context manager.

    Opening restores spending from the log, sets the limits of `[tenants]` unless an operator has set others,
    and starts the workers and a client. If a step fails, everything that is open is closed.

    Leaving the block finishes the calls in flight and closes everything in reverse order. Envelopes that no
    worker has started are dropped with a bus in this process. After a cancellation, calls in flight have
    `CANCELLED_WITHIN_S` seconds. If several errors occur, one is raised and the others are its notes (see
    `PortStack`).

    With a folder, spending, halts and limits outlast the process. Without a folder they end with it.

    Args:
        config: The configuration.
        ports: Ports to use in place of the configured ones.
        checks: Checks beyond JSON Schema, by schema `$id`. They take precedence over those of `[checks]`. An
            envelope is refused if an installed check for its schema is not loaded.
        rules: Functions of the provider `rules`, by schema `$id`. They take precedence over those of
            `[rules]`.
        tools: The tools that envelopes may name in `tools_allowed`.
        records_run: Whether to record the start and the end of the run. Pass False if the caller records
            them.
        drain_s: Seconds for calls in flight when the block is left normally. None waits until they end.

    `taps` are the clients that get the events of an answer as they come, by envelope id. They are None if the bus is
    shared with other processes.

    `recovery` is the unfinished work of earlier starts. `waits_for` is the part that is being opened.

    Raises:
        ValueError: If a tool is invalid.
        RuntimeError: If it is opened twice, or used while it is not open.
        ConfigError: While opening, if the configuration is invalid.
        StoreError: While opening, if the log cannot be used.
        LedgerRolledBackError: While opening, if a shared ledger is behind the log.

    Example:
        async with Platform(load_config()) as platform:
            answer = await platform.ask(envelope)

    """

    def __init__(
        self,
        config: PlatformConfig,
        ports: Ports | None = None,
        *,
        checks: Checks = MappingProxyType({}),
        rules: adapters.Rules = MappingProxyType({}),
        tools: Iterable[ToolDefinition] = (),
        records_run: bool = True,
        drain_s: float | None = None,
    ) -> None:
        self.config = config
        self.recovery = RecoveryReport()
        self._given = ports or Ports()
        self._checks = checks
        self._call_checks: dict[str, SemanticCheck] = {}
        # On a shared bus any worker may take a call, so that its events would come to a client by chance.
        self.taps: dict[str, Tap] | None = {} if config.bus.url is None else None
        self._rules = rules
        self._tools = tools_by_name(tools)
        self._records_run = records_run
        self._drain_s = drain_s
        self._stack = PortStack()
        self.waits_for = ""
        self._stopping = asyncio.Event()
        self._client: StructuredGateway | None = None
        self._running: RunningPorts | None = None
        self._clients: Clients | None = None
        self._outbox: Outbox | None = None

    async def __aenter__(self) -> Self:
        """Open everything. Raises the errors listed for the class, and those of adapters."""
        if self._clients is not None:
            raise RuntimeError("the platform is open already. Create another one")
        self._stack, self._stopping = PortStack(), asyncio.Event()
        await self._stack.__aenter__()
        try:
            await self._open()
        except BaseException as e:
            await self.__aexit__(type(e), e, e.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything in reverse order."""
        try:
            await self._stack.__aexit__(kind, e, trace)
        finally:
            self._client = self._clients = self._running = self._outbox = None

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call and return its last attempt, or a `NoDecision` if there is none.

        The attempts before it are added to `earlier`. A failed call does not raise. Raises `BusError` if the
        envelope cannot be published.
        """
        return await self._own.ask(envelope, earlier=earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call and return its outcome with all attempts.

        An answer that `check` rejects is asked again if the bus is in this process. On a shared bus, the
        outcome is then a `parsing_error`. Raises `BusError` if the envelope cannot be published.
        """
        return await self._own.ask_structured(envelope, check=check)

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting. Return it as published, with its occurrence number set.

        The call does not fall back. Raises `BusError` if the envelope cannot be published.
        """
        return await self._own.submit(envelope)

    async def count_tokens(self, envelope: LLMEnvelope, *, principal: str = "") -> int | FailureReason | None:
        """Return the provider's own count of the input tokens of an envelope, free of charge.

        Returns:
            The count, None if the provider has none now, or the reason why it must not be asked.

        """
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return await self._running.pool.count_tokens(envelope, principal)

    def verbatim_cap(self, envelope: LLMEnvelope, choices: int) -> int:
        """Return the most output tokens of an attempt at a request of format `verbatim`, for all its choices."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        try:
            capability = self._running.opened.files.tables.capabilities.of(envelope.provider, envelope.model)
        except UnknownModelError:
            return envelope.budget.max_output_tokens
        return verbatim_cap(envelope, capability, choices)

    async def record(self, event: Event) -> None:
        """Append an event to the trace. Raises `RecordError` if one of its ids is too long."""
        await self._own.record(event)

    async def keep(self, event: Event) -> None:
        """Write an event to the log. It is on disk when this returns, as `durability` says.

        Raises:
            RecordError: If one of its ids is too long.
            StoreError: If the log cannot be written.

        """
        store, redaction = self._log_store, self.config.redaction
        check_event(event)
        await store.record(redaction.record(event) if redaction.known else event)

    @property
    def records(self) -> Records:
        """The queries of the log. Raises `TypeError` for a log of another package."""
        return port_adapters.records_in(self._log_store)

    @property
    def _log_store(self) -> InteractionStore:
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return self._running.opened.store

    @asynccontextmanager
    async def client(self, name: str, *, sign_as: str = "") -> AsyncGenerator[StructuredGateway]:
        """Open a client.

        Raises `ConfigError` if its name is taken or too long, or its principal has no key.
        """
        if self._clients is None:
            raise RuntimeError(_NOT_OPEN)
        async with self._clients.client(name, sign_as=sign_as) as client:
            yield client

    async def serve(self) -> None:
        """Run the workers until `stop`, SIGINT or SIGTERM. A second signal ends the process immediately."""
        with on_first_signal(self._stopping.set):
            await self._stopping.wait()

    def stop(self) -> None:
        """Make `serve` return. Calling it twice is harmless."""
        self._stopping.set()

    def statistics(self) -> PlatformStatistics:
        """Return counts since the platform was opened, and calls in flight."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return self._running.statistics()

    async def reporting(self) -> Mapping[str, int]:
        """Return the number of workers that report now, by tenant. Empty without a feed of statuses."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return await self._running.reporting()

    async def problems(self) -> Mapping[str, str]:
        """Return the reason for each part that is unusable now: `bus`, `ledger` or `stream`."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return await self._running.problems()

    @property
    def outbox(self) -> Outbox | None:
        """The sender of the log to the bus, with its progress. None if the log is not streamed."""
        return self._outbox

    @property
    def _own(self) -> StructuredGateway:
        if self._client is None:
            raise RuntimeError(_NOT_OPEN)
        return self._client

    async def _open(self) -> None:
        config, given, clock = self.config, self._given, self._given.clock or SystemClock()
        self.waits_for = "the files of its configuration"
        files = await asyncio.to_thread(LoadedFiles.read, config, _given_names(config, given), given.tables)
        if given.broker is None and (unshared := [*bus_problems(config, files.policy)]):
            raise ConfigError(unshared)
        if files.signing is not None:
            await self._stack.enter(followed_keys(config, files.signing))
        checks = await self._named("checks", self._checks)
        self.waits_for = "its log"
        store = await self._opened_log()
        log = port_adapters.file_log_of(store)
        self.waits_for = "the bus"
        broker = given.broker or await self._stack.make(partial(port_adapters.broker_of, config))
        if problems := [*answer_problems(config, broker.max_message_bytes, _given_names(config, given))]:
            raise ConfigError(problems)
        if _is_streamed(config):
            self._outbox = await _opened_outbox(self._stack, store, broker)
        if log is not None and self._records_run:  # after the outbox, so that the end of the run is sent too
            await self._stack.enter(run_on_record(log, run_started(config), event_id=random_id()))
        self.waits_for = "the ledger"
        ledger = given.ledger or await self._stack.make(self._made_ledger)
        controls, statuses = await self._boards(log.path.parent if log else None)
        limiter = given.limiter or await self._opened_limiter(files)
        claims = given.claims or await self._opened_claims(store)
        cache = self._response_cache(clock, claims, log)
        unended = await self._restored(ledger, store, cache, controls)
        self.waits_for = "its providers"
        providers = await self._opened_providers(files, clock)
        self.waits_for = "the calls that earlier starts have left"
        self.recovery = await recover(unended, ledger, claims, config.tenant_ids)
        opened = OpenPorts(
            files=files,
            store=store,
            broker=broker,
            claims=claims,
            ledger=ledger,
            controls=controls,
            statuses=statuses,
            limiter=limiter,
            providers=providers,
            clock=clock,
            lost=unended if given.restore is not None or config.ledger.url is None else {},
            cache=cache,
            checks=checks,
            unnamed_checks=await asyncio.to_thread(adapters.unnamed_functions, "checks", checks),
            call_checks=self._call_checks,
            recorded=given.recorded or port_adapters.recordings_in(providers),
            counts=given.counts,
            tools=self._tools,
            outbox=self._outbox,
            taps={} if self.taps is None else self.taps,
        )
        pool = worker_pool_of(config, opened)
        self.waits_for = "the topics of the bus"
        await broker.check(pool.topics)
        await self._stack.enter(running(pool, drain_s=self._drain_s))
        self._running = RunningPorts(pool, opened, config.tenant_ids, log)
        self._clients = Clients(config, broker, files.signing, call_checks=self._call_checks)
        self._client = await self._stack.enter(self.client("platform"))

    def _response_cache(
        self, clock: Clock, claims: ClaimStore, log: port_adapters.Log | None
    ) -> ResponseCache:
        is_shared = self._given.claims is not None or self.config.bus.url is not None
        recorded = None if log is None else log.records
        return ResponseCache(clock, shared=claims if is_shared else None, recorded=recorded)

    async def _restored(
        self, ledger: Ledger, store: InteractionStore, cache: ResponseCache, controls: ControlStore | None
    ) -> Mapping[str, LostAttempt]:
        """Restore the ledger from the log, and return the unfinished attempts of earlier starts."""
        given = self._given
        if given.restore is not None:
            await given.restore(ledger, controls)
            return given.lost
        restores = given.ledger is None
        carried = await restart.carry_on(self.config, ledger, store, cache, controls, restores=restores)
        if carried.rebuilds is not None:
            await self._stack.enter(snapshots_on_record(carried.rebuilds, store))
        return carried.unended

    async def _opened_limiter(self, files: LoadedFiles) -> Limiter | None:
        if not _asks_live(self.config):
            return None
        return await self._stack.make(partial(port_adapters.limiter_of, self.config.ledger.url, files.policy))

    async def _opened_log(self) -> InteractionStore:
        config, store = self.config, self._given.store
        if store is not None and config.folder is not None:
            found = f"{config.folder}, but Ports.store is given too"
            raise ConfigError([
                ConfigProblem(config.origin_of("folder"), "folder", found, "only one of them")
            ])
        log = None if store is None else port_adapters.file_log_of(store)
        folder = config.folder if log is None else log.path.parent
        is_shared = config.ledger.url is not None
        if store is not None and not is_shared:
            await self._stack.enter(restart.taken_log(store))
        if folder is not None:
            await self._stack.make(partial(restart.TakenFolder, folder, is_shared=is_shared))
        if store is not None or config.folder is None:
            return store or port_adapters.memory_log()
        return self._stack.keep(await port_adapters.opened_log(config.folder / config.name, config))

    async def _opened_claims(self, store: InteractionStore) -> ClaimStore:
        async with aclosing(store.scan()) as entries:
            # The first hash identifies the log, because no two logs start with the same line.
            log_id = (await anext(entries)).hash if (await store.head())[0] else ""
        claims = await self._stack.make(partial(port_adapters.claims_of, self.config, log_id))
        await claims.begin()
        return claims

    def _made_ledger(self) -> Ledger:
        zone = ZoneInfo(self.config.zone)
        url = self.config.ledger.url
        return (
            port_adapters.memory_ledger(zone=zone)
            if url is None
            else port_adapters.worker_ledger_of(url, zone=zone)
        )

    async def _boards(self, folder: Path | None) -> tuple[ControlStore | None, StatusFeed | None]:
        """Return the stores of operator commands and of worker statuses."""
        controls, statuses, url = self._given.controls, self._given.statuses, self.config.ledger.url
        if (controls is None) is (statuses is None) and (controls or (folder is None and url is None)):
            return controls, statuses
        made = await asyncio.to_thread(port_adapters.boards_of, url, folder)
        return controls or self._stack.keep(made[0]), statuses or self._stack.keep(made[1])

    async def _named(self, table: adapters.Table, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configured functions and those given in code, which take precedence."""
        return await asyncio.to_thread(adapters.functions_of, self.config, table) | dict(given)

    async def _opened_providers(self, files: LoadedFiles, clock: Clock) -> Providers:
        given = self._given.providers
        if isinstance(given, Providers):
            return given
        made: dict[str, Provider] = dict(given)
        rules = await self._named("rules", self._rules)
        for name, factory in files.factories.items():
            make = partial(
                adapters.configured_provider,
                self.config, name, factory, files.tables.capabilities, clock=clock, rules=rules,
            )  # fmt: skip
            made[name] = await self._stack.make(make)
        return Providers(made)


def run_started(config: PlatformConfig) -> RunStarted:
    """Return the event that starts a run in the log."""
    return RunStarted(
        session_id=config.name or "gateway",
        mode=config.mode,
        package=__version__,
        config_sha256=config.config_sha256,
        shares_traces=config.bus.url is not None,
    )


def _is_streamed(config: PlatformConfig) -> bool:
    """Whether the log is sent to the bus."""
    # A Redis keeps each record until an archiver reads it, so there it would grow unless `ack_after` asks for it.
    return config.bus.is_on_kafka or config.ack_after is not None


async def _opened_outbox(stack: PortStack, store: InteractionStore, broker: Broker) -> Outbox:
    """Start sending a log to the bus. Raises the errors of `Broker.check` before anything is recorded."""
    await broker.check([RECORDS])
    log = port_adapters.file_log_of(store)
    return await stack.enter(streaming(store, broker, None if log is None else cursor_file_of(log.path)))


def _given_names(config: PlatformConfig, given: Ports) -> frozenset[str]:
    """Return the configured providers that are given as ports. Their adapters are not loaded."""
    handed_in = given.providers
    return frozenset(config.providers if isinstance(handed_in, Providers) else map(str, handed_in))


def _asks_live(config: PlatformConfig) -> bool:
    """Whether rates apply: in paper mode, and in a backtest that calls a live model."""
    # Otherwise calls of a backtest take no real time, and rates per minute would have no meaning.
    rows = config.providers.items()
    return config.mode == "paper" or any(adapters.is_live(name, row) for name, row in rows)
