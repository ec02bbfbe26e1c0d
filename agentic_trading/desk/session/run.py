"""Run a session from its options: bar files, budget, log and report."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from agentic_trading import __version__
from agentic_trading.cancellation import on_first_signal
from agentic_trading.client.gateway import AskingGateway
from agentic_trading.clock import SystemClock
from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.desk.execution.entry_halt import NoResumes, ResumeSource
from agentic_trading.desk.execution.silent_feeds import SilenceLimit
from agentic_trading.desk.late_bars import GracePeriod
from agentic_trading.desk.market.bar import EPOCH
from agentic_trading.desk.market.calendar import Calendar, ExchangeCalendar
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.session import feeds as session_feeds
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.calendars import new_calendar
from agentic_trading.desk.session.entry_resumes import ControlsPlace, OperatorResumes, RecordedResumes
from agentic_trading.desk.session.kept_bars import BarFiles
from agentic_trading.desk.session.lengths import refuse_unfit_bars
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.report import RunProgress, RunReport
from agentic_trading.desk.session.report_builder import report_of
from agentic_trading.desk.session.run_setup import PreparedRun, new_run, resumed_run, tables_with
from agentic_trading.desk.session.session_run import (
    SessionObserver,
    SessionResult,
    SessionSetup,
    play_session,
)
from agentic_trading.desk.session.trading_session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.governance.commands import SetLimit, execute_command
from agentic_trading.governance.controls_document import ControlStore, TenantControls
from agentic_trading.governance.controls_merge import CommandHistory
from agentic_trading.governance.events import kinds_to_read
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limits import Limit, ScopeKind, limit_text
from agentic_trading.governance.rebuild import LedgerRebuild, require_not_behind
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import RunData, RunStarted
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.runs import RunSummary, run_on_record
from agentic_trading.logger import get_logger
from agentic_trading.operate.choices import host_of, pluralize
from agentic_trading.operate.providers import ProviderOutage, UnusableProviderError
from agentic_trading.operate.session_folder import (
    RunManifest,
    SessionFolder,
)
from agentic_trading.platform import port_adapters, restart
from agentic_trading.platform.adapters import factory_of
from agentic_trading.platform.check import principal_problems
from agentic_trading.platform.errors import ConfigError, ConfigProblem, OptionError
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.port_adapters import Log, boards_of, ledger_of
from agentic_trading.platform.tables import Tables, tables_of


async def set_budget(controls: ControlStore, tenant: str, limit: Limit) -> None:
    """Set a limit in the controls, unless it is already set."""
    present = (await controls.read(tenant)).limit(limit.scope, limit.id, limit.window)
    if present != limit:
        await execute_command(
            controls, tenant, SetLimit(limit), by="run", why="--budget-usd", at=SystemClock().now()
        )


def has_limits(limits: Sequence[Limit]) -> bool:
    """Return whether a whole tenant has a limit on its cost."""
    return any(limit.scope is ScopeKind.TENANT and limit.nusd is not None for limit in limits)


async def refuse_unusable_server(options: RunOptions) -> None:
    """Check the limits on a shared ledger server, without a write to the server or to a file.

    Raises:
        OptionError: If no budget is given and the server has none, or the server's limit is smaller than the
            given one.
        TradingError: If the server is unavailable, or its settings may lose data.

    """
    url = options.config.ledger.url
    if url is None:
        return
    async with AsyncExitStack() as stack:
        controls, statuses = await asyncio.to_thread(boards_of, url, options.out)
        ledger = await asyncio.to_thread(lambda: ledger_of(url, zone=ZoneInfo(options.config.zone)))
        for port in (controls, statuses, ledger):
            await stack.enter_async_context(aclosing(port))
        document = await controls.read(options.tenant)
        if not options.budget_is_given and not has_limits(document.limits):
            raise OptionError(
                "--budget-usd",
                f"left out, and {host_of(url)} has no limit on tenant {options.tenant}",
                "an amount, or a limit that is set there: agentic-trading budget set tenant '*' --usd X",
            )
        _wanted_on_server(options, document)
        await ledger.checkpoint(options.tenant)


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Sets the limit of a run, and restores its spending, when its platform opens."""

    options: RunOptions
    opened: PreparedRun
    store: Log

    async def restore(self, ledger: Ledger, controls: ControlStore | None) -> None:
        """Set the run's limit in the controls, where operators can change it, and restore its spending.

        In a resumed run and on a shared server, options that are not given keep the existing limit. If the
        budget comes from the configuration, a limit that an operator has set is kept. On a server, a run may
        only lower the limit.

        Raises:
            OptionError: If the run asks for more than the limit on the server.
            LedgerRolledBackError: If the ledger is behind the log.

        """
        options, tenant = self.options, self.options.tenant
        if controls is None:
            raise RuntimeError("a run's folder or server has controls")
        if options.config.ledger.url is not None:
            await self._require_checkpoint(ledger, controls)
            wanted = _wanted_on_server(options, await controls.read(tenant))
            if wanted is not None:
                await set_budget(controls, tenant, wanted)
            return
        if options.budget_usd is None and options.budget_is_given and options.max_calls is None:
            await restart.seed_limit(tenant, options.tenant_row, ledger, controls)
        else:
            await set_budget(controls, tenant, self._wanted(await controls.read(tenant)))
        if self.opened.earlier is not None:
            await ledger.restore(tenant, self.opened.earlier.bookings)

    def _wanted(self, document: TenantControls) -> Limit:
        """Return the limit of a run with its own ledger."""
        options, limit = self.options, self.options.limit
        present = document.limit(limit.scope, limit.id, limit.window)
        if present is None or self.opened.earlier is None:
            return limit
        if options.budget_is_given:
            return replace(present, nusd=limit.nusd, calls=limit.calls)
        return present if options.max_calls is None else replace(present, calls=options.max_calls)

    async def _require_checkpoint(self, ledger: Ledger, controls: ControlStore) -> None:
        """Restore commands that only the log has.

        Raises `LedgerRolledBackError` if the ledger is behind the log.
        """
        records = self.store.records
        rebuild, commands = LedgerRebuild(self.options.tenant, self.options.mode), CommandHistory()
        # Calls are left out, because they hold neither a checkpoint, a dispatch nor a command.
        kinds = await kinds_to_read(records)
        async with aclosing(records.entries(RecordQuery(kind=kinds))) as entries:
            async for entry in entries:
                rebuild.read(entry.record)
                commands.read(entry.record)
        await require_not_behind(rebuild, ledger, SystemClock().now())
        await restart.restore_commands(commands, controls, [self.options.tenant])


