"""The main job: from options to a session, its log, and a report."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from agentic_trading import __version__
from agentic_trading.cancellation import on_first_signal
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import SystemClock
from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.bar_files import BarFiles
from agentic_trading.desk.session.budget_controls import RunBudget, refuse_unusable_server
from agentic_trading.desk.session.feeds import (
    STDIN,
    CheckedFeed,
    ReadAhead,
    ResumedFeed,
    open_feeds,
    sources,
    without_symbol,
)
from agentic_trading.desk.session.options import RunOptions, plan_on_record
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
from agentic_trading.ids import derived_id
from agentic_trading.llm.events import RunData, RunStarted
from agentic_trading.llm.runs import RunSummary, run_on_record
from agentic_trading.logger import get_logger
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.providers import ProviderOutage, UnusableProviderError
from agentic_trading.operate.session_folder import RunManifest, SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.adapters import factory_of
from agentic_trading.platform.check import principal_problems
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.tables import Tables, tables_of

log = get_logger()


@dataclass(slots=True)
class StopSignals:
    """Stops the session it holds on a signal, or the task while there is none; `came` says that there was one."""

    task: asyncio.Task[object] | None
    came: bool = False
    _session: TradingSession | None = None

    def hold(self, session: TradingSession) -> None:
        """Stop `session` when a signal comes from now on."""
        self._session = session

    def stop(self) -> None:
        """Take a signal."""
        self.came = True
        if self._session is not None:
            log.warning("stopping after the calls under way; the same signal again ends at once")
            self._session.stop()
        elif self.task is not None:
            self.task.cancel()


@contextmanager
def stop_on_signals() -> Generator[StopSignals]:
    """Turn the first SIGINT or SIGTERM into a stop; a second one of the same kind ends the program at once.

    Before a session is held the first one cancels the present task, from within the loop: a handler of Python's own
    would cancel it between any two steps of whatever the loop is doing.
    """
    signals = StopSignals(asyncio.current_task())
    with on_first_signal(signals.stop):
        yield signals


OnProgress = Callable[[RunProgress], None]


class ReplayMissError(TradingError):
    """A run from recorded answers asked for something that was not recorded."""

    def __init__(self, misses: Sequence[object], *, bars: int) -> None:
        self.misses = tuple(misses)
        self.bars = bars
        number = len(self.misses)
        which = (
            "1 answer that was asked for is" if number == 1 else f"{number} answers that were asked for are"
        )
        super().__init__(
            f"{which} not in the recording after {pluralize(self.bars, 'bar')}, the first is {self.misses[0]}; "
            "use the data and the --bars of the recorded run, or --provider rules"
        )


async def run_session(options: RunOptions, *, on_progress: OnProgress) -> RunReport:
    """Run a session into `options.out` and report on it; SIGINT and SIGTERM end it after the moment under way.

    Before the first moment a signal cancels this task. Raises `OptionError` for options that do not fit together or name
    nothing and for a source without a bar or with bars of another length, `WeightsError` and `UnusableProviderError` for
    a model that cannot be used, `StoreError` for a folder or log that cannot be used, and what a feed raises for a
    broken bar; all that was answered is on disk in any case.
    """
    with stop_on_signals() as signals:
        return await _run(options, signals, on_progress)


async def _run(options: RunOptions, signals: StopSignals, on_progress: OnProgress) -> RunReport:
    clock = SystemClock()
    started = clock.monotonic()
    named = await asyncio.to_thread(sources, options.data)
    tables = await loaded_tables(options)
    feeds = await open_feeds(named, options.timeframe, trading.wall_clock(options.mode))
    folder = SessionFolder(options.out)
    await asyncio.to_thread(_refuse_unknown_principal, options)
    durability = options.config.durability
    store = port_adapters.log_for(
        options.mode, folder.log, can_be_repeated=options.is_repeatable, durability=durability
    )
    async with aclosing(store):
        await refuse_unusable_server(options)
        if options.resume:
            opened = await resumed_run(options, folder, feeds, store, tables)
        else:
            opened = await new_run(options, folder, named, store, tables)
        rows = expected_rows([source.rows for source in named], options.most_bars)
        tables = tables_with(tables, opened.manifest.capabilities)
        running = ActiveRun(options, folder, opened, feeds, store, tables, rows)
        async with aclosing(opened.answers.providers):
            manifest = await running.play(signals, on_progress)
        elapsed_s = clock.monotonic() - started
        return await report_of(manifest, folder, running.played, store, tables, elapsed_s=elapsed_s)


async def loaded_tables(options: RunOptions) -> Tables:
    """Read the tables of models and prices that a run's configuration names, with the rows of the adapters it asks."""

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
    """A run under way: its options, what it runs on, and its result so far.

    `rows` is how many bars all feeds together will give, None where that is unknown.
    """

    options: RunOptions
    folder: SessionFolder
    opened: PreparedRun
    feeds: Sequence[ReadAhead]
    store: port_adapters.Log
    tables: Tables
    rows: int | None
    played: SessionResult = field(default_factory=SessionResult)
    outage: ProviderOutage = field(default_factory=ProviderOutage)

    async def play(self, signals: StopSignals, on_progress: OnProgress) -> RunManifest:
        """Play the session to its end and write what it decides; return the manifest of the ended run."""
        manifest = self.opened.manifest
        started = _start_of(manifest, resumed=self.opened.earlier is not None)
        start_id = derived_id(RunStarted.KIND, manifest.session_id, manifest.run_number, started.start_number)
        # The manifest says that the run has ended only when the log does.
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
        streams = {source.symbol for source in manifest.data if without_symbol(source.name) == STDIN}
        bars = BarFiles(self.folder, manifest, fed, streams=streams)
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

        def wrap(gateway: Gateway) -> Gateway:
            return bars.around(self.outage.around(gateway))

        def on_start(session: TradingSession) -> None:
            self.played.baselines = trading.baselines(self.played.instruments)
            signals.hold(session)

        observer = SessionObserver(after_slice, before_slice, wrap=wrap, on_start=on_start)
        try:
            await play_session(stage, self.played, observer)
        finally:
            summary.bars_done = self.played.bars_done
            await bars.write()
        summary.interrupted, summary.digest, summary.bars = signals.came, log.digest, bars.fed

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
            plan=plan_on_record(manifest),
            feeds=feeds,
            most_bars=options.most_bars,
            answers=self.opened.answers,
            clock=trading.clock_for(manifest.mode, paced=options.asks_models),
            earlier_calls=None if self.opened.earlier is None else self.opened.earlier.asked,
        )

    def _feed(self, feed: ReadAhead) -> BarFeed:
        fed = self.opened.earlier.bars[feed.symbol] if self.opened.earlier else None
        if fed is None or not fed.count:
            return CheckedFeed(feed, feed.name, feed.steps)
        return CheckedFeed(ResumedFeed(fed.feed(), feed, fed.grid.calendar), feed.name, feed.steps)

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
    """Raise `ConfigError` for a principal that the policy does not know, or none where it has some; reads files."""
    config = options.config
    problems = list(principal_problems(config))
    if not problems and config.sign_as and config.policy is None and config.principals_folder is None:
        allowed = "a name of a policy that has principals: --policy, or policy in the configuration"
        problems.append(ConfigProblem(config.origin_of("sign_as"), "sign_as", repr(config.sign_as), allowed))
    if problems:
        raise ConfigError(problems)


def expected_rows(rows: Sequence[int | None], most: int | None) -> int | None:
    """Return how many bars feeds of `rows` bars will give, each at most `most`; None where that is unknown."""
    total = 0
    for each in rows:
        bound = most if each is None else min(each, most or each)
        if bound is None:
            return None
        total += bound
    return total
