"""Verify logs: every hash, every chain, and the sources that an archive was made from."""

import asyncio
import os
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, TypeAdapter, ValidationError

from agentic_trading.bus.log_stream import LogHead
from agentic_trading.canonical import sha256_hex, utc_text
from agentic_trading.files import read_file
from agentic_trading.llm.errors import StoreError, UnreadableBodyError
from agentic_trading.llm.event import KINDS, ArchiveStarted, Event, RunStarted
from agentic_trading.llm.store import GENESIS, ChainedRecord, LogEntry, Record, Verification


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


STATE_NAME: Final = "archive.json"
"""The file beside the archive's log that says what it has of each log."""

MOST_REPEATED: Final = 100
"""How many numbers are named of a log that came with a second line."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The lines `first` to `last` of a log, each linked to the one before; `prev` is what the first one names, `hash` the last one's."""

    first: int
    last: int
    prev: str
    hash: str


@dataclass(slots=True)
class SourceLog:
    """The stretches of one log, in order; `repeated` are numbers that came with a second line of other content."""

    stretches: list[Stretch] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def add(self, line: ChainedRecord, *, is_new: bool) -> str:
        """Note that a line has come; return what is wrong with its place, or nothing.

        `is_new` says that its record was not known: then no other line may have its number.
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
        """Yield what is missing or wrong, in the order of the lines."""
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
        """How many lines have come."""
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
    """What an archive has, as its file says: its own log ended with line `lines` and its `hash`, when this was written.

    `conflicts` counts the records that came with other content than is kept under their id.
    """

    archive_id: str
    lines: int = 0
    hash: str = GENESIS
    conflicts: int = 0
    sources: dict[str, SourceLog] = field(default_factory=dict)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield the id of a log, and what is missing or wrong in it."""
        for log_id, source in self.sources.items():
            for finding in source.findings():
                yield log_id, finding


_MOST_STATE_BYTES: Final = 1 << 30
"""Bytes of the state of a million logs, several times over."""

_STATE: Final = TypeAdapter(ArchiveState)


def read_state(folder: Path) -> ArchiveState | None:
    """Return what an archive has, or None where no file says so; raises `StoreError` for one that cannot be read."""
    path = folder / STATE_NAME
    try:
        return _STATE.validate_json(read_file(path, most_bytes=_MOST_STATE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not what an archive writes"
        remedy = "restore it, or delete it: every log is then named as incomplete from there on"
        raise StoreError(path, f"cannot be read ({why}); {remedy}") from e


def write_state(folder: Path, state: ArchiveState) -> None:
    """Replace what the file says, on disk; raises `StoreError`."""
    path = folder / STATE_NAME
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(_STATE.dump_json(state))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as e:
        reason = f"cannot be written ({e.strerror}); make room, or allow writing to the folder"
        raise StoreError(path, reason) from e


async def archive_id_of(log: ReadableLog) -> str:
    """Return the id of the archive that a log is; empty for another log."""
    async with aclosing(log.scan()) as entries:
        async for entry in entries:
            body = KINDS.of(entry.record) if isinstance(entry.record, Event) else None
            return body.archive_id if isinstance(body, ArchiveStarted) else ""
    return ""


async def hash_of(log: ReadableLog, number: int) -> str:
    """Return the hash of a line; empty where there is none with this number."""
    if number == 0:
        return GENESIS
    async with aclosing(log.scan(number - 1)) as entries:
        async for entry in entries:
            return entry.hash
    return ""


class ArchiveFinding(BaseModel, frozen=True):
    """What is missing or wrong of the log `log_id`; of the archive itself where that is empty."""

    log_id: str = ""
    reason: str


class ArchiveCheck(BaseModel, frozen=True):
    """What was found of an archive; `logs` says how many lines of each log have come. `notes` are not wrong."""

    path: Path
    archive_id: str
    lines: int
    logs: Mapping[str, int]
    findings: tuple[ArchiveFinding, ...]
    notes: tuple[str, ...] = ()


async def check_archive(
    log: ReadableLog, folder: Path, heads: Sequence[LogHead] | None = None
) -> ArchiveCheck:
    """Check the lines of an archive, what it has of each log, and with `heads` of the bus whether it ends where it did.

    `heads` are read before, so that an archiver may run meanwhile. Raises `StoreError` for what cannot be read, or is no
    archive.
    """
    state = await asyncio.to_thread(read_state, folder)
    archive_id = await archive_id_of(log)
    if not archive_id:
        raise StoreError(
            folder, "it holds no archive; name the folder that `agentic-trading archive` writes to"
        )
    verified = await log.verify()
    of_archive, notes = [], []
    if verified.is_unfinished:
        notes.append("the last line is unfinished: it is being written, or its writer died while it was")
    elif not verified.is_intact:
        of_archive.append(
            f"line {verified.broken_line} of the archive is not as it was written: {verified.reason}"
        )
    if state is None or state.archive_id != archive_id:
        of_archive.append(
            f"{STATE_NAME} is missing or of another archive: what has come of each log is not known"
        )
        state = ArchiveState(archive_id)
    elif gone := await _beyond(log, state.lines, state.hash):
        of_archive.append(f"{gone} by {STATE_NAME}")
    if heads is not None:
        of_archive += [found async for found in _against(log, archive_id, heads)]
    if state.conflicts:
        notes.append(
            f"{state.conflicts} records came with other content than is kept: see the dead letters `conflict`"
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
    """Yield what is wrong of an archive by the heads of it that stand on the bus."""
    ours = [head for head in heads if head.log_id == archive_id]
    if not ours:
        yield f"no head of archive {archive_id} is on the bus: whether its log was cut is not known"
        return
    last = max(ours, key=lambda head: head.seq)
    if gone := await _beyond(log, last.seq, last.hash):
        yield f"{gone} by its head of {utc_text(last.time)} on the bus"


async def _beyond(log: ReadableLog, number: int, hash_: str) -> str:
    """Return how a log is not what it was when line `number` was its last one; empty if it is, or is broken before."""
    try:
        found = await hash_of(log, number)
    except StoreError:
        return ""
    if found == hash_:
        return ""
    return f"the archive {'had another line' if found else 'is cut: it had a line'} {number}"