def _wanted_on_server(options: RunOptions, document: TenantControls) -> Limit | None:
    """Return the limit that a run sets for all workers of a server, or None if no limit is given.

    Raises `OptionError` for more than the limit on the server.
    """
    if not options.budget_is_given and options.max_calls is None:
        return None
    limit = options.limit
    present = document.limit(limit.scope, limit.id, limit.window)
    if present is None:
        return limit if options.budget_is_given else replace(limit, nusd=None)
    limit = replace(
        present,
        nusd=limit.nusd if options.budget_is_given else present.nusd,
        calls=present.calls if limit.calls is None else limit.calls,
    )
    asked = {"--budget-usd": (limit.nusd, present.nusd), "--max-calls": (limit.calls, present.calls)}
    for option, (more, most) in asked.items():
        if more is not None and most is not None and more > most:
            was = f"{more / NANO:g}" if option == "--budget-usd" else f"{more}"
            raise OptionError(
                option,
                f"{was}, and {limit_text(present)} is set on the server",
                "at most this limit. `agentic-trading budget set` raises it for all workers",
            )
    return limit


log = get_logger()


@dataclass(slots=True)
class StopSignals:
    """Stops a session on a signal, or the task if there is no session yet. `came` is set by the signal."""

    task: asyncio.Task[object] | None
    came: bool = False
    _session: TradingSession | None = None

    def hold(self, session: TradingSession) -> None:
        """Stop `session` at the next signal."""
        self._session = session

    def stop(self) -> None:
        """Handle a signal."""
        self.came = True
        if self._session is not None:
            log.warning("stopping after the calls in flight. Send the same signal again to stop immediately")
            self._session.stop()
        elif self.task is not None:
            self.task.cancel()


