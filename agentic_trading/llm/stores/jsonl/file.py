"""The file of a log: read and verified, or locked and appended to; everything here blocks and belongs into a thread."""

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
_HAS_ZEROS = "it holds zero bytes, as a power cut leaves them; the next process that writes to the log sets aside what follows"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place between two lines: the byte offset, and the head of the chain up to there."""

    offset: int = 0
    head: ChainHead = field(default_factory=ChainHead)


START = LogPosition()


class LogReader:
    """Read the log at `path`. A missing file is an error, unless `may_be_missing`: then it is an empty log."""

    def __init__(self, path: Path, *, may_be_missing: bool = False) -> None:
        self.path = path
        self._may_be_missing = may_be_missing

    def exists(self) -> bool:
        """Say whether there is a file; raises `StoreError` if there is none and there should be."""
        if self.path.is_file():
            return True
        if self._may_be_missing:
            return False
        raise StoreError(self.path, "there is no log here; name the .jsonl file of an earlier run")

    def walk(
        self, start: LogPosition = START, end: int | None = None
    ) -> Iterator[tuple[ChainedRecord, LogPosition]]:
        """Give each line from `start` on with the place behind it; stop at offset `end`, or at an unfinished line.

        Raises `StoreError` naming the first line that is broken or does not continue the chain.
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
        """Read up to `most` lines numbered above `after`, or 4 KB for each of them, and say where it ended; no progress means no more.

        What stands before a broken line is given first; the next batch then raises the `StoreError`.
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
        """Return the line that stands there, or None if there is no whole and unbroken line."""
        with self._open_at(offset) as file:
            raw = file.read(length)
        try:
            return read_line(raw) if len(raw) == length and raw.endswith(b"\n") else None
        except BrokenRecordError:
            return None

    def record(self, line: ChainedRecord) -> Record:
        """Return the record that a line carries; raises `StoreError` if it carries none that we know."""
        try:
            return record_codec.record_of(line.record)
        except ValueError as e:
            raise self._unknown(line, e) from e

    def facts(self, line: ChainedRecord) -> IndexRow:
        """Return the facts of the record that a line carries; raises `StoreError` if it carries none that we know."""
        try:
            return index_row_of(line.record)
        except (ValueError, LookupError, TypeError) as e:
            raise self._unknown(line, e) from e

    def verify(self, written: LogPosition | None = None) -> Verification:
        """Check every line from the first; with `written`, also that the log reaches just to there."""
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
            reason = f"it is missing or cut; {written.head.seq} lines were written"
        if reason or written:
            return self._found(position, reason, runs)
        return self.verify_from(position, runs)

    def verify_from(self, position: LogPosition, runs: Sequence[RunRecord]) -> Verification:
        """Check only that the log ends at `position`, up to where it was verified."""
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
                self.path, f"cannot be read ({e.strerror}); allow reading it, or repair the disk"
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
        reason = f"it holds neither an interaction nor an event ({why}); a newer release may read it"
        return StoreError(self.path, reason, line=line.seq)


_system_clock = SystemClock()


class Disk:
    """How bytes get into a file, and from there onto the disk."""

    def append(self, fd: int, data: bytes) -> None:
        """Write all of `data`; raises `OSError`, and then part of it may stand in the file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int) -> None:
        """Return when what was written outlives a power cut; raises `OSError`, and then nothing is known."""
        getattr(os, "fdatasync", os.fsync)(fd)


@dataclass(frozen=True, slots=True)
class Appended:
    """What one `append` did: where the log ends now, how many lines are new, how many records it knew before."""

    position: LogPosition
    lines: int
    duplicates: int
    bytes_written: int
    synced: bool


class LogFile:
    """Append to the log at `path`, alone.

    Raises `StoreLockedError` if another one has it open for writing, `StoreError` if it cannot be written or if a line was
    changed. What a dead writer or a power cut left behind the last whole line is moved to `set_aside` (`<path>.torn-<number>`):
    bytes without a newline, and everything from a broken line on that holds a zero byte. JSON holds none: the line's pages
    never reached the disk, so nothing from there on was acknowledged. The log goes on with an event `log.tail_set_aside`.
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
            # A line may stand there that never reached the disk, and its id is known from now on.
            disk.sync(self._fd)
            if set_aside is not None:
                note = _note(set_aside)
                self.append([(record_codec.identity_of(note), note.wire)], sync=True)
            undo.pop_all()

    def append(self, records: Sequence[tuple[record_codec.Identity, bytes]], *, sync: bool) -> Appended:
        """Write each record whose key is new, in order; with `sync`, return when all is on disk.

        Raises `StoreError`, and from then on always: how much of a failed write will be on the disk is not known.
        """
        if self._failure is not None:
            raise self._failure
        lines, position = self._lines(records)
        data = b"".join(lines)
        self._is_unsynced |= bool(data)
        sync &= self._is_unsynced
        self._failure = StoreError(
            self._path, "cannot be written after a write that did not end; start again"
        )
        try:
            self._put(data, sync=sync)
            self._check_end(position.offset)
        except OSError as e:
            reason = f"cannot be written ({e.strerror}); nothing since the last answer is safe: start again when it can"
            self._failure = StoreError(self._path, reason)
            raise self._failure from e
        self._failure = None
        self.position = position
        return Appended(position, len(lines), len(records) - len(lines), len(data), sync)

    def close(self) -> None:
        """Give the file and its lock back."""
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
        """Raise `OSError` unless the file at the path is the open one and ends where this writer ended it.

        One stat of the path sees a file that was cut, deleted, renamed or replaced. A stat of the descriptor would miss
        the last two.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(0, f"the file was deleted or moved; {_KEEP_AWAY}") from None
        if not os.path.samestat(found, self._opened):
            raise FileNotFoundError(0, f"another file was put in its place; {_KEEP_AWAY}")
        if found.st_size != expected:
            change = "cut" if found.st_size < expected else "written to"
            sizes = f"it has {found.st_size} bytes instead of {expected}"
            raise OSError(0, f"another program has {change} the file: {sizes}; {_KEEP_AWAY}")

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
        if not is_half and b"\0" not in broken:
            reason = f"{reason}; nothing was written: restore the log, or move it away to start another"
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
            f"cannot be opened for writing ({e.strerror}); choose a file in a folder that you may write to"
        )
        raise StoreError(path, reason) from e


def _make_folders(path: Path) -> list[Path]:
    """Make the folders that `path` needs, and return those that were not there."""
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(0, "not a regular file")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        reason = "another process writes to it; stop that one or choose another path (reading needs no lock)"
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
    """Copy a log from `offset` on to a new file, named `path` or, if that is taken, with a number behind it; it is on disk then."""
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
    """Say in the log that what stood here was set aside, and where it lies."""
    note_id = derived_id(body.KIND, body.kept_as, body.sha256)
    return body.as_event(event_id=note_id, trace_id=note_id, tenant_id=PLATFORM, time=_system_clock.now())
