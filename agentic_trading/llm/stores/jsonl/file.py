"""The file of a log: reading, verifying, locking and appending.

All of this blocks. Run it in a thread.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO, TypeVar

from agentic_trading.clock import SystemClock
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import StoreError, StoreLockedError
from agentic_trading.llm.event import PLATFORM, Event, TailSetAside
from agentic_trading.llm.log_line import (
    BrokenRecordError,
    IndexRow,
    check_link,
    holds_whole_line,
    index_row_of,
    read_line,
)
from agentic_trading.llm.store import ChainedRecord, ChainHead, Record, RunRecord, Verification
from agentic_trading.llm.stores import record_codec

T = TypeVar("T")

_LINE_BYTES = 4096
_ID_WITHIN_BYTES = 1 << 16
_KEEP_AWAY = "let no other program rotate, cut or replace a log that is in use"
_COPIED_AT_ONCE = 1 << 20
_HAS_ZEROS = "it holds zero bytes, as a power cut leaves them. The next process that writes to the log moves it and all that follows to another file"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position between two lines: the byte offset, and the head of the chain there."""

    offset: int = 0
    head: ChainHead = field(default_factory=ChainHead)


START = LogPosition()


class LogReader:
    """Read the log at `path`.

    A missing file raises `StoreError`, or is an empty log with `may_be_missing`.
    """

    def __init__(self, path: Path, *, may_be_missing: bool = False) -> None:
        self.path = path
        self._may_be_missing = may_be_missing

    def exists(self) -> bool:
        """Return whether the file exists.

        Raises `StoreError` if it must exist and does not.
        """
        if self.path.is_file():
            return True
        if self._may_be_missing:
            return False
        raise StoreError(self.path, "there is no log here. Name the .jsonl file of an earlier run")

    def walk(
        self, start: LogPosition = START, end: int | None = None
    ) -> Iterator[tuple[ChainedRecord, LogPosition]]:
        """Yield each line from `start` on, with the position after it.

        It stops at offset `end`, or at an unfinished line.

        Raises:
            StoreError: At the first line that is broken or does not continue the chain. It names the line.

        """
        if not self.exists():
            return
        position = start
        with self._open_at(start.offset) as file:
            for raw in file:
                offset = position.offset + len(raw)
                if not raw.endswith(b"\n") or (end is not None and offset > end):
                    return
                line = self._check(raw, position.head)
                position = LogPosition(offset, line.head)
                yield line, position

    def lines(
        self, start: LogPosition, after: int, end: int | None, make: Callable[[ChainedRecord], T], most: int
    ) -> tuple[list[T], LogPosition]:
        """Read a batch of lines after a position. Return it and the position of its end.

        A batch has at most `most` lines numbered above `after`, and about 4 KB for each of them. If the
        position does not move, the log has no more lines. Lines before a broken line are returned first. The
        next batch raises `StoreError`.
        """
        found: list[T] = []
        position = start
        try:
            for line, reached in self.walk(start, end):
                if line.seq > after:
                    found.append(make(line))
                position = reached
                if len(found) >= most or position.offset - start.offset >= most * _LINE_BYTES:
                    break
        except StoreError:
            if position == start:
                raise
        return found, position

    def line_at(self, offset: int, length: int) -> ChainedRecord | None:
        """Return the line at an offset, or None if it is not whole and unbroken."""
        with self._open_at(offset) as file:
            raw = file.read(length)
        try:
            return read_line(raw) if len(raw) == length and raw.endswith(b"\n") else None
        except BrokenRecordError:
            return None

    def record(self, line: ChainedRecord) -> Record:
        """Return the record of a line. Raises `StoreError` if it is unknown."""
        try:
            return record_codec.record_of(line.record)
        except ValueError as e:
            raise self._unknown(line, e) from e

    def facts(self, line: ChainedRecord) -> IndexRow:
        """Return the facts of the record of a line. Raises `StoreError` if it is unknown."""
        try:
            return index_row_of(line.record)
        except (ValueError, LookupError, TypeError) as e:
            raise self._unknown(line, e) from e

    def verify(self, written: LogPosition | None = None) -> Verification:
        """Check every line. With `written`, also check that the log ends there."""
        position = START
        runs: list[RunRecord] = []
        reason = ""
        try:
            for line, reached in self.walk(end=written.offset if written else None):
                position = reached
                runs += record_codec.run_records(line)
        except StoreError as e:
            if not e.line:
                raise
            reason = e.reason
        if not reason and written and position != written:
            reason = f"it is missing or cut: {written.head.seq} lines were written"
        if reason or written:
            return self._found(position, reason, runs)
        return self.verify_from(position, runs)

    def verify_from(self, position: LogPosition, runs: Sequence[RunRecord]) -> Verification:
        """Check only that the log ends at `position`, up to which it was verified."""
        is_unfinished = self.exists() and self.path.stat().st_size > position.offset
        reason = "it is unfinished: it is being written, or its writer died while it was"
        return self._found(position, reason if is_unfinished else "", runs, is_unfinished=is_unfinished)

    def _found(
        self, position: LogPosition, reason: str, runs: Sequence[RunRecord], *, is_unfinished: bool = False
    ) -> Verification:
        if not reason:
            return Verification(position.head.seq, position.head.hash, runs=tuple(runs))
        raw = self._raw_at(position.offset)
        return record_codec.broken_at(position.head, reason, raw, runs, is_unfinished=is_unfinished)

    def _raw_at(self, offset: int) -> bytes:
        if not self.exists():
            return b""
        with self._open_at(offset) as file:
            return file.readline(_ID_WITHIN_BYTES)

    @contextmanager
    def _open_at(self, offset: int) -> Iterator[BinaryIO]:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                yield file
        except OSError as e:
            raise StoreError(
                self.path, f"cannot be read ({e.strerror}). Allow reading it, or repair the disk"
            ) from e

    def _check(self, raw: bytes, head: ChainHead) -> ChainedRecord:
        try:
            line = read_line(raw)
            check_link(line, head)
        except BrokenRecordError as e:
            reason = _HAS_ZEROS if b"\0" in raw else e.reason
            raise StoreError(self.path, reason, line=head.seq + 1) from e
        return line

    def _unknown(self, line: ChainedRecord, why: Exception) -> StoreError:
        reason = f"it holds neither an interaction nor an event ({why}). A newer release may read it"
        return StoreError(self.path, reason, line=line.seq)


