"""The main job: from options to a session, its log, and a report."""

import asyncio
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from threading import current_thread, main_thread
from zoneinfo import ZoneInfo

import structlog

from agentic_trading import __version__
from agentic_trading.app import budget_controls, trading
from agentic_trading.app.feeds import CheckedFeed, ReadAhead, ResumedFeed, open_feeds, sources
from agentic_trading.app.options import MODELS, OptionError, RunOptions, pluralize
from agentic_trading.app.providers import ProviderOutage, UnusableProviderError
from agentic_trading.app.report import RunProgress, RunReport
from agentic_trading.app.report_builder import report_of
from agentic_trading.app.run_setup import PreparedRun, new_run, resumed_run
from agentic_trading.app.session_folder import BarFiles, RunManifest, SessionFolder
from agentic_trading.app.session_run import SessionObserver, SessionResult, SessionSetup, play_session
from agentic_trading.clock import SystemClock
from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.limits import Limit, limit_text
from agentic_trading.governance.rebuild import LedgerRebuild, rollback_error
from agentic_trading.ids import derived_id
from agentic_trading.llm.events import RunData, RunStarted
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.runs import RunSummary, run_on_record
from agentic_trading.platform.adapters import ledger_of, worker_ledger_of
from agentic_trading.platform.tables import Tables

log = structlog.get_logger()


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
    would cancel it between any two steps of whatever the loop is doing. Signals reach the main thread only: on any
    other one nothing is changed, and nothing comes.
    """
    signals = StopSignals(asyncio.current_task())
    loop = asyncio.get_running_loop()
    heard = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()

    def first(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        signals.stop()

    for number in heard:
        loop.add_signal_handler(number, first, number)
    try:
        yield signals
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


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
    tables = await asyncio.to_thread(trading.load_tables, options.models_file, options.prices_file)
    feeds = await open_feeds(named)
    folder = SessionFolder(options.out)
    oversight = await asyncio.to_thread(_oversight, options)
    store = trading.log_for(options.mode, folder.log, can_be_repeated=options.is_repeatable)
    async with aclosing(oversight), aclosing(store):
        await _refuse_unusable_server(options, oversight)
        if options.resume:
            opened = await resumed_run(options, folder, feeds, store, tables)
        else:
            opened = await new_run(options, folder, named, store, tables)
        rows = expected_rows([source.rows for source in named], options.most_bars)
        ledger = await asyncio.to_thread(_ledger, options)
        running = ActiveRun(options, folder, opened, feeds, store, tables, rows, oversight, ledger)
        async with aclosing(opened.answers.provider), aclosing(running.ledger):
            await running.set_budget()
            manifest = await running.play(signals, on_progress)
        elapsed_s = clock.monotonic() - started
        return await report_of(manifest, folder, running.played, store, tables, elapsed_s=elapsed_s)


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run under way: its options, what it runs on, and its result so far.

    `rows` is how many bars all feeds together will give, None where that is unknown.
    """

    options: RunOptions
    folder: SessionFolder
    opened: PreparedRun
    feeds: Sequence[ReadAhead]
    store: trading.Log
    tables: Tables
    rows: int | None
    oversight: budget_controls.BudgetControls
    ledger: Ledger
    played: SessionResult = field(default_factory=SessionResult)
    outage: ProviderOutage = field(default_factory=ProviderOutage)

    async def set_budget(self) -> None:
        """Set the run's budget in the controls, where operators see it and can change it, and restore what is spent.

        A limit that is set already is kept where no budget was given to a run that goes on, and on a shared server. There
        a run may ask for less: raises `OptionError` for more, and `LedgerRolledBackError` if the ledger is
        behind what the log has seen of it.
        """
        options, tenant = self.options, trading.DEFAULT_TENANT
        limit = budget_controls.tenant_limit(options.budget_nusd, options.max_calls)
        present = (await self.oversight.controls.read(tenant)).limit(limit.scope, limit.id, limit.window)
        if options.ledger_url is not None:
            await self._require_checkpoint()
            if options.budget_is_given:
                _refuse_to_raise(limit, present)
                await budget_controls.set_budget(self.oversight.controls, tenant, limit)
            return
        if present is None or options.budget_is_given or self.opened.earlier is None:
            await budget_controls.set_budget(self.oversight.controls, tenant, limit)
        if self.opened.earlier is not None:
            await self.ledger.restore(tenant, self.opened.earlier.bookings)

    async def _require_checkpoint(self) -> None:
        """Require the ledger to be as far as the log has seen it; raises `LedgerRolledBackError`."""
        rebuild = LedgerRebuild(trading.DEFAULT_TENANT, self.opened.manifest.mode)
        async for entry in self.store.scan():
            rebuild.read(entry.record)
        if rebuild.checkpoint is not None:
            await self.ledger.require_at_least(trading.DEFAULT_TENANT, rebuild.checkpoint)
            found = await self.ledger.checkpoint(trading.DEFAULT_TENANT)
            if (gone := rollback_error(trading.DEFAULT_TENANT, rebuild.checkpoint, found)) is not None:
                raise gone

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
        bars = BarFiles(self.folder, manifest, {symbol: kept.count for symbol, kept in earlier.items()})
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

        observer = SessionObserver(after_slice, before_slice, wrap=self.outage.around, on_start=signals.hold)
        try:
            await play_session(stage, self.played, observer)
        finally:
            summary.bars_done = self.played.bars_done
        summary.interrupted, summary.digest, summary.bars = signals.came, log.digest, bars.fed

    def _stage(self) -> SessionSetup:
        options, manifest = self.options, self.opened.manifest
        feeds = [self._feed(feed) for feed in self.feeds]
        return SessionSetup(
            session_id=manifest.session_id,
            mode=manifest.mode,
            symbols=[feed.symbol for feed in feeds],
            feeds=feeds,
            most_bars=options.most_bars,
            answers=self.opened.answers,
            tables=self.tables,
            store=self.store,
            ledger=self.ledger,
            oversight=self.oversight,
            clock=trading.clock_for(manifest.mode, paced=options.provider in MODELS),
            # One model in this process answers one call at a time: a call that waits for it must not use up its time.
            workers=1 if options.provider == "local" else options.workers,
        )

    def _feed(self, feed: ReadAhead) -> BarFeed:
        fed = self.opened.earlier.bars[feed.symbol] if self.opened.earlier else None
        return CheckedFeed(
            ResumedFeed(fed.feed(), feed) if fed is not None and fed.count else feed, feed.name
        )

    def _refuse_misses(self) -> None:
        recorded = self.opened.answers.recorded
        if self.options.provider == "recorded" and recorded is not None and recorded.misses:
            raise ReplayMissError(recorded.misses, bars=self.played.bars_done)

    def _refuse_outage(self) -> None:
        if self.outage.failure is not None:
            raise UnusableProviderError(self.options.provider, self.outage.failure, begun=True)

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
        first_seq=manifest.first_seq,
    )


