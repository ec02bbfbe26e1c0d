"""The state of an interrupted run, and the checks before it is resumed."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from agentic_trading.client.call_log import EarlierCalls
from agentic_trading.desk.execution.risk_events import RiskResumed
from agentic_trading.desk.planning.params import FAMILIES, PlanTerms
from agentic_trading.desk.session.agents import agent_of_run
from agentic_trading.desk.session.calendars import kept_calendar
from agentic_trading.desk.session.entry_resumes import RecordedResumes
from agentic_trading.desk.session.feeds import (
    FRAME,
    FRAMES_ARE_IN_CODE,
    KeptBars,
    ReadAhead,
    kept_bars,
    without_symbol,
)
from agentic_trading.desk.session.lengths import refuse_other_lengths
from agentic_trading.desk.session.options import RunOptions, plan_on_record
from agentic_trading.governance.events import kinds_to_read
from agentic_trading.governance.ledger import LedgerEntry
from agentic_trading.governance.rebuild import LedgerRebuild, LostAttempt
from agentic_trading.llm.event import CallRequested, CallUnanswered
from agentic_trading.llm.facts import EVERYTHING, RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.log_line import INTERACTION
from agentic_trading.llm.store import LogEntry, Records
from agentic_trading.operate.choices import CONFIGURED, pluralize
from agentic_trading.operate.log_check import check_last_run
from agentic_trading.operate.providers import asked_providers, base_url_of
from agentic_trading.operate.session_folder import BusPlace, RunManifest, SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.urls import without_password

LEFT_OUT: Final = "left out"
NowAndBefore = tuple[object, object]


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """The state of an interrupted run.

    It has the answers, their charges, the bars, the calls over a bus, and the operators' resumes of entries.
    """

    answers: port_adapters.Recording
    bookings: Sequence[LedgerEntry]
    lost: Mapping[str, LostAttempt]
    bars: Mapping[str, KeptBars]
    asked: EarlierCalls
    resumes: RecordedResumes = field(default_factory=RecordedResumes)

    @property
    def spent_nusd(self) -> int:
        """The maximum cost of its calls, in nano-dollars."""
        return sum(one.charged.nusd for one in self.bookings)

    @property
    def calls(self) -> int:
        """The number of sent calls in the ledger's count, without calls that certainly never arrived."""
        return sum(one.charged.calls for one in self.bookings)

    def without_lost(self) -> "InterruptedRun":
        """Return the state without lost calls, for a run that can repeat its calls in this process."""
        kept = [one for one in self.bookings if one.request.reservation_id not in self.lost]
        return replace(self, bookings=kept, lost={})


async def refuse_incomplete(
    folder: SessionFolder, manifest: RunManifest, records: port_adapters.LogRecords
) -> None:
    """Raise `StoreError` if the end of the log or the bars of an ended run were changed."""
    # A killed run cannot be checked against its end, because its end is not on record.
    if manifest.digest is None:
        return
    # Only the end, because every line would take as long as the log has grown. The run's own calls are read next.
    checked = await check_last_run(records, folder)
    for finding in checked.of_run((manifest.session_id, manifest.run_number)):
        raise finding.error(". Restore the session's files. The session was not changed")


class SelectableRecords(Records, Protocol):
    """The records of a log, of which a selection can be read."""

    def entries(self, query: RecordQuery = EVERYTHING) -> AsyncGenerator[LogEntry]:
        """Yield the entries of the selected records, in the log's order."""
        ...


async def read_interrupted_run(
    folder: SessionFolder, manifest: RunManifest, records: SelectableRecords
) -> InterruptedRun:
    """Return the state of a run from its folder.

    Of the log, only the calls and the events about calls and money of this run are read. A call with an
    unknown outcome counts with its maximum cost.
    """
    answers, asked, resumes = port_adapters.recording(), EarlierCalls(), RecordedResumes()
    rebuild = LedgerRebuild(manifest.tenant, manifest.mode)
    kinds = (
        INTERACTION,
        CallRequested.KIND,
        CallUnanswered.KIND,
        RiskResumed.KIND,
        *await kinds_to_read(records),
    )
    async with aclosing(records.entries(RecordQuery(kind=kinds, after=manifest.first_seq))) as entries:
        async for entry in entries:
            rebuild.read(entry.record)
            asked.read(entry.record)
            resumes.read(entry.record)
            if isinstance(entry.record, LLMInteraction):
                answers.add(entry.record)
    fed = await _fed(folder, manifest)
    return InterruptedRun(answers, rebuild.entries(), rebuild.lost(), fed, asked, resumes)


async def resumable_manifest(
    options: RunOptions, folder: SessionFolder, feeds: Sequence[ReadAhead]
) -> RunManifest:
    """Return the manifest of the run to resume. Raises `OptionError` if the run cannot be resumed."""
    manifest = await asyncio.to_thread(folder.read_manifest, option="--out")
    refuse_other_inputs(options, manifest, [feed.name for feed in feeds])
    refuse_other_lengths(feeds, manifest)
    fed = await _fed(folder, manifest)
    most = max((bars.count for bars in fed.values()), default=0)
    if options.most_bars is not None and options.most_bars < most:
        allowed = f"{most - options.warm_up} or more, because run {manifest.run_number} has used this many"
        raise OptionError("--bars", options.bars, allowed)
    if manifest.has_ended and sum(bars.count for bars in fed.values()) < manifest.bars_done:
        was = f"run {manifest.run_number}, which has ended, and whose {pluralize(manifest.bars_done, 'bar')} are not all in its files"
        raise OptionError("--resume", was, "a run with complete files of bars")
    if manifest.has_ended and (options.most_bars == most or not await _has_more_bars(feeds, fed)):
        was = f"run {manifest.run_number}, which has ended after {pluralize(most, 'bar')} of a symbol"
        raise OptionError(
            "--resume", was, "an interrupted run, or a source with more bars and a larger --bars"
        )
    return manifest


