"""Is the log as it was written, and is every cause in it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Entry, Record, Verification


class ReadableLog(Protocol):
    """A log that can be read again: every store, and every reader of one."""

    async def verify(self) -> Verification:
        """Read the log again and recompute every hash."""
        ...

    def scan(self, after: int = 0) -> AsyncGenerator[Entry]:
        """Give every entry with a number above `after`, in order, and end."""
        ...


@dataclass(frozen=True, slots=True)
class MissingCause:
    """A record whose cause is nowhere in its trace: line of the log, id, trace, and the cause that it names."""

    line: int
    record_id: str
    trace_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """What reading a whole log found; in a broken one nobody looks for causes."""

    verification: Verification
    missing_causes: tuple[MissingCause, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every line is as it was written, and every cause on record."""
        return self.verification.is_intact and not self.missing_causes

    @property
    def finding(self) -> str:
        """The first thing that is wrong, or that nothing is."""
        if not self.verification.is_intact:
            return (
                f"line {self.verification.broken_line} is not as it was written: {self.verification.reason}"
            )
        if self.missing_causes:
            first = self.missing_causes[0]
            return f"line {first.line} ({first.record_id}) names a cause that its trace does not have: {first.cause}"
        return f"all {self.verification.lines} lines are as they were written, and every cause is on record"


async def verify_log(log: ReadableLog) -> LogReport:
    """Recompute every hash of a log and name its first break; if there is none, name every cause that it lacks.

    Reads the log twice and holds about 250 bytes a record. Raises `StoreError` for a log that cannot be read.
    """
    verification = await log.verify()
    if not verification.is_intact:
        return LogReport(verification)
    return LogReport(verification, await _missing_causes(log))


async def _missing_causes(log: ReadableLog) -> tuple[MissingCause, ...]:
    known: set[tuple[str, str]] = set()
    named: dict[tuple[str, str], MissingCause] = {}
    async for entry in log.scan():
        ids, cause = _ids_and_cause(entry.record)
        known.update((entry.record.trace_id, record_id) for record_id in ids)
        if cause:  # it may come later: an attempt is kept when it is over, what it led to may be kept before
            missing = MissingCause(entry.seq, ids[0], entry.record.trace_id, cause)
            named.setdefault((missing.trace_id, missing.record_id), missing)
    return tuple(missing for missing in named.values() if (missing.trace_id, missing.cause) not in known)


def _ids_and_cause(record: Record) -> tuple[tuple[str, ...], str]:
    if isinstance(record, Event):
        return (record.id,), record.causation_id
    return (record.envelope.envelope_id, record.interaction_id), record.envelope.causation_id
