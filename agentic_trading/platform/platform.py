"""A gateway put together from one configuration: every port opened in one order, handed out, and closed in reverse."""

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
from agentic_trading.llm.event import Event, RunStarted
from agentic_trading.llm.provider import Provider, Providers, ToolDefinition
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import InteractionStore
from agentic_trading.platform import adapters, port_adapters, restart
from agentic_trading.platform.check import answer_problems
from agentic_trading.platform.clients import Clients, bus_problems, followed_keys
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.port_adapters import PortStack
from agentic_trading.platform.tables import LoadedFiles, Tables
from agentic_trading.platform.workers import (
    OpenPorts,
    PlatformStatistics,
    RunningPorts,
    running,
    worker_pool_of,
)
from agentic_trading.structured.prompts import tools_by_name
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.worker.active_claim import RecoveryReport, recover
from agentic_trading.worker.call_context import Checks
from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.outbox import Outbox, cursor_file_of, streaming
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.runner import RecordedAnswerSource

_NOT_OPEN: Final = "the platform is not open; use it within `async with Platform(…) as platform`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports that a platform is handed in place of those of its configuration: used as they are, and not closed.

    `providers` join the configured ones; a `Providers` takes the place of them all. `recorded` answers what it has before
    a provider is asked; left out, a provider that is a `RecordedAnswers` does. Of the attempts in `lost`, by reservation, no end is known, and they are not sent again. With
    `counts` a provider's own count of a request bounds its input. `tables` are read already. `restore` says what is
    spent and sets limits, in place of the log and of `[tenants]`. What a `ledger` knows is left to it: nothing of the log is
    restored into it. A log in a file takes its folder, as a configured one does.
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
    """A gateway and its workers within this process, as an async context manager; it is its own client.

    Opened in this order: tables, policy and keys; the log; the bus; what sends the log to it, if it has servers; ledger, controls and rates; what the log knows of
    money is restored; limits of `[tenants]` are set where no operator has set one; providers; workers; a client.
    Whatever fails closes what is open. Leaving the block closes in reverse: calls under way are finished (after a
    cancellation for `CANCELLED_WITHIN_S` at most), what was recorded is kept, and envelopes that no worker has begun are
    dropped with the bus. Of several errors one comes out, as `PortStack` says.

    The folder of the log is the memory: what earlier platforms there spent is spent, halts and limits hold, and tables
    of models and prices are those of the configuration. Without a folder nothing outlives the process. `checks` are
    rules beyond JSON Schema, `rules` answer for the provider `rules`, both by schema `$id`. They are added to the functions of packages
    that `[checks]` and `[rules]` name, and take precedence. An envelope is refused if its schema has an installed check that is not loaded. `tools` are
    those that envelopes may name in `tools_allowed`; a `ValueError` says which cannot be had. A caller
    that puts the start and the end of its run on record itself, as a session does, says so by `records_run=False`. With `drain_s`
    calls that are under way when the block is left have as many seconds to end. `recovery` is what earlier starts have left.
    `waits_for` names the part that is being opened.

    Raises `ConfigError` for a configuration that cannot be had, `StoreError` for a log that cannot be used,
    `LedgerRolledBackError` for a shared ledger that is behind the log, and what its adapters raise.
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
        """Open everything; raises what is said of the class."""
        if self._clients is not None:
            raise RuntimeError("the platform is open already; make another one")
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
        """Close everything, in reverse."""
        try:
            await self._stack.__aexit__(kind, e, trace)
        finally:
            self._client = self._clients = self._running = self._outbox = None

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Have the call made, and return its last attempt: see `GatewayClient.ask`."""
        return await self._own.ask(envelope)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Have the call made, and return the object with all attempts: see `GatewayClient.ask_structured`."""
        return await self._own.ask_structured(envelope, check=check)

    async def submit(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Publish an envelope without waiting; nothing falls back, as nothing waits for its failure."""
        return await self._own.submit(envelope)

    async def record(self, event: Event) -> None:
        """Put one fact of a trace on record."""
        await self._own.record(event)

    @asynccontextmanager
    async def client(self, name: str, *, sign_as: str = "") -> AsyncGenerator[StructuredGateway]:
        """Give a client of its own: see `Clients.client`."""
        if self._clients is None:
            raise RuntimeError(_NOT_OPEN)
        async with self._clients.client(name, sign_as=sign_as) as client:
            yield client

    async def serve(self) -> None:
        """Let the workers run until `stop`, SIGINT or SIGTERM; a second signal of the same kind ends the process at once."""
        with on_first_signal(self._stopping.set):
            await self._stopping.wait()

    def stop(self) -> None:
        """End `serve`. Harmless twice."""
        self._stopping.set()

    def statistics(self) -> PlatformStatistics:
        """Return what went through this platform since it was opened, and what is under way."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return self._running.statistics()

    async def problems(self) -> Mapping[str, str]:
        """Ask now what keeps the workers from serving, by what cannot be used: `bus`, `ledger`, `stream`; empty if nothing does."""
        if self._running is None:
            raise RuntimeError(_NOT_OPEN)
        return await self._running.problems()

    @property
    def outbox(self) -> Outbox | None:
        """What sends the log to the bus, and knows how far it is; None while nothing is open, and for a bus within this process."""
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
        if log is not None and self._records_run:  # after the outbox, which sends its end, too
            await self._stack.enter(run_on_record(log, run_started(config), event_id=random_id()))
        self.waits_for = "the ledger"
        ledger = given.ledger or await self._stack.make(self._made_ledger)
        controls, statuses = await self._boards(None if log is None else log.path.parent)
        limiter = given.limiter or await self._opened_limiter(files)
        claims = given.claims or await self._opened_claims(store)
        is_shared = given.claims is not None or config.bus.url is not None
        cache = ResponseCache(clock, shared=claims if is_shared else None)
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
        )
        pool = worker_pool_of(config, opened)
        self.waits_for = "the topics of the bus"
        await broker.check(pool.topics)
        await self._stack.enter(running(pool, drain_s=self._drain_s))
        self._running = RunningPorts(pool, broker, ledger, config.tenant_ids, self._outbox, files.signing)
        self._clients = Clients(config, broker, files.signing, call_checks=self._call_checks)
        self._client = await self._stack.enter(self.client("platform"))

    async def _restored(
        self, ledger: Ledger, store: InteractionStore, cache: ResponseCache, controls: ControlStore | None
    ) -> Mapping[str, LostAttempt]:
        """Restore the ledger from the log, and return the attempts that earlier starts have not ended."""
        given = self._given
        if given.restore is not None:
            await given.restore(ledger, controls)
            return given.lost
        restores = given.ledger is None
        return await restart.carry_on(self.config, ledger, store, cache, controls, restores=restores)

    async def _opened_limiter(self, files: LoadedFiles) -> Limiter | None:
        if not _asks_live(self.config):
            return None
        return await self._stack.make(partial(port_adapters.limiter_of, self.config.ledger.url, files.policy))

    async def _opened_log(self) -> InteractionStore:
        config, store = self.config, self._given.store
        if store is not None and config.folder is not None:
            found = f"{config.folder}, and a log is handed in"
            raise ConfigError([ConfigProblem(config.origin_of("folder"), "folder", found, "one of the two")])
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
            log_id = (await anext(entries)).hash if (await store.head())[0] else ""  # no two logs begin alike
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
        """Return where operators command and workers report: on the ledger's server, else in the log's folder, if any."""
        controls, statuses, url = self._given.controls, self._given.statuses, self.config.ledger.url
        if (controls is None) is (statuses is None) and (controls or (folder is None and url is None)):
            return controls, statuses
        made = await asyncio.to_thread(port_adapters.boards_of, url, folder)
        return controls or self._stack.keep(made[0]), statuses or self._stack.keep(made[1])

    async def _named(self, table: adapters.Table, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the functions that the configuration names and those given in code, which take precedence."""
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
    """Return what the log of a configuration says when its run begins."""
    return RunStarted(
        session_id=config.name or "gateway",
        mode=config.mode,
        package=__version__,
        config_sha256=config.config_sha256,
        shares_traces=config.bus.url is not None,
    )


def _is_streamed(config: PlatformConfig) -> bool:
    """Whether the log is sent to the bus: to a Redis, which would keep what no archiver reads, only where that is set."""
    return config.bus.is_on_kafka or config.ack_after is not None


async def _opened_outbox(stack: PortStack, store: InteractionStore, broker: Broker) -> Outbox:
    """Send a log to the bus from now on; raises what `Broker.check` does before anything is on record."""
    await broker.check([RECORDS])
    log = port_adapters.file_log_of(store)
    return await stack.enter(streaming(store, broker, None if log is None else cursor_file_of(log.path)))


def _given_names(config: PlatformConfig, given: Ports) -> frozenset[str]:
    """Return the configured providers that are handed in: their adapters are not loaded."""
    handed_in = given.providers
    return frozenset(config.providers if isinstance(handed_in, Providers) else map(str, handed_in))


def _asks_live(config: PlatformConfig) -> bool:
    """Whether rates hold: on paper, and in a backtest that asks a model; nothing else there goes by real time."""
    rows = config.providers.items()
    return config.mode == "paper" or any(adapters.is_live(name, row) for name, row in rows)