def _oversight(options: RunOptions) -> budget_controls.BudgetControls:
    """Return the budget controls of a run.

    In simulated time nothing may depend on how long a call really took: rates and breakers are for live providers.
    Raises `OptionError` for a principal that the policy does not know, and for one without a policy.
    """
    made = budget_controls.oversight(
        options.out,
        options.ledger_url,
        policy_file=options.policy_file,
        principal=options.principal,
        zone=_zone(options).key,
    )
    known = made.policy.principals if made.policy is not None else None
    if known is not None and options.principal not in known:
        was = repr(options.principal) if options.principal else "left out"
        raise OptionError("--principal", was, f"one that {options.policy_file} names: {', '.join(known)}")
    if options.principal and known is None:
        allowed = "a name of a policy that has principals, in --policy or AGENTIC_POLICY_FILE"
        raise OptionError("--principal", repr(options.principal), allowed)
    is_asked_live = options.mode == "paper" or options.provider in MODELS
    return made if is_asked_live else replace(made, limiter=None)


async def _refuse_unusable_server(options: RunOptions, oversight: budget_controls.BudgetControls) -> None:
    """Raise, before anything is written, for a shared server that is away or has no budget where none was given."""
    if options.ledger_url is None:
        return
    tenant, place = trading.DEFAULT_TENANT, budget_controls.host_of(options.ledger_url)
    limits = (await oversight.controls.read(tenant)).limits
    if not options.budget_is_given and not budget_controls.has_limits(limits):
        raise OptionError(
            "--budget-usd",
            f"left out, and {place} has no limit on tenant {tenant}",
            "an amount, or a limit that is set there: agentic-trading budget set tenant '*' --usd X",
        )
    ledger = await asyncio.to_thread(ledger_of, options.ledger_url)
    async with aclosing(ledger):
        await ledger.checkpoint(tenant)


def _ledger(options: RunOptions) -> Ledger:
    if options.ledger_url is not None:
        return worker_ledger_of(options.ledger_url, zone=_zone(options))
    return budget_controls.budget_ledger(
        options.budget_nusd, max_calls=options.max_calls, zone=_zone(options)
    )


def _zone(options: RunOptions) -> ZoneInfo:
    """Return where days and months begin."""
    return ZoneInfo("UTC" if options.settings is None else options.settings.zone)


def _refuse_to_raise(limit: Limit, present: Limit | None) -> None:
    """Raise `OptionError` for a budget above the one that an operator has set for all workers of the server."""
    if present is None or present.nusd is None or limit.nusd is None or limit.nusd <= present.nusd:
        return
    raise OptionError(
        "--budget-usd",
        f"{limit.nusd / NANO:g}, and {limit_text(present)} is set on the server",
        "as much or less; `agentic-trading budget set` raises it for all workers",
    )


def expected_rows(rows: Sequence[int | None], most: int | None) -> int | None:
    """Return how many bars feeds of `rows` bars will give, each at most `most`; None where that is unknown."""
    total = 0
    for each in rows:
        bound = most if each is None else min(each, most or each)
        if bound is None:
            return None
        total += bound
    return total
