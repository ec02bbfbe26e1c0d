"""A run is on record from its start to its end, and an end fits the lines before it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_trading.llm import InteractionStore, JsonFileInteractionStore, MemoryInteractionStore, StoreError
from agentic_trading.llm.errors import UnreadableBodyError
from agentic_trading.llm.event import KINDS, PLATFORM, Event, RunEnded, RunStarted
from agentic_trading.llm.runs import RunInLog, RunLog, RunSummary, WrongEnd, run_on_record, runs_in_log
from agentic_trading.llm.store import RunRecord
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.jsonl.writer import Durability
from tests.build import NOW, event

STARTED = RunStarted(session_id="session", mode="paper", package="0.1.0")

Log = JsonFileInteractionStore | MemoryInteractionStore


@pytest.fixture(params=["memory", "group", "relaxed"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    if request.param == "memory":
        return MemoryInteractionStore()
    return JsonFileInteractionStore(tmp_path / "log.jsonl", durability=Durability(request.param))


async def ended(log: InteractionStore) -> RunInLog:
    """Return the one run of a log, each of whose ends fits."""
    (run,), wrong = runs_in_log((await log.verify()).runs)
    assert wrong == []
    return run


async def test_run_start_and_end_frame_log(log: Log) -> None:
    async with run_on_record(log, STARTED, event_id="start") as summary:
        await log.record(event())
        summary.bars_done, summary.digest = 7, "d" * 64

    entries = [entry async for entry in log.scan()]
    run = await ended(log)
    await log.aclose()
    assert run.ended is not None
    assert (run.start_line, run.start_id, run.end_line, run.name) == (1, "start", 3, ("session", 1))
    assert (run.ended.lines, run.ended.head) == (2, entries[1].hash)
    assert (run.ended.bars_done, run.ended.digest, run.ended.interrupted) == (7, "d" * 64, False)
    first, last = entries[0].record, entries[-1].record
    assert isinstance(first, Event)
    assert isinstance(last, Event)
    assert (first.tenant_id, last.tenant_id, last.causation_id) == (PLATFORM, PLATFORM, first.id)


async def test_run_start_and_end_are_flushed(
    tmp_path: Path,
) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl", durability=Durability.RELAXED)
    seen = []
    async with run_on_record(store, STARTED, event_id="start"):
        seen.append(store.path.read_bytes().count(b"\n"))
    seen.append(store.path.read_bytes().count(b"\n"))
    await store.aclose()

    assert seen == [1, 2]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_failed_run_has_interrupted_end(error: type[BaseException], log: Log) -> None:
    with pytest.raises(error):
        async with run_on_record(log, STARTED, event_id="start"):
            raise error

    run = await ended(log)
    await log.aclose()
    assert run.ended is not None
    assert run.ended.interrupted


async def test_run_error_survives_closed_log(log: Log) -> None:
    async def failing_run() -> None:
        async with run_on_record(log, STARTED, event_id="start"):
            await log.aclose()
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        await failing_run()


async def test_unwritable_run_end_raises(log: Log) -> None:
    with pytest.raises(StoreError, match="closed"):
        async with run_on_record(log, STARTED, event_id="start"):
            await log.aclose()


async def test_run_end_fits_despite_concurrent_writes(log: Log) -> None:
    async def write(number: int) -> None:
        for turn in range(number):
            await log.record(event(id=f"{number}-{turn}"))

    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(write(number))
        for number in range(4):
            group.create_task(empty_run(log, f"session-{number}"))

    runs, wrong = runs_in_log((await log.verify()).runs)
    await log.aclose()
    assert wrong == []
    assert [run.ended is not None for run in runs] == [True] * 4


async def empty_run(log: RunLog, session_id: str) -> RunSummary:
    started = STARTED.model_copy(update={"session_id": session_id})
    async with run_on_record(log, started, event_id=session_id) as summary:
        await asyncio.sleep(0)
    return summary


async def test_resumed_run_ends_by_newest_start(log: Log) -> None:
    await log.record(STARTED.as_event(event_id="killed", trace_id="killed", tenant_id=PLATFORM, time=NOW))
    again = STARTED.model_copy(update={"start_number": 2, "resumed": True})

    async with run_on_record(log, again, event_id="again"):
        open_run = await ended(log)

    run = await ended(log)
    await log.aclose()
    assert (open_run.start_id, open_run.ended) == ("again", None)
    assert run.ended is not None
    assert run.started.start_number == 2


def record(seq: int, body: RunStarted | RunEnded, *, cause: str = "", prev: str = "h") -> RunRecord:
    made = body.as_event(event_id=f"e{seq}", trace_id="t", tenant_id=PLATFORM, time=NOW, causation_id=cause)
    return RunRecord(seq, made, prev)


def end(*, lines: int, head: str = "h", session_id: str = "session") -> RunEnded:
    return RunEnded(session_id=session_id, lines=lines, head=head)


WRONG: dict[str, tuple[Callable[[], RunEnded], str]] = {
    "lines": (lambda: end(lines=8), "8 lines stood before it, the last with the hash h; now others do"),
    "head": (
        lambda: end(lines=4, head="g"),
        "4 lines stood before it, the last with the hash g; now others do",
    ),
    "start": (
        lambda: end(lines=4, session_id="other"),
        "it ends run 1 of session other, whose start is not in the log",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_mismatched_run_end_is_reported(what: str) -> None:
    body, reason = WRONG[what]

    runs, wrong = runs_in_log([record(1, STARTED), record(5, body(), cause="e1")])

    assert wrong == [WrongEnd(5, "e5", reason)]
    assert [run.ended for run in runs] == [None]


def test_earlier_end_ignored_for_later_start() -> None:
    later = STARTED.model_copy(update={"start_number": 2})

    (run,), wrong = runs_in_log([
        record(1, STARTED),
        record(2, later),
        record(3, end(lines=2), cause="e1"),
    ])

    assert (run.start_id, run.ended, wrong) == ("e2", None, [])


def test_malformed_run_start_raises() -> None:
    made = event(RunStarted.KIND, body={"session_id": 7})

    with pytest.raises(UnreadableBodyError, match=r"of kind run\.started: body\.session_id"):
        runs_in_log([RunRecord(1, made, "h")])


async def test_only_run_events_are_found(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "log.jsonl")
    await store.record(event("note.taken", body={"kind": RunEnded.KIND, "of": RunStarted.KIND}))
    async with run_on_record(store, STARTED, event_id="start"):
        pass
    await store.aclose()
    records = JsonlRecords(store.path)

    verified = await records.verify()

    await records.aclose()
    assert [(one.seq, one.event.kind) for one in verified.runs] == [(2, "run.started"), (3, "run.ended")]
    assert all(KINDS.of(one.event) is not None for one in verified.runs)
