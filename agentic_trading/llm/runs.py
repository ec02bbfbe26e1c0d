"""The runs of a log.

Start and end of a run are recorded, so that a truncated log is detected.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, assert_never

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import SystemClock
from agentic_trading.ids import derived_id
from agentic_trading.llm import event as event_types
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import RunRecord

_clock = SystemClock()


class RunLog(Protocol):
    """A log that can report its last line."""

    async def record(self, event: event_types.Event) -> int:
        """Keep an event and return the number of its line."""
        ...

    async def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last line, once accepted records are written.

        A record that the caller adds before the next `await` becomes the next line.
        """
        ...

    async def flush(self) -> None:
        """Return when all accepted records are on disk."""
        ...


@dataclass(slots=True)
class RunSummary:
    """The result of a run, for its `run.ended`. The run fills it in while it runs."""

    bars_done: int = 0
    interrupted: bool = False
    digest: str | None = None
    bars: tuple[event_types.BarChecksums, ...] = ()


@asynccontextmanager
async def run_on_record(
    log: RunLog, started: event_types.RunStarted, *, event_id: str
) -> AsyncGenerator[RunSummary]:
    """Record the start of a run, and its end when the block exits.

    The start is on disk before the block begins, and the end before this returns. Write no other record of
    this run before or after. If the block raises, the end is recorded as interrupted, unless the log accepts
    no more records. A cancellation waits for both records.
    """
    start = started.as_event(
        event_id=event_id, trace_id=event_id, tenant_id=event_types.PLATFORM, time=_clock.now()
    )
    summary = RunSummary()
    try:
        await run_shielded(_begin(log, start))
        yield summary
    except BaseException:
        # Recorded as interrupted, so that a resumed run may continue here. Only a kill leaves no end.
        summary.interrupted = True
        with suppress(StoreError):
            await run_shielded(_end(log, start, started, summary))
        raise
    await run_shielded(_end(log, start, started, summary))


async def _begin(log: RunLog, start: event_types.Event) -> None:
    await log.record(start)
    await log.flush()


async def _end(
    log: RunLog, start: event_types.Event, started: event_types.RunStarted, summary: RunSummary
) -> None:
    lines, head = await log.head()
    ended = event_types.RunEnded(
        session_id=started.session_id,
        run_number=started.run_number,
        bars_done=summary.bars_done,
        interrupted=summary.interrupted,
        digest=summary.digest,
        lines=lines,
        head=head,
        bars=summary.bars,
    )
    event = ended.as_event(
        event_id=derived_id(event_types.RunEnded.KIND, start.id),
        trace_id=start.trace_id,
        tenant_id=event_types.PLATFORM,
        time=_clock.now(),
        causation_id=start.id,
    )
    await log.record(event)
    await log.flush()


@dataclass(frozen=True, slots=True)
class RunInLog:
    """A run in a log: its newest start, and the end of that start or None."""

    start_line: int
    start_id: str
    started: event_types.RunStarted
    end_line: int | None = None
    ended: event_types.RunEnded | None = None

    @property
    def name(self) -> tuple[str, int]:
        """Session and number, which identify the run."""
        return self.started.session_id, self.started.run_number


@dataclass(frozen=True, slots=True)
class WrongEnd:
    """A `run.ended` that does not match the lines before it."""

    line: int
    record_id: str
    reason: str


def is_archive(records: Iterable[RunRecord]) -> bool:
    """Return whether a log starts as an archive.

    Line numbers in its runs are then those of other logs.
    """
    return any(record.seq == 1 and record.event.kind == event_types.ArchiveStarted.KIND for record in records)


def runs_in_log(records: Iterable[RunRecord]) -> tuple[list[RunInLog], list[WrongEnd]]:
    """Return the runs of a log by their newest starts, and the ends that do not match.

    A later start of the same run replaces an earlier one, because the chain contains the earlier one's
    records.

    Raises:
        UnreadableBodyError: If a start or an end cannot be read.

    """
    runs: dict[tuple[str, int], RunInLog] = {}
    wrong: list[WrongEnd] = []
    for record in records:
        match event_types.KINDS.of(record.event):
            case event_types.RunStarted() as started:
                run = RunInLog(record.seq, record.event.id, started)
                runs.pop(run.name, None)
                runs[run.name] = run
            case event_types.RunEnded() as ended:
                name = (ended.session_id, ended.run_number)
                reason = _misfit(ended, record, runs.get(name))
                if reason:
                    wrong.append(WrongEnd(record.seq, record.event.id, reason))
                elif (open_run := runs[name]).start_id == record.event.causation_id:
                    runs[name] = RunInLog(
                        open_run.start_line, open_run.start_id, open_run.started, record.seq, ended
                    )
            case event_types.TailSetAside() | event_types.ArchiveStarted() | None:
                pass
            case (
                event_types.CallRequested()
                | event_types.CallUnanswered()
                | event_types.EnvelopeRefused()
                | event_types.RequestQuoted()
            ):
                pass
            case unknown:
                assert_never(unknown)
    return list(runs.values()), wrong


def _misfit(ended: event_types.RunEnded, record: RunRecord, started: RunInLog | None) -> str:
    """Return the fault of an end, or an empty text."""
    if started is None:
        return f"it ends run {ended.run_number} of session {ended.session_id}, whose start is not in the log"
    if (ended.lines, ended.head) != (record.seq - 1, record.prev):
        return f"{ended.lines} lines stood before it, the last with the hash {ended.head}; now others do"
    return ""
