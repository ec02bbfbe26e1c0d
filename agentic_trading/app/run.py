"""The main job: from options to a session, its log, and a report."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from agentic_trading.app import wire
from agentic_trading.app.feeds import ResumedFeed, sources
from agentic_trading.app.folder import BarFiles, RunManifest, SessionFolder
from agentic_trading.app.intake import CheckedFeed, ReadAhead, open_feeds
from agentic_trading.app.opening import Opened, new_run, resumed_run
from agentic_trading.app.options import MODELS, RunOptions
from agentic_trading.app.outage import Outage, UnusableProviderError
from agentic_trading.app.play import Played, Stage, Watch, play
from agentic_trading.app.report import Progress, RunReport
from agentic_trading.app.result import report_of
from agentic_trading.app.signals import StopSignals, stopped_by_signals
from agentic_trading.app.words import counted
from agentic_trading.clock import SystemClock
from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.moments import Moment
from agentic_trading.errors import TradingError
from agentic_trading.governance.ledger import Ledger
from agentic_trading.llm.store import InteractionStore

OnProgress = Callable[[Progress], None]


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
            f"{which} not in the recording after {counted(self.bars, 'bar')}, the first is {self.misses[0]}; "
            "use the data and the --bars of the recorded run, or --provider rules"
        )


async def run(options: RunOptions, *, on_progress: OnProgress) -> RunReport:
    """Run a session into `options.out` and report on it; SIGINT and SIGTERM end it after the moment under way.

    Before the first moment a signal cancels this task. Raises `OptionError` for options that do not fit together or name nothing and for a source that holds no bar or
    bars of another length, `WeightsError` and `UnusableProviderError` for a model that cannot be asked, `StoreError` for a folder or log that cannot be used, and what a feed raises for a bar
    that is none; all that was answered is on disk in any case.
    """
    with stopped_by_signals() as signals:
        return await _run(options, signals, on_progress)


async def _run(options: RunOptions, signals: StopSignals, on_progress: OnProgress) -> RunReport:
    clock = SystemClock()
    started = clock.monotonic()
    named = await asyncio.to_thread(sources, options.data)
    tables = await asyncio.to_thread(wire.load_tables, options.models_file, options.prices_file)
    feeds = await open_feeds(named)
    folder = SessionFolder(options.out)
    store = wire.log_for(options.mode, folder.log, can_be_repeated=options.provider not in MODELS)
    async with aclosing(store):
        if options.resume:
            opened = await resumed_run(options, folder, feeds, store, tables)
        else:
            opened = await new_run(options, folder, named, store, tables)
        rows = expected_rows([source.rows for source in named], options.most_bars)
        running = Running(options, folder, opened, feeds, store, tables, rows)
        async with aclosing(opened.answers.provider):
            manifest = await running.to_the_end(signals, on_progress)
        elapsed_s = clock.monotonic() - started
        return await report_of(manifest, folder, running.played, store, tables, elapsed_s=elapsed_s)


@dataclass(frozen=True, slots=True)
class Running:
    """A run under way: what it was asked to be, what it runs on, and what it came to so far.

    `rows` is how many bars all feeds together will give, None where one does not know.
    """

    options: RunOptions
    folder: SessionFolder
    opened: Opened
    feeds: Sequence[ReadAhead]
    store: InteractionStore
    tables: wire.Tables
    rows: int | None
    played: Played = field(default_factory=Played)
    outage: Outage = field(default_factory=Outage)

    async def to_the_end(self, signals: StopSignals, on_progress: OnProgress) -> RunManifest:
        """Play the session and write what it decides; return the manifest of the run that has ended."""
        manifest = self.opened.manifest
        log = DecisionLog(self.folder.decisions(manifest.run_number))
        bars = BarFiles(self.folder, manifest, self.opened.earlier.bars if self.opened.earlier else {})
        stage = self._stage()
        await log.open()
        await bars.open()

        async def before_moment(moment: Moment) -> None:
            await bars.append(moment.bars)

        async def after_moment(moment: Moment, lines: Sequence[bytes]) -> None:
            await log.append(lines)
            self._refuse_misses()
            self._refuse_to_ask_in_vain()
            on_progress(self._progress(moment))

        watch = Watch(after_moment, before_moment, around=self.outage.around, hold=signals.hold)
        await play(stage, self.played, watch)
        ended = {"bars_done": len(self.played.bars), "interrupted": signals.came, "digest": log.digest}
        manifest = manifest.model_copy(update=ended)
        await asyncio.to_thread(self.folder.write_manifest, manifest)
        return manifest

    def _stage(self) -> Stage:
        options, manifest = self.options, self.opened.manifest
        feeds = [self._feed(feed) for feed in self.feeds]
        return Stage(
            session_id=manifest.session_id,
            mode=manifest.mode,
            symbols=[feed.symbol for feed in feeds],
            feeds=feeds,
            most_bars=options.most_bars,
            answers=self.opened.answers,
            tables=self.tables,
            store=self.store,
            ledger=self._ledger(),
            clock=wire.clock_for(manifest.mode, paced=options.provider in MODELS),
            # One model in this process answers one call at a time: who waits for it must not use up the call's time.
            workers=1 if options.provider == "local" else options.workers,
        )

    def _ledger(self) -> Ledger:
        options, earlier = self.options, self.opened.earlier
        spent_nusd, calls = (earlier.spent_nusd, earlier.calls) if earlier else (0, 0)
        calls_left = None if options.max_calls is None else max(0, options.max_calls - calls)
        return wire.budget_ledger(max(0, options.budget_nusd - spent_nusd), max_calls=calls_left)

    def _feed(self, feed: ReadAhead) -> BarFeed:
        fed = self.opened.earlier.bars[feed.symbol] if self.opened.earlier else ()
        return CheckedFeed(ResumedFeed(fed, feed) if fed else feed, feed.name)

    def _refuse_misses(self) -> None:
        recorded = self.opened.answers.recorded
        if self.options.provider == "recorded" and recorded is not None and recorded.misses:
            raise ReplayMissError(recorded.misses, bars=len(self.played.bars))

    def _refuse_to_ask_in_vain(self) -> None:
        if self.outage.failure is not None:
            raise UnusableProviderError(self.options.provider, self.outage.failure, begun=True)

    def _progress(self, moment: Moment) -> Progress:
        tally = self.played.tally
        return Progress(
            bars_done=len(self.played.bars),
            bars_total=self.rows,
            as_of=moment.at,
            calls=tally.calls,
            fills=tally.fills,
        )


def expected_rows(rows: Sequence[int | None], most: int | None) -> int | None:
    """Return how many bars feeds of `rows` bars will give, each at most `most`; None where nobody knows."""
    total = 0
    for each in rows:
        bound = most if each is None else min(each, most or each)
        if bound is None:
            return None
        total += bound
    return total
