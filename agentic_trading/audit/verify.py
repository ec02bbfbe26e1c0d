"""Verify logs: every hash, every chain, and the source logs of an archive."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, TypeAdapter, ValidationError

from agentic_trading.bus.log_stream import LogHead
from agentic_trading.canonical import sha256_hex, utc_text
from agentic_trading.files import read_file, replace_file
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.llm.errors import StoreError, UnreadableBodyError
from agentic_trading.llm.event import KINDS, ArchiveStarted, Event, RunStarted
from agentic_trading.llm.store import GENESIS, ChainedRecord, LogEntry, Record, Verification


class ReadableLog(Protocol):
    """A log that can be read again: a store, or a reader of one."""

    async def verify(self) -> Verification:
        """Read the log again and recompute every hash."""
        ...

    def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        """Yield every entry with a number above `after`, in order."""
        ...


@dataclass(frozen=True, slots=True)
class MissingCause:
    """A record whose cause is not in its trace: line, id, trace, and the named cause."""

    line: int
    record_id: str
    trace_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class WrongHash:
    """A hash that does not match its record: line, id of the record, and field."""

    line: int
    record_id: str
    field: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """The result of reading a whole log. In a broken log, causes and contents are not checked.

    Attributes:
        verification: The result of recomputing the hashes of all lines.
        missing_causes: Records whose cause is missing.
        wrong_hashes: Hashes in records that do not match their contents.
        causes_elsewhere: Causes that are not in this log. They are counted here, and not as missing, in a log
            that shares its traces with other logs.
        in_flight: Attempts that were sent and have no outcome in this log: their process was killed, or they
            are still in flight.
        hashes: The hashes of the lines that were asked for. Lines that the log lacks are left out.

    """

    verification: Verification
    missing_causes: tuple[MissingCause, ...] = ()
    wrong_hashes: tuple[WrongHash, ...] = ()
    causes_elsewhere: int = 0
    in_flight: int = 0
    hashes: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all lines are unchanged, all hashes are right, and all causes are in the log."""
        return self.verification.is_intact and not self.wrong_hashes and not self.missing_causes

    @property
    def finding(self) -> str:
        """The first problem, or a sentence that there is none."""
        if not self.verification.is_intact:
            return (
                f"line {self.verification.broken_line} is not as it was written: {self.verification.reason}"
            )
        if self.wrong_hashes:
            wrong = self.wrong_hashes[0]
            return f"line {wrong.line} ({wrong.record_id}) was written with a wrong {wrong.field}"
        if self.missing_causes:
            first = self.missing_causes[0]
            return (
                f"line {first.line} ({first.record_id}) names a cause that is not in its trace: {first.cause}"
            )
        on_record = "every cause is on record"
        if self.causes_elsewhere:
            on_record = f"{self.causes_elsewhere} causes are in logs of other workers"
        return f"all {self.verification.lines} lines are as they were written, and {on_record}"


async def verify_log(log: ReadableLog, lines: Collection[int] = ()) -> LogReport:
    """Recompute every hash of a log and find its first break. In an unbroken log, check the records too.

    The check recomputes the hashes inside interactions, and looks for every cause. It reads the log twice and
    needs about 250 bytes of memory per record.

    Args:
        log: The log.
        lines: The numbers of lines whose hashes to return.

    Raises:
        StoreError: If the log cannot be read.

    """
    verification = await log.verify()
    if not verification.is_intact:
        return LogReport(verification)
    causes = _Causes()
    wrong: list[WrongHash] = []
    hashes: dict[int, str] = {}
    async for entry in log.scan():
        causes.add(entry)
        wrong += _wrong_hashes(entry)
        if entry.seq in lines:
            hashes[entry.seq] = entry.hash
    missing = causes.missing()
    elsewhere = len(missing) if causes.are_shared else 0
    return LogReport(
        verification, () if elsewhere else missing, tuple(wrong), elsewhere, causes.in_flight(), hashes
    )