@contextmanager
def stop_on_signals() -> Generator[StopSignals]:
    """Stop at the first SIGINT or SIGTERM. A second signal of the same kind ends the program immediately.

    Without a session, the first signal cancels the current task.
    """
    # The event loop handles the signal, because Python's own handler would interrupt the loop at an arbitrary
    # step.
    signals = StopSignals(asyncio.current_task())
    with on_first_signal(signals.stop):
        yield signals


OnProgress = Callable[[RunProgress], None]


class ReplayMissError(TradingError):
    """A run with recorded answers made a call that is not in the recording."""

    def __init__(self, misses: Sequence[object], *, bars: int) -> None:
        self.misses = tuple(misses)
        self.bars = bars
        number = len(self.misses)
        which = "1 answer is" if number == 1 else f"{number} answers are"
        super().__init__(
            f"{which} not in the recording after {pluralize(self.bars, 'bar')}, the first is {self.misses[0]}. "
            "Use the data and the --bars of the recorded run, or --provider rules"
        )


async def run_session(
    options: RunOptions, *, on_progress: OnProgress, frames: Sequence[session_feeds.BarSource] = ()
) -> RunReport:
    """Run a session, write it to `options.out`, and return its report.

    SIGINT and SIGTERM end the session after the current time slice. Before the first time slice, they cancel
    this task. All answers are on disk when this function returns or raises.

    Args:
        options: The options of the run.
        on_progress: Called after each time slice.
        frames: The data frames, which are traded instead of `options.data`.

    Raises:
        OptionError: If options are wrong or do not fit together, or a source has no bar or bars of another
            length.
        WeightsError: If the weights of a local model cannot be used.
        UnusableProviderError: If a provider cannot be used.
        StoreError: If the folder or the log cannot be used.
        MarketError: If a bar is broken.

    """
    with stop_on_signals() as signals:
        return await _run(options, signals, on_progress, frames)


async def _run(
    options: RunOptions,
    signals: StopSignals,
    on_progress: OnProgress,
    frames: Sequence[session_feeds.BarSource],
) -> RunReport:
    clock = SystemClock()
    started = clock.monotonic()
    named = list(frames) or await asyncio.to_thread(session_feeds.sources, options.data)
    tables = await loaded_tables(options)
    feeds = await session_feeds.open_feeds(
        named, options.timeframe, trading.wall_clock(options.mode), options.columns
    )
    refuse_unfit_bars(options.agent, feeds)
    named = session_feeds.with_lengths(named, feeds)
    calendar = None if options.resume else await new_calendar(options.calendar, feeds)
    folder = SessionFolder(options.out)
    await asyncio.to_thread(_refuse_unknown_principal, options)
    store = port_adapters.log_for(
        options.mode, folder.log, can_be_repeated=options.is_repeatable, config=options.config
    )
    async with aclosing(store):
        await refuse_unusable_server(options)
        if options.resume:
            opened = await resumed_run(options, folder, feeds, store, tables)
        else:
            opened = await new_run(options, folder, named, store, tables, calendar)
        rows = session_feeds.expected_rows([source.rows for source in named], options.most_bars)
        tables = tables_with(tables, opened.manifest.capabilities)
        running = ActiveRun(options, folder, opened, feeds, store, tables, rows, calendar)
        async with aclosing(opened.answers.providers):
            manifest = await running.play(signals, on_progress)
        elapsed_s = clock.monotonic() - started
        terms: dict[str, Any] = {"elapsed_s": elapsed_s, "rate": options.inference_rate}
        return await report_of(manifest, folder, running.played, store, tables, **terms)