_system_clock = SystemClock()


class Disk:
    """How bytes are written to a file, and from there to the disk."""

    def append(self, fd: int, data: bytes) -> None:
        """Write all of `data`. If it raises `OSError`, a part of it may be in the file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int) -> None:
        """Return when all written bytes survive a power cut.

        After an `OSError`, this is unknown.
        """
        getattr(os, "fdatasync", os.fsync)(fd)


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of one `append`: the new end of the log, and counts."""

    position: LogPosition
    lines: int
    duplicates: int
    bytes_written: int
    synced: bool


class LogFile:
    """Append to the log at `path`, with an exclusive lock.

    A torn end is moved to `set_aside` (`<path>.torn-<number>`), and the log continues with an event
    `log.tail_set_aside`. A torn end is left by a dead writer or a power cut: bytes without a newline, or a
    broken line with a zero byte and all that follows. No record in it was acknowledged.

    Raises:
        StoreLockedError: If another process writes to the file.
        StoreError: If the file cannot be written, or a line was changed.

    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.set_aside: Path | None = None
        self.position = START
        self.known: dict[str, bytes] = {}
        self._is_unsynced = False
        self._failure: StoreError | None = None
        with _errors_of_opening(path), ExitStack() as undo:
            made = _make_folders(path)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, self._fd)
            _lock(self._fd, path)
            self._opened = os.fstat(self._fd)
            for folder in {path.absolute().parent, *(folder.parent for folder in made)}:
                _sync_folder(folder, disk)
            set_aside = self._read_existing()
            # An earlier process may have died before its sync. Synced now, because a known record is
            # acknowledged again without a write.
            disk.sync(self._fd)
            if set_aside is not None:
                note = _note(set_aside)
                self.append([(record_codec.identity_of(note), note.wire)], sync=True)
            undo.pop_all()

    def append(self, records: Sequence[tuple[record_codec.Identity, bytes]], *, sync: bool) -> Appended:
        """Write each record whose key is new, in order.

        With `sync`, return when all are on disk.

        Raises:
            StoreError: If the write fails, and in all later calls, because the content of the disk is then
                unknown.

        """
        if self._failure is not None:
            raise self._failure
        lines, position = self._lines(records)
        data = b"".join(lines)
        self._is_unsynced |= bool(data)
        sync &= self._is_unsynced
        # Set before the write and cleared after it, so that any exception during the write is final too.
        self._failure = StoreError(
            self._path, "cannot be written after a write that did not end. Restart the program"
        )
        try:
            self._put(data, sync=sync)
            self._check_end(position.offset)
        except OSError as e:
            reason = f"cannot be written ({e.strerror}). Records since the last answer may be lost. Restart the program when it can"
            self._failure = StoreError(self._path, reason)
            raise self._failure from e
        self._failure = None
        self.position = position
        return Appended(position, len(lines), len(records) - len(lines), len(data), sync)

    def close(self) -> None:
        """Release the file and its lock."""
        os.close(self._fd)

    def _lines(
        self, records: Sequence[tuple[record_codec.Identity, bytes]]
    ) -> tuple[list[bytes], LogPosition]:
        lines, head = [], self.position.head
        for identity, record in records:
            if identity.key not in self.known:
                line, head = record_codec.write_line(record, head)
                self.known[identity.key] = identity.at(head.seq)
                lines.append(line)
        return lines, LogPosition(self.position.offset + sum(map(len, lines)), head)

    def _put(self, data: bytes, *, sync: bool) -> None:
        if data:
            self._disk.append(self._fd, data)
        if sync:
            self._disk.sync(self._fd)
            self._is_unsynced = False

    def _check_end(self, expected: int) -> None:
        """Raise `OSError` unless the file at the path is the open one and has the expected size."""
        # A stat of the path, because a stat of the descriptor would not see a file that was deleted or
        # renamed.
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(0, f"the file was deleted or moved: {_KEEP_AWAY}") from None
        if not os.path.samestat(found, self._opened):
            raise FileNotFoundError(0, f"another file was put in its place: {_KEEP_AWAY}")
        if found.st_size != expected:
            change = "cut" if found.st_size < expected else "written to"
            sizes = f"which has {found.st_size} bytes instead of {expected}"
            raise OSError(0, f"another program has {change} the file, {sizes}: {_KEEP_AWAY}")

    def _read_existing(self) -> TailSetAside | None:
        reason = "two lines have run together"
        try:
            for line, position in LogReader(self._path).walk():
                if identity := record_codec.identity_in(line.record):
                    self.known.setdefault(identity.key, identity.at(line.seq))
                self.position = position
        except StoreError as e:
            if not e.line:
                raise
            reason = e.reason
        return self._set_aside_torn_tail(reason)

    def _set_aside_torn_tail(self, reason: str) -> TailSetAside | None:
        number = self.position.head.seq + 1
        broken, is_last = _line_after(self._path, self.position.offset)
        if not broken:
            return None
        is_half = is_last and not broken.endswith(b"\n") and not holds_whole_line(broken)
        # A line with a zero byte is not JSON: it never reached the disk, and was not acknowledged. Otherwise
        # the line was changed, and a person must decide (decision 62).
        if not is_half and b"\0" not in broken:
            reason = f"{reason}. The log was not modified: restore it, or move it away to start another"
            raise StoreError(self._path, reason, line=number)
        torn = self._path.with_name(f"{self._path.name}.torn-{number}")
        self.set_aside, note = _keep(torn, self._path, self.position.offset, self._disk)
        os.ftruncate(self._fd, self.position.offset)
        return note


@contextmanager
def _errors_of_opening(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        reason = (
            f"cannot be opened for writing ({e.strerror}). Choose a file in a folder that you may write to"
        )
        raise StoreError(path, reason) from e


def _make_folders(path: Path) -> list[Path]:
    """Create the folders that `path` needs, and return those that were missing."""
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(0, "not a regular file")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        reason = (
            "another process writes to it. Stop that process or choose another path (reading needs no lock)"
        )
        raise StoreLockedError(path, reason) from e


def _sync_folder(folder: Path, disk: Disk) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync(fd)
    finally:
        os.close(fd)


def _line_after(path: Path, offset: int) -> tuple[bytes, bool]:
    """Return the line at `offset`, and whether the file ends with it."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline(), not file.read(1)


def _keep(path: Path, log: Path, offset: int, disk: Disk) -> tuple[Path, TailSetAside]:
    """Copy a log from `offset` on to a new file and sync it.

    The file is named `path`, with a number added if that exists.
    """
    names = chain([path], (path.with_name(f"{path.name}~{number}") for number in count(2)))
    free = next(name for name in names if not name.exists())
    digest, size = sha256(), 0
    with log.open("rb") as source, free.open("xb") as file:
        source.seek(offset)
        while part := source.read(_COPIED_AT_ONCE):
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        disk.sync(file.fileno())
    _sync_folder(path.parent, disk)
    return free, TailSetAside(bytes=size, kept_as=free.name, sha256=digest.hexdigest())


def _note(body: TailSetAside) -> Event:
    """Return the event that records a torn end and the name of its file."""
    note_id = derived_id(body.KIND, body.kept_as, body.sha256)
    return body.as_event(event_id=note_id, trace_id=note_id, tenant_id=PLATFORM, time=_system_clock.now())