class _Causes:
    """The ids of a log, and the causes that its records name."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._named: dict[tuple[str, str], MissingCause] = {}
        self._asked_by: dict[str, tuple[str, str]] = {}
        self.are_shared = False

    def add(self, entry: LogEntry) -> None:
        if isinstance(entry.record, Event) and entry.record.kind == RunStarted.KIND:
            with suppress(UnreadableBodyError):  # an unreadable start is reported separately
                started = KINDS.of(entry.record)
                self.are_shared |= isinstance(started, RunStarted) and started.shares_traces
        ids, cause = _ids_and_cause(entry.record)
        trace_id = entry.record.trace_id
        self._known.update((trace_id, record_id) for record_id in ids)
        if isinstance(entry.record, Event) and entry.record.kind == AttemptDispatched.KIND:
            # Its cause is the envelope. That is stored with the outcome, and a kill may come before that.
            self._asked_by[entry.record.id] = (trace_id, cause)
            return
        # Causes are checked at the end, because an attempt is stored when it ends, and its effects may come first.
        if cause:
            self._named.setdefault((trace_id, ids[0]), MissingCause(entry.seq, ids[0], trace_id, cause))

    def missing(self) -> tuple[MissingCause, ...]:
        named = self._named.values()
        return tuple(each for each in named if (each.trace_id, each.cause) not in self._known)

    def in_flight(self) -> int:
        """Return the number of sent attempts without their envelope in the log."""
        return sum(asking not in self._known for asking in self._asked_by.values())


def _wrong_hashes(entry: LogEntry) -> list[WrongHash]:
    if isinstance(entry.record, Event) or (entry.record.model_extra or {}).get("redacted") is True:
        return []  # because a secret was removed before writing. The hash of the line covers the rest
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


STATE_NAME: Final = "archive.json"
"""The file with the state of an archive, next to its log."""

MOST_REPEATED: Final = 100
"""The most line numbers per log that are listed as repeated."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive linked lines of a log, from `first` to `last`.

    `prev` is the hash that the first line names. `hash` is that of the last line.
    """

    first: int
    last: int
    prev: str
    hash: str


@dataclass(slots=True)
class SourceLog:
    """The archived lines of one log.

    Attributes:
        stretches: The stretches of lines, in order.
        repeated: Numbers of lines that came again with different content.

    """

    stretches: list[Stretch] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def add(self, line: ChainedRecord, *, is_new: bool) -> str:
        """Add a line, and return the problem of its place, or an empty text.

        Args:
            line: The line.
            is_new: Whether its record was not in the archive. Then no other line may have its number.

        """
        place = bisect_right(self.stretches, line.seq, key=lambda stretch: stretch.first)
        before = self.stretches[place - 1] if place else None
        after = self.stretches[place] if place < len(self.stretches) else None
        if before is not None and line.seq <= before.last:
            return self._again(line, before, is_new=is_new)
        problem = ""
        made = Stretch(line.seq, line.seq, line.prev, line.hash)
        if before is not None and before.last + 1 == line.seq:
            if before.hash == line.prev:
                place -= 1
                made = Stretch(before.first, line.seq, before.prev, line.hash)
                del self.stretches[place]
            else:
                problem = _unlinked(line.seq)
        if after is not None and line.seq + 1 == after.first:
            if line.hash == after.prev:
                made = Stretch(made.first, after.last, made.prev, after.hash)
                del self.stretches[place]
            else:
                problem = _unlinked(after.first)
        self.stretches.insert(place, made)
        return problem

    def findings(self) -> Iterator[str]:
        """Yield the missing and wrong lines, in order."""
        end, hash_ = 0, GENESIS
        for stretch in self.stretches:
            if stretch.first > end + 1:
                yield _missing(end + 1, stretch.first - 1)
            elif stretch.prev != hash_:
                yield _unlinked(stretch.first)
            end, hash_ = stretch.last, stretch.hash
        for number in self.repeated:
            yield f"line {number} came twice, with different content"

    @property
    def lines(self) -> int:
        """The number of archived lines."""
        return sum(stretch.last - stretch.first + 1 for stretch in self.stretches)

    def _again(self, line: ChainedRecord, known: Stretch, *, is_new: bool) -> str:
        is_other = is_new or (line.seq == known.last and line.hash != known.hash)
        if not is_other or line.seq in self.repeated or len(self.repeated) >= MOST_REPEATED:
            return ""
        self.repeated.append(line.seq)
        return f"line {line.seq} came twice, with different content"


def _missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def _unlinked(number: int) -> str:
    return f"line {number} does not continue the line before it"


@dataclass(slots=True)
class ArchiveState:
    """The state of an archive, as written to its file.

    Attributes:
        archive_id: The id of the archive.
        lines: The number of the last line of the archive's log when the state was written.
        hash: The hash of this line.
        conflicts: Records that came with different content under a known id.
        sources: The lines of each log, by log id.

    """

    archive_id: str
    lines: int = 0
    hash: str = GENESIS
    conflicts: int = 0
    sources: dict[str, SourceLog] = field(default_factory=dict)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield the id of each damaged log, with its problem."""
        for log_id, source in self.sources.items():
            for finding in source.findings():
                yield log_id, finding


_MOST_STATE_BYTES: Final = 1 << 30
"""Size limit of the state file: several times the state of a million logs."""

_STATE: Final = TypeAdapter(ArchiveState)