async def loaded_tables(options: RunOptions) -> Tables:
    """Read the tables of models and prices of a run's configuration, with the rows of its adapters."""

    def read() -> Tables:
        config = options.config
        factories = {
            name: factory_of(
                name, config.providers[name], origin=config.origin_of(f"providers.{name}.adapter")
            )
            for name in options.asked
            if name in config.providers
        }
        return Tables(*tables_of(config, factories))

    return await asyncio.to_thread(read)


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run in progress: its options, its inputs, and its result so far.

    `rows` is the number of bars of all feeds together, or None if it is not known. `calendar` is that of a
    new run, and the kept bars of a resumed run have theirs.
    """

    options: RunOptions
    folder: SessionFolder
    opened: PreparedRun
    feeds: Sequence[session_feeds.ReadAhead]
    store: port_adapters.Log
    tables: Tables
    rows: int | None
    calendar: ExchangeCalendar | None = None
    played: SessionResult = field(default_factory=SessionResult)
    outage: ProviderOutage = field(default_factory=ProviderOutage)

    async def play(self, signals: StopSignals, on_progress: OnProgress) -> RunManifest:
        """Run the session to its end, write its decisions, and return the final manifest."""
        manifest = self.opened.manifest
        started = _start_of(manifest, resumed=self.opened.earlier is not None)
        start_id = derived_id(RunStarted.KIND, manifest.session_id, manifest.run_number, started.start_number)
        # The manifest is written after the end of the log, so that a manifest of an ended run always has a
        # complete log.
        async with run_on_record(self.store, started, event_id=start_id) as summary:
            await self._play(signals, on_progress, summary)
        ended = {"bars_done": summary.bars_done, "interrupted": summary.interrupted, "digest": summary.digest}
        manifest = manifest.model_copy(update=ended)
        await asyncio.to_thread(self.folder.write_manifest, manifest)
        return manifest

    async def _play(self, signals: StopSignals, on_progress: OnProgress, summary: RunSummary) -> None:
        manifest = self.opened.manifest
        log = DecisionLog(self.folder.decisions(manifest.run_number))
        earlier = self.opened.earlier.bars if self.opened.earlier else {}
        fed = {symbol: kept.count for symbol, kept in earlier.items()}
        bars = BarFiles(self.folder, manifest, fed, streams=self._streams)
        stage = self._stage()
        await log.open()
        await bars.open()

        async def before_slice(moment: TimeSlice) -> None:
            await bars.append(moment.bars)

        async def after_slice(moment: TimeSlice, lines: Sequence[bytes]) -> None:
            await log.append(lines)
            self._refuse_misses()
            self._refuse_outage()
            on_progress(self._progress(moment))

        def wrap(gateway: AskingGateway) -> AskingGateway:
            return bars.around(self.outage.around(gateway))

        def on_start(session: TradingSession) -> None:
            self.played.baselines = trading.baselines(
                self.played.instruments, self.opened.manifest.data[0].name
            )
            signals.hold(session)

        observer = SessionObserver(after_slice, before_slice, wrap=wrap, on_start=on_start)
        try:
            await play_session(stage, self.played, observer)
        finally:
            summary.bars_done = self.played.bars_done
            await bars.write()
        summary.interrupted, summary.digest, summary.bars = signals.came, log.digest, bars.fed

    @property
    def _streams(self) -> set[str]:
        """The symbols of standard input."""
        return {
            source.symbol
            for source in self.opened.manifest.data
            if session_feeds.without_symbol(source.name) == session_feeds.STDIN
        }

    def _grace(self) -> GracePeriod | None:
        # With one feed no bar can be late. A backtest waits for every bar, so that its time slices do not
        # depend on the speed of the sender.
        clock = trading.wall_clock(self.opened.manifest.mode)
        if clock is None or not self._streams or len(self.feeds) == 1:
            return None
        earlier = self.opened.earlier.bars if self.opened.earlier else {}
        return GracePeriod(
            clock,
            self.options.grace,
            self._streams,
            kept={symbol: bars.count for symbol, bars in earlier.items()},
            kept_until=self._known_until,
            calendar=self._calendar,
        )

    def _silence(self) -> SilenceLimit:
        manifest = self.opened.manifest
        clock = trading.wall_clock(manifest.mode)
        return SilenceLimit(manifest.silent_after, self._calendar, clock, self._known_until)

    @property
    def _known_until(self) -> datetime:
        """The last close of an interrupted run."""
        earlier = self.opened.earlier.bars.values() if self.opened.earlier else ()
        return max((bars.last_close for bars in earlier), default=EPOCH)

    @property
    def _calendar(self) -> Calendar | None:
        earlier = self.opened.earlier.bars.values() if self.opened.earlier else ()
        return next((bars.grid.calendar for bars in earlier), self.calendar)

    def _stage(self) -> SessionSetup:
        options, manifest = self.options, self.opened.manifest
        feeds = [self._feed(feed) for feed in self.feeds]
        budget = RunBudget(options, self.opened, self.store)
        tenants = {options.tenant: options.tenant_row}
        asked = {
            "providers": dict(options.asked),
            "tenants": tenants,
            "concurrency": options.workers,
            "folder": None,
        }
        return SessionSetup(
            session_id=manifest.session_id,
            config=options.config.model_copy(update=asked),
            ports=Ports(store=self.store, tables=self.tables, restore=budget.restore),
            symbols=[feed.symbol for feed in feeds],
            data=manifest.data[0].name,
            agent=self.opened.agent,
            ends_on_error=manifest.mode == "backtest",
            risk=manifest.risk,
            economics=manifest.economics,
            inference_rate=manifest.inference_rate,
            zone=manifest.zone,
            resumes=self._resumes(),
            grace=self._grace(),
            silence=self._silence(),
            feeds=feeds,
            most_bars=options.most_bars,
            answers=self.opened.answers,
            clock=trading.clock_for(manifest.mode, paced=options.asks_models),
            earlier_calls=None if self.opened.earlier is None else self.opened.earlier.asked,
        )

    def _resumes(self) -> ResumeSource:
        options, manifest, earlier = self.options, self.opened.manifest, self.opened.earlier
        if manifest.mode == "backtest":
            return NoResumes()
        place = ControlsPlace(options.out, options.config.ledger.url, manifest.tenant)
        if earlier is None:
            return OperatorResumes(place, manifest.session_id, RecordedResumes())
        fed = [kept.last_close for kept in earlier.bars.values()]
        return OperatorResumes(place, manifest.session_id, earlier.resumes, fed)

    def _feed(self, feed: session_feeds.ReadAhead) -> BarFeed:
        fed = self.opened.earlier.bars[feed.symbol] if self.opened.earlier else None
        calendar = self._calendar
        if fed is not None and fed.count:
            before = fed.feed()
        elif calendar is not None:
            before = trading.bars_feed((), symbol=feed.symbol, name=feed.name)
        else:
            return session_feeds.CheckedFeed(feed, feed.name, feed.steps)
        resumed = session_feeds.ResumedFeed(before, feed, calendar)
        return session_feeds.CheckedFeed(resumed, feed.name, feed.steps)

    def _refuse_misses(self) -> None:
        recorded = self.opened.answers.recorded
        if self.options.provider == "recorded" and recorded is not None and recorded.misses:
            raise ReplayMissError(recorded.misses, bars=self.played.bars_done)

    def _refuse_outage(self) -> None:
        if self.outage.failure is not None:
            provider, reason = self.outage.failure
            raise UnusableProviderError(provider, reason, begun=True)

    def _progress(self, moment: TimeSlice) -> RunProgress:
        counters = self.played.counters
        return RunProgress(
            bars_done=self.played.bars_done,
            bars_total=self.rows,
            as_of=moment.at,
            calls=counters.calls,
            fills=counters.fills,
        )


def _start_of(manifest: RunManifest, *, resumed: bool) -> RunStarted:
    return RunStarted(
        session_id=manifest.session_id,
        run_number=manifest.run_number,
        start_number=manifest.starts,
        resumed=resumed,
        mode=manifest.mode,
        provider=manifest.provider,
        model=manifest.model,
        data=tuple(RunData(name=source.name, symbol=source.symbol) for source in manifest.data),
        seed=manifest.seed,
        package=__version__,
        config_sha256=manifest.config_sha256,
        first_seq=manifest.first_seq,
    )


def _refuse_unknown_principal(options: RunOptions) -> None:
    """Raise `ConfigError` for an unknown principal, or a missing one if the policy has principals.

    Reads files.
    """
    config = options.config
    problems = list(principal_problems(config))
    if not problems and config.sign_as and config.policy is None and config.principals_folder is None:
        allowed = "a name of a policy that has principals: --policy, or policy in the configuration"
        problems.append(ConfigProblem(config.origin_of("sign_as"), "sign_as", repr(config.sign_as), allowed))
    if problems:
        raise ConfigError(problems)