async def _fed(folder: SessionFolder, manifest: RunManifest) -> dict[str, KeptBars]:
    """Return the bars that a run has used, by symbol."""
    run, calendar = manifest.run_number, await kept_calendar(folder, manifest)
    return {
        each.symbol: await kept_bars(folder.bars(run, each.symbol), each, calendar) for each in manifest.data
    }


async def _has_more_bars(feeds: Sequence[ReadAhead], fed: Mapping[str, KeptBars]) -> bool:
    """Return whether a source has a later bar than the run. Waits for the next bar of a stream."""
    for feed in feeds:
        if await feed.skip_to(fed[feed.symbol].last_close):
            return True
    return False


def refuse_other_inputs(options: RunOptions, manifest: RunManifest, names: Sequence[str]) -> None:
    """Raise `OptionError` for an input that a resumed run cannot change.

    `names` are the names of its data now.
    """
    agent_of_run(options.agent, manifest)
    before_names = dict.fromkeys(source.name for source in manifest.data)
    if tuple(names) != tuple(before_names) and all(without_symbol(name) == FRAME for name in before_names):
        was = f"{','.join(names)}, and run {manifest.run_number} traded data frames"
        raise OptionError("--data", was, f"the same bars. {FRAMES_ARE_IN_CODE}")
    now_and_before: dict[str, NowAndBefore] = {
        "--data": (",".join(dict.fromkeys(names)), ",".join(before_names)),
        "--mode": (options.mode, manifest.mode),
        "--provider": (options.provider, manifest.answers),
        "--model": (options.model or manifest.model, manifest.model),
        "--base-url": (base_url_of(options), manifest.base_url),
        "--inject": (options.inject, manifest.inject),
        "--seed": (options.seed, manifest.seed),
        "the tenant": (options.tenant, manifest.tenant),
        "[risk]": (options.config.risk.on_record, manifest.risk.on_record),
        "[economics]": (options.config.economics.on_record, manifest.economics.on_record),
        "--inference-rate": (options.rate_text, manifest.inference_rate),
        "zone": (options.config.zone, manifest.zone),
        "--calendar": (options.calendar, manifest.calendar),
        "--silent-after": (
            manifest.silent_after if options.silent_after is None else options.silent_after,
            manifest.silent_after,
        ),
        **terms_now_and_before(options, manifest),
    }
    # The bus must be the same, because its claims and its ledger have the calls that were already paid for.
    bus, before_bus = bus_of(options), manifest.bus
    now_and_before["--bus"] = (bus.url or LEFT_OUT, before_bus.url or LEFT_OUT)
    now_and_before["bus.namespace"] = (bus.namespace or LEFT_OUT, before_bus.namespace or LEFT_OUT)
    if bus.url:
        now_and_before["--ledger"] = (bus.ledger, before_bus.ledger)
    if options.provider == CONFIGURED:
        config, kept = options.config, manifest.models.keys()
        before_fallback = {workflow: row.to for workflow, row in manifest.fallback.items()}
        fallback = {workflow: row.to for workflow, row in config.fallback.items() if workflow in kept}
        models = {workflow: name for workflow, name in config.models.items() if workflow in kept}
        now_and_before["[models]"] = (models, dict(manifest.models))
        now_and_before["[fallback]"] = (fallback, before_fallback)
        now_and_before["[providers]"] = (asked_providers(options), dict(manifest.providers))
    refuse_changes(now_and_before, f"run {manifest.run_number}")


def refuse_changes(now_and_before: Mapping[str, NowAndBefore], run: str) -> None:
    """Raise `OptionError` for the first option that differs from the start of `run`."""
    for option, (now, before) in now_and_before.items():
        if now != before:
            raise OptionError(option, repr(now), f"{before!r}, because {run} was started with it")


def terms_now_and_before(options: RunOptions, manifest: RunManifest) -> Mapping[str, NowAndBefore]:
    """Return the terms of a plan now, and in the run of `manifest`."""
    before = plan_on_record(manifest) or PlanTerms()
    now = options.plan_terms(before) or before
    named = options.family or (now.family if before.family in FAMILIES else LEFT_OUT)
    return {"--family": (named, before.family), "--rounds": (now.rounds, before.rounds)}


def bus_of(options: RunOptions) -> BusPlace:
    """Return the bus and the ledger of a run's calls, without passwords."""
    config = options.config
    bus, ledger = config.bus.url, config.ledger.url
    if bus is None or ledger is None:
        return BusPlace()
    return BusPlace(
        url=without_password(bus), namespace=config.bus.namespace, ledger=without_password(ledger)
    )