def read_state(folder: Path) -> ArchiveState | None:
    """Return the state of an archive, or None without a file. Raises `StoreError` if it cannot be read."""
    path = folder / STATE_NAME
    try:
        return _STATE.validate_json(read_file(path, most_bytes=_MOST_STATE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not the state of an archive"
        remedy = "Restore it, or delete it: then every log is reported as incomplete from there on"
        raise StoreError(path, f"cannot be read ({why}). {remedy}") from e


def write_state(folder: Path, state: ArchiveState) -> None:
    """Replace the state file atomically, and wait until it is on disk. Raises `StoreError`."""
    path = folder / STATE_NAME
    try:
        replace_file(path, _STATE.dump_json(state))
    except OSError as e:
        reason = f"cannot be written ({e.strerror}). Free disk space, or allow writing to the folder"
        raise StoreError(path, reason) from e


async def archive_id_of(log: ReadableLog) -> str:
    """Return the archive id of a log. Empty if the log is not an archive."""
    async with aclosing(log.scan()) as entries:
        async for entry in entries:
            body = KINDS.of(entry.record) if isinstance(entry.record, Event) else None
            return body.archive_id if isinstance(body, ArchiveStarted) else ""
    return ""


async def hash_of(log: ReadableLog, number: int) -> str:
    """Return the hash of a line. Empty if the line does not exist."""
    if number == 0:
        return GENESIS
    async with aclosing(log.scan(number - 1)) as entries:
        async for entry in entries:
            return entry.hash
    return ""


class ArchiveFinding(BaseModel, frozen=True):
    """A problem of the log `log_id`, or of the archive itself if `log_id` is empty."""

    log_id: str = ""
    reason: str


class ArchiveCheck(BaseModel, frozen=True):
    """The result of checking an archive.

    Attributes:
        path: The folder of the archive.
        archive_id: Its id.
        lines: The lines of its own log.
        logs: The number of lines of each log.
        findings: The problems.
        notes: Facts that are not problems.

    """

    path: Path
    archive_id: str
    lines: int
    logs: Mapping[str, int]
    findings: tuple[ArchiveFinding, ...]
    notes: tuple[str, ...] = ()


async def check_archive(
    log: ReadableLog, folder: Path, heads: Sequence[LogHead] | None = None
) -> ArchiveCheck:
    """Check the lines of an archive, and the completeness of each log in it.

    Args:
        log: The log of the archive.
        folder: The folder of the archive.
        heads: Published ends of archives, read from the bus before this call, so that an archiver may run
            meanwhile. They show whether the archive was cut. None skips this check.

    Raises:
        StoreError: If the archive cannot be read, or the folder contains none.

    """
    state = await asyncio.to_thread(read_state, folder)
    archive_id = await archive_id_of(log)
    if not archive_id:
        raise StoreError(
            folder, "it contains no archive. Name the folder that `agentic-trading archive` writes to"
        )
    verified = await log.verify()
    of_archive, notes = [], []
    if verified.is_unfinished:
        notes.append("the last line is unfinished: it is being written, or its writer died")
    elif not verified.is_intact:
        of_archive.append(
            f"line {verified.broken_line} of the archive is not as it was written: {verified.reason}"
        )
    if state is None or state.archive_id != archive_id:
        of_archive.append(f"{STATE_NAME} is missing or of another archive: the lines of each log are unknown")
        state = ArchiveState(archive_id)
    elif gone := await _beyond(log, state.lines, state.hash):
        of_archive.append(f"{gone} by {STATE_NAME}")
    if heads is not None:
        of_archive += [found async for found in _against(log, archive_id, heads)]
    if state.conflicts:
        notes.append(
            f"{state.conflicts} records came with different content under a known id: see the dead letters `conflict`"
        )
    return ArchiveCheck(
        path=folder,
        archive_id=archive_id,
        lines=verified.lines,
        logs={log_id: source.lines for log_id, source in state.sources.items()},
        findings=(
            *(ArchiveFinding(reason=reason) for reason in of_archive),
            *(ArchiveFinding(log_id=log_id, reason=reason) for log_id, reason in state.findings()),
        ),
        notes=tuple(notes),
    )


async def _against(log: ReadableLog, archive_id: str, heads: Sequence[LogHead]) -> AsyncGenerator[str]:
    """Yield problems of an archive by its published heads."""
    ours = [head for head in heads if head.log_id == archive_id]
    if not ours:
        yield f"no head of archive {archive_id} is on the bus: a cut of its log would not show"
        return
    last = max(ours, key=lambda head: head.seq)
    if gone := await _beyond(log, last.seq, last.hash):
        yield f"{gone} by its head of {utc_text(last.time)} on the bus"


async def _beyond(log: ReadableLog, number: int, hash_: str) -> str:
    """Return how a log differs from when line `number` was its last.

    Empty if it does not, or is broken before.
    """
    try:
        found = await hash_of(log, number)
    except StoreError:
        return ""
    if found == hash_:
        return ""
    return f"the archive {'had another line' if found else 'is cut: it had a line'} {number}"
