"""How a run begins: as a new one, or where an interrupted one has stopped."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentic_trading import __version__
from agentic_trading.app import wire
from agentic_trading.app.feeds import Source, read_bars
from agentic_trading.app.folder import RunManifest, SessionFolder
from agentic_trading.app.intake import ReadAhead
from agentic_trading.app.options import OptionError, RunOptions
from agentic_trading.app.words import counted
from agentic_trading.clock import SystemClock
from agentic_trading.desk.market.bar import EPOCH, Bar
from agentic_trading.ids import derived_id
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import InteractionStore


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an interrupted run has left: its answers, what they cost at most, and the bars that it was fed."""

    answers: wire.Recording
    spent_nusd: int
    bars: Mapping[str, Sequence[Bar]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that may begin: its manifest is written. `earlier` is None for a new one."""

    manifest: RunManifest
    answers: wire.Answers
    earlier: Earlier | None = None


async def new_run(
    options: RunOptions, folder: SessionFolder, named: Sequence[Source], store: wire.Log
) -> Opened:
    """Begin the folder's next run; nothing is written unless it can.

    Raises `OptionError` or `FaultsError` for who shall answer, `StoreError` for a folder or log that cannot be used,
    `StoreLockedError` while another process runs in the folder.
    """
    recorded = await _recorded(options)
    answers = await _answers(options, recorded, None)
    await asyncio.to_thread(folder.prepare)
    await store.open()
    run_number = await asyncio.to_thread(folder.last_run) + 1
    symbols = [source.data.symbol for source in named]
    manifest = RunManifest(
        package=__version__,
        session_id=_session_id(options, recorded, answers, run_number, symbols),
        run_number=run_number,
        mode=options.mode,
        answers=options.provider,
        provider=answers.llm,
        model=answers.model,
        data=tuple(source.data for source in named),
        bars=options.bars,
        budget_usd=options.budget_usd,
        inject=options.inject,
        seed=options.seed,
        workers=options.workers,
        first_seq=(await store.verify()).lines,
        started_at=SystemClock().now(),
    )
    await asyncio.to_thread(folder.write_manifest, manifest)
    return Opened(manifest, answers)


async def resumed_run(
    options: RunOptions, folder: SessionFolder, feeds: Sequence[ReadAhead], store: wire.Log
) -> Opened:
    """Go on with the folder's last run, with its answers and bars; budget, bars and workers are those asked for now.

    Raises what `new_run` raises, and `OptionError` for a folder without a run, for other inputs than the run was
    started with (its log would mix two sessions), for fewer bars than it was fed, and for a run that has come to its
    end if there is nothing more to feed it: nothing is written then.
    """
    await _resumable(options, folder, feeds)
    await asyncio.to_thread(folder.prepare)
    await store.open()
    # Once more: until the lock was ours, another process may have ended the run.
    manifest = await _resumable(options, folder, feeds)
    earlier = await left_by(folder, manifest, store)
    answers = await _answers(options, await _recorded(options), earlier)
    goes_on = {
        "bars": options.bars,
        "budget_usd": options.budget_usd,
        "workers": options.workers,
        "interrupted": False,
        "digest": None,
    }
    manifest = manifest.model_copy(update=goes_on)
    await asyncio.to_thread(folder.write_manifest, manifest)
    return Opened(manifest, answers, earlier)


async def left_by(folder: SessionFolder, manifest: RunManifest, store: InteractionStore) -> Earlier:
    """Return what a run has left in the log and beside it; a call of unknown end counts as what it could cost."""
    interactions: list[LLMInteraction] = []
    dispatched: dict[tuple[str, int], int] = {}
    async for entry in store.scan(manifest.first_seq):
        record = entry.record
        if isinstance(record, LLMInteraction):
            interactions.append(record)
        elif record.kind == "attempt.dispatched":
            dispatched[record.causation_id, record.body["attempt"]] = record.body["reserved_nusd"]
    for one in interactions:
        dispatched.pop((one.envelope.envelope_id, one.result.attempt_number), None)
    spent = sum(one.result.cost_nusd for one in interactions) + sum(dispatched.values())
    return Earlier(wire.recording(interactions), spent, await _fed(folder, manifest))


async def recorded_attempts(folder: SessionFolder, manifest: RunManifest) -> list[LLMInteraction]:
    """Return what was answered in one run of a session, in the log's order.

    Raises `StoreError` for a log that is missing or broken.
    """
    last_seq = await asyncio.to_thread(folder.last_seq, manifest)
    records = wire.records_of(folder.log)
    try:
        entries = [entry async for entry in records.scan(manifest.first_seq)]
    finally:
        await records.aclose()
    return [
        entry.record
        for entry in entries
        if isinstance(entry.record, LLMInteraction) and (last_seq is None or entry.seq <= last_seq)
    ]


async def _recorded(options: RunOptions) -> RunManifest | None:
    """Return the manifest of the run whose answers shall be given again, if that was asked for."""
    if options.recorded_from is None:
        return None
    return await asyncio.to_thread(SessionFolder(options.recorded_from).read_manifest, option="--from")


async def _answers(
    options: RunOptions, recorded: RunManifest | None, earlier: Earlier | None
) -> wire.Answers:
    """Return who answers a run: the rules, or an earlier session; an interrupted run's own answers go first."""
    if recorded is None or options.recorded_from is None:
        return wire.rules(
            inject=options.inject, seed=options.seed, recorded=earlier.answers if earlier else None
        )
    attempts = await recorded_attempts(SessionFolder(options.recorded_from), recorded)
    return wire.replayed(wire.recording(attempts), recorded.provider, recorded.model)


def _session_id(
    options: RunOptions,
    recorded: RunManifest | None,
    answers: wire.Answers,
    run_number: int,
    symbols: Sequence[str],
) -> str:
    """Return the id that all ids of a run are made from.

    A recording played into a folder of its own keeps the id, and so the digest; in a log that holds other runs, the
    same ids would be taken for the same records.
    """
    if recorded is not None:
        own = recorded.session_id
        return own if run_number == 1 else derived_id("session", own, run_number)
    return derived_id("session", options.mode, answers.llm, answers.model, options.seed, run_number, *symbols)


async def _resumable(options: RunOptions, folder: SessionFolder, feeds: Sequence[ReadAhead]) -> RunManifest:
    """Return the manifest of the run that shall go on, if it can; raises `OptionError`."""
    manifest = await asyncio.to_thread(folder.read_manifest, option="--out")
    _refuse_other_inputs(options, manifest, feeds)
    fed = await _fed(folder, manifest)
    most = max((len(bars) for bars in fed.values()), default=0)
    if options.bars is not None and options.bars < most:
        raise OptionError("--bars", options.bars, f"{most} and more, which run {manifest.run_number} was fed")
    if manifest.has_ended and sum(map(len, fed.values())) < manifest.bars_done:
        was = f"run {manifest.run_number}, which has ended, and whose {counted(manifest.bars_done, 'bar')} are not all here"
        raise OptionError("--resume", was, "a run with the files of bars that it was fed")
    if manifest.has_ended and (options.bars == most or not await _goes_on(feeds, fed)):
        was = f"run {manifest.run_number}, which has come to its end after {counted(most, 'bar')} of a symbol"
        raise OptionError(
            "--resume", was, "a run that was interrupted, or a source with more bars and --bars for them"
        )
    return manifest


async def _fed(folder: SessionFolder, manifest: RunManifest) -> dict[str, list[Bar]]:
    """Return the bars that a run was fed, by symbol."""
    run = manifest.run_number
    symbols = [source.symbol for source in manifest.data]
    return {symbol: await read_bars(folder.bars(run, symbol), symbol) for symbol in symbols}


async def _goes_on(feeds: Sequence[ReadAhead], fed: Mapping[str, Sequence[Bar]]) -> bool:
    """Say whether a source has a bar beyond those that were fed; waits for the next one of a stream."""
    for feed in feeds:
        last = fed[feed.symbol][-1].close_time if fed[feed.symbol] else EPOCH
        if await feed.show(1, after=last):
            return True
    return False


def _refuse_other_inputs(options: RunOptions, manifest: RunManifest, feeds: Sequence[ReadAhead]) -> None:
    asked_and_before = {
        "--data": (",".join(feed.name for feed in feeds), ",".join(source.name for source in manifest.data)),
        "--mode": (options.mode, manifest.mode),
        "--provider": (options.provider, manifest.answers),
        "--inject": (options.inject, manifest.inject),
        "--seed": (options.seed, manifest.seed),
    }
    for option, (asked, before) in asked_and_before.items():
        if asked != before:
            allowed = f"{before!r}, as run {manifest.run_number} was started with"
            raise OptionError(option, repr(asked), allowed)
