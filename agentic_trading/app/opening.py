"""How a run begins: as a new one, or where an interrupted one has stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_trading import __version__
from agentic_trading.app import wire
from agentic_trading.app.feeds import Source, read_bars
from agentic_trading.app.folder import RunManifest, SessionFolder
from agentic_trading.app.options import OptionError, RunOptions
from agentic_trading.clock import SystemClock
from agentic_trading.desk.market.bar import Bar
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import InteractionStore


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an interrupted run has left: its answers, what they cost at most, and the bars that it was fed."""

    answers: wire.Recording
    spent_nusd: int
    bars: dict[str, list[Bar]]


async def new_run(
    options: RunOptions, folder: SessionFolder, named: Sequence[Source], store: InteractionStore
) -> RunManifest:
    """Return the manifest of the folder's next run, and write it; raises `StoreError` if the log is broken."""
    run_number = await asyncio.to_thread(folder.last_run) + 1
    recorded = None
    if options.recorded_from:
        recorded = await asyncio.to_thread(SessionFolder(options.recorded_from).read_manifest)
    llm, model = (recorded.provider, recorded.model) if recorded else (LLMProvider.RULES, wire.RULES_MODEL)
    symbols = [source.data.symbol for source in named]
    verified = await store.verify()
    manifest = RunManifest(
        package=__version__,
        session_id=recorded.session_id
        if recorded
        else derived_id("session", options.mode, llm, model, options.seed, run_number, *symbols),
        run_number=run_number,
        mode=options.mode,
        provider=llm,
        model=model,
        data=tuple(source.data for source in named),
        bars=options.bars,
        budget_usd=options.budget_usd,
        inject=options.inject,
        seed=options.seed,
        workers=options.workers,
        first_seq=verified.lines,
        started_at=SystemClock().now(),
    )
    await asyncio.to_thread(folder.write_manifest, manifest)
    return manifest


def resumable_run(options: RunOptions, folder: SessionFolder, named: Sequence[Source]) -> RunManifest:
    """Return the manifest of the folder's last run, to go on with it.

    Raises `OptionError` for other inputs than it was started with (its log would mix two sessions), and for a run
    that has come to its end.
    """
    manifest = folder.read_manifest()
    before = {
        "--data": ",".join(source.name for source in manifest.data),
        "--mode": manifest.mode,
        "--inject": manifest.inject,
        "--seed": manifest.seed,
    }
    asked = {
        "--data": ",".join(source.data.name for source in named),
        "--mode": options.mode,
        "--inject": options.inject,
        "--seed": options.seed,
    }
    for option, was in asked.items():
        if was != before[option]:
            allowed = f"{before[option]!r}, as run {manifest.run_number} was started with"
            raise OptionError(option, repr(was), allowed)
    if manifest.digest is not None and not manifest.interrupted and options.bars == manifest.bars:
        raise OptionError(
            "--resume", f"run {manifest.run_number}, which has ended", "a run that was interrupted"
        )
    return manifest


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
    run = manifest.run_number
    bars = {
        source.symbol: await read_bars(folder.bars(run, source.symbol), source.symbol)
        for source in manifest.data
    }
    return Earlier(wire.recording(interactions), spent, bars)


async def recorded_answers(folder: SessionFolder, manifest: RunManifest) -> wire.Recording:
    """Return what was answered in a run of a session; raises `StoreError` for a log that is missing or broken."""
    records = wire.records_of(folder.log)
    try:
        entries = [entry.record async for entry in records.scan(manifest.first_seq)]
    finally:
        await records.aclose()
    return wire.recording(record for record in entries if isinstance(record, LLMInteraction))


async def answers_for(options: RunOptions, earlier: Earlier | None) -> wire.Answers:
    """Return who answers a run: the rules, or an earlier session; an interrupted run's own answers go first."""
    if options.recorded_from is None:
        return wire.rules(
            inject=options.inject, seed=options.seed, recorded=earlier.answers if earlier else None
        )
    folder = SessionFolder(options.recorded_from)
    manifest = await asyncio.to_thread(folder.read_manifest)
    return wire.replayed(await recorded_answers(folder, manifest), manifest.provider, manifest.model)
