"""Verify that a log is as it was written, and that every cause is in it."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from agentic_trading.canonical import sha256_hex
from agentic_trading.llm.errors import UnreadableBodyError
from agentic_trading.llm.event import Event
from agentic_trading.llm.events import KINDS, RunStarted
from agentic_trading.llm.store import LogEntry, Record, Verification


class ReadableLog(Protocol):
    """A log that can be read again: every store, and every reader of one."""

    async def verify(self) -> Verification:
        """Read the log again and recompute every hash."""
        ...

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
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
class WrongHash:
    """A hash in a record that is not that of its contents: line of the log, id of the record, name of the field."""

    line: int
    record_id: str
    field: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """What reading a whole log found; in a broken one, causes are not looked for.

    Of a log that shares its traces with others (`RunStarted.shares_traces`), causes that it does not have are not missing:
    `causes_elsewhere` is how many there are.
    """

    verification: Verification
    missing_causes: tuple[MissingCause, ...] = ()
    wrong_hashes: tuple[WrongHash, ...] = ()
    causes_elsewhere: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every line is as it was written, every hash in it right, and every cause on record."""
        return self.verification.is_intact and not self.wrong_hashes and not self.missing_causes

    @property
    def finding(self) -> str:
        """The first thing that is wrong, or that nothing is."""
        if not self.verification.is_intact:
            return (
                f"line {self.verification.broken_line} is not as it was written: {self.verification.reason}"
            )
        if self.wrong_hashes:
            wrong = self.wrong_hashes[0]
            return f"line {wrong.line} ({wrong.record_id}) was written with another {wrong.field} than its contents have"
        if self.missing_causes:
            first = self.missing_causes[0]
            return f"line {first.line} ({first.record_id}) names a cause that its trace does not have: {first.cause}"
        on_record = "every cause is on record"
        if self.causes_elsewhere:
            on_record = f"{self.causes_elsewhere} causes are in logs of other workers"
        return f"all {self.verification.lines} lines are as they were written, and {on_record}"


async def verify_log(log: ReadableLog) -> LogReport:
    """Recompute every hash of a log and name its first break; if there is none, look into the records.

    There, every hash of an interaction is computed again from its contents, and every cause looked for. Reads the
    log twice and holds about 250 bytes a record. Raises `StoreError` for a log that cannot be read.
    """
    verification = await log.verify()
    if not verification.is_intact:
        return LogReport(verification)
    causes = _Causes()
    wrong: list[WrongHash] = []
    async for entry in log.scan():
        causes.add(entry)
        wrong += _wrong_hashes(entry)
    missing = causes.missing()
    if causes.are_shared:
        return LogReport(verification, (), tuple(wrong), causes_elsewhere=len(missing))
    return LogReport(verification, missing, tuple(wrong))


class _Causes:
    """What is on record, and the causes that are named: one may come after what it led to."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._named: dict[tuple[str, str], MissingCause] = {}
        self.are_shared = False

    def add(self, entry: LogEntry) -> None:
        if isinstance(entry.record, Event) and entry.record.kind == RunStarted.KIND:
            with suppress(UnreadableBodyError):  # such a start is a finding of its own
                started = KINDS.of(entry.record)
                self.are_shared |= isinstance(started, RunStarted) and started.shares_traces
        ids, cause = _ids_and_cause(entry.record)
        trace_id = entry.record.trace_id
        self._known.update((trace_id, record_id) for record_id in ids)
        if cause:  # an attempt is kept when it is over, what it led to may be kept before
            self._named.setdefault((trace_id, ids[0]), MissingCause(entry.seq, ids[0], trace_id, cause))

    def missing(self) -> tuple[MissingCause, ...]:
        named = self._named.values()
        return tuple(each for each in named if (each.trace_id, each.cause) not in self._known)


def _wrong_hashes(entry: LogEntry) -> list[WrongHash]:
    if isinstance(entry.record, Event) or (entry.record.model_extra or {}).get("redacted") is True:
        return []  # a secret was taken out when it was written: the line's own hash covers the rest
    envelope, result = entry.record.envelope, entry.record.result
    is_right = {
        "request_hash": envelope.request_hash == envelope.compute_request_hash(),
        "envelope_hash": envelope.is_intact,
        "output_hash": result.output_hash
        == sha256_hex(result.raw_output.encode("utf-8", "surrogatepass"))[:16],
    }
    return [
        WrongHash(entry.seq, entry.record.interaction_id, name)
        for name, right in is_right.items()
        if not right
    ]


def _ids_and_cause(record: Record) -> tuple[tuple[str, ...], str]:
    if isinstance(record, Event):
        return (record.id,), record.causation_id
    return (record.envelope.envelope_id, record.interaction_id), record.envelope.causation_id
