"""The active segment of a log: locking, recovering, appending, and sealing when it is full.

All of this blocks. Run it in a thread.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain, count
from pathlib import Path

from agentic_trading.clock import SystemClock
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import StoreError, StoreLockedError
from agentic_trading.llm.event import PLATFORM, Event, TailSetAside
from agentic_trading.llm.log_line import BrokenRecordError, holds_whole_line, read_line
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.stores import record_codec
from agentic_trading.llm.stores.jsonl.checkpoints import CheckpointWriter
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.reader import LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.sealing import SealedSegments, WrittenSegment
from agentic_trading.llm.stores.jsonl.segments import (
    DAY_BYTES,
    SEGMENT_BYTES,
    LogFiles,
    SegmentContent,
)
from agentic_trading.logger import get_logger

log = get_logger()

_KEEP_AWAY = "let no other program rotate, cut or replace a log that is in use"
_COPIED_AT_ONCE = 1 << 20
_TRIES = 500
_TRIES_EVERY_S = 0.002

_system_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of one `append`: the new end of the log, and counts.

    `entries` has the entry of every record, by key. `found_sealed`: some are in sealed segments.
    """

    position: LogPosition
    lines: int
    duplicates: int
    bytes_written: int
    synced: bool
    entries: Mapping[str, bytes]
    found_sealed: bool


class LogFile:
    """Append to the log whose active segment is at `path`, with an exclusive lock.

    A torn end is moved to `set_aside` (`<path>.torn-<number>`), and the log continues with an event
    `log.tail_set_aside`. A torn end is left by a dead writer or a power cut: bytes without a newline, or a
    broken line with a zero byte and all that follows. No record in it was acknowledged.

    The active segment is sealed before the first record after it has `segment_bytes` bytes, or after it has
    `DAY_BYTES` bytes and the record is of a later UTC day.

    Raises:
        StoreLockedError: If another process writes to the log.
        StoreError: If the log cannot be written, a line or a seal was changed, or a segment is missing.

    """

    def __init__(
        self,
        path: Path,
        disk: Disk,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        compress: bool = False,
        checkpoint_file: Path | None = None,
        sealed_command: SealedCommand | None = None,
    ) -> None:
        self._path = path
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._files = LogFiles(path)
        self._reader = LogReader(path)
        self._checkpoints = None if checkpoint_file is None else CheckpointWriter(checkpoint_file)
        self._first_hash = ""
        self._is_sealed_since = False
        self.set_aside: Path | None = None
        self._is_unsynced = False
        self._failure: StoreError | None = None
        with _errors_of_opening(path), ExitStack() as undo:
            made = _make_folders(path)
            self._fd = self._lock_active()
            self._opened = os.fstat(self._fd)
            undo.callback(lambda: os.close(self._fd))
            for folder in {path.absolute().parent, *(folder.parent for folder in made)}:
                disk.sync_folder(folder)
            self._sealed = SealedSegments(self._files, disk, compress=compress, command=sealed_command)
            undo.callback(self._sealed.close)
            if self._sealed.has_interrupted_rotation:
                self._name_sealed()
            self._sealed.open()
            self._segment = WrittenSegment(SegmentContent(self._sealed.end))
            self.position = LogPosition(self._sealed.end).in_next_segment
            set_aside = self._read_existing()
            self._opened_at = self.position.head.seq
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
        entries: dict[str, bytes] = {}
        new: dict[str, tuple[record_codec.Identity, bytes]] = {}
        for each in records:
            if entry := self.known(key := each[0].key):
                entries[key] = entry
            else:
                new.setdefault(key, each)
        sealed = self._sealed.find(new, self._opened_at)
        for key in sealed:
            del new[key]
        entries.update(sealed)
        # Set before the write and cleared after it, so that any exception during the write is final too.
        self._failure = StoreError(
            self._path, "cannot be written after a write that did not end. Restart the program"
        )
        try:
            size = self._write([*new.values()], entries)
            synced = sync and self._is_unsynced
            if synced:
                self._sync()
            self._check_end()
        except OSError as e:
            reason = f"cannot be written ({e.strerror}). Records since the last answer may be lost. Restart the program when it can"
            self._failure = StoreError(self._path, reason)
            raise self._failure from e
        self._failure = None
        if sync:
            self._write_checkpoint()
        return Appended(
            self.position, len(new), len(records) - len(new), size, synced, entries, found_sealed=bool(sealed)
        )

    def known(self, key: str) -> bytes | None:
        """Return the entry of a record that is kept in memory: one of the newest. May run in another thread."""
        return self._segment.known.get(key) or self._sealed.known(key)

    def may_be_sealed(self, key: str) -> bool:
        """Return whether a record may be in a sealed segment. May run in another thread, and takes microseconds."""
        return self._sealed.may_have(key)

    def find(self, key: str) -> bytes | None:
        """Return the entry of a record, or None. May run in another thread. Raises `StoreError`."""
        return self.known(key) or self._sealed.find([key], self._opened_at).get(key)

    @property
    def unshipped(self) -> int | None:
        """The number of sealed segments that are not shipped yet. None without a command. May run in another thread."""
        return self._sealed.unshipped

    def close(self) -> None:
        """Release the file and its lock."""
        if self._failure is None and not self._is_unsynced:
            self._write_checkpoint(now=True)
        self._sealed.close()
        os.close(self._fd)

    def _write(
        self, records: Sequence[tuple[record_codec.Identity, bytes]], entries: dict[str, bytes]
    ) -> int:
        """Write the lines of new records, and seal segments on the way. Return the number of bytes."""
        lines: list[bytes] = []
        size = 0
        for identity, record in records:
            if self._is_full(identity.time):
                self._put(lines)
                self._rotate()
                lines = []
            line, head = record_codec.write_line(record, self._segment.content.head)
            self._segment.add(line, head, identity)
            entries[identity.key] = identity.at(head.seq)
            lines.append(line)
            size += len(line)
        self._put(lines)
        return size

    def _write_checkpoint(self, *, now: bool = False) -> None:
        """Write a checkpoint if one is due. All lines are on disk."""
        head = self.position.head
        if self._checkpoints is None or not self._checkpoints.is_due(head, now=now or self._is_sealed_since):
            return
        self._is_sealed_since = False
        try:
            self._first_hash = self._first_hash or read_line(self._reader.line_from(1, 0)).hash
        except (StoreError, BrokenRecordError) as e:  # an old segment was damaged. Writing goes on
            log.warning("log_checkpoint_not_written", path=str(self._path), error=str(e))
        else:
            self._checkpoints.put(self._first_hash, head, self._sealed.seals_head)

    def _is_full(self, time: datetime | None) -> bool:
        content = self._segment.content
        if content.bytes >= self._segment_bytes:
            return True
        if content.bytes < DAY_BYTES or time is None or content.latest is None:
            return False
        return time.astimezone(UTC).date() > content.latest.astimezone(UTC).date()

    def _rotate(self) -> None:
        """Seal the active segment and start the next one. Each step is on disk before the next one."""
        if self._is_unsynced:
            self._sync()
        self._check_end()
        self._sealed.append_seal(self._segment)
        self._name_sealed()
        self._sealed.finish(self._segment)
        self._is_sealed_since = True
        self._segment = WrittenSegment(SegmentContent(self.position.head))
        self.position = self.position.in_next_segment

    def _name_sealed(self) -> None:
        """Give the sealed segment its name, and the next active one that of the log."""
        # It is locked before it has the name, so that no other process can write to it. A process that creates a
        # log in between finds it locked.
        self._disk.unlink(self._files.next)
        fd = self._disk.open(self._files.next, must_be_new=True)
        _lock(fd, self._path)
        self._sealed.name_active()
        self._disk.rename(self._files.next, self._path)
        os.close(self._fd)
        self._fd = fd
        self._opened = os.fstat(fd)
        self._disk.sync_folder(self._path.absolute().parent)

    def _lock_active(self) -> int:
        """Open and lock the active segment. Return its descriptor."""
        while True:
            fd = self._disk.open(self._path)
            try:
                _lock(fd, self._path)
                self._check_no_rotation()
                if os.path.samestat(self._path.stat(), os.fstat(fd)):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # its writer has just sealed it, and has released the lock

    def _check_no_rotation(self) -> None:
        """Raise `StoreLockedError` if another process has just renamed the active segment."""
        with suppress(FileNotFoundError):
            fd = os.open(self._files.next, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _lock(fd, self._path)
            finally:
                os.close(fd)

    def _put(self, lines: Sequence[bytes]) -> None:
        if lines:
            self._is_unsynced = True
            self._disk.append(self._fd, b"".join(lines))
        content = self._segment.content
        self.position = LogPosition(content.head, content.first, content.bytes)

    def _sync(self) -> None:
        self._disk.sync(self._fd)
        self._is_unsynced = False

    def _check_end(self) -> None:
        """Raise `OSError` unless the file at the path is the open one and has the expected size."""
        # A stat of the path, because a stat of the descriptor would not see a file that was deleted or
        # renamed.
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise FileNotFoundError(0, f"the file was deleted or moved: {_KEEP_AWAY}") from None
        if not os.path.samestat(found, self._opened):
            raise FileNotFoundError(0, f"another file was put in its place: {_KEEP_AWAY}")
        if found.st_size != self.position.offset:
            change = "cut" if found.st_size < self.position.offset else "written to"
            sizes = f"which has {found.st_size} bytes instead of {self.position.offset}"
            raise OSError(0, f"another program has {change} the file, {sizes}: {_KEEP_AWAY}")

    def _read_existing(self) -> TailSetAside | None:
        reason = "two lines have run together"
        try:
            for line, position in self._reader.walk(self.position):
                self._segment.add(line.line + b"\n", line.head, record_codec.identity_in(line.record))
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
        self._disk.truncate(self._fd, self.position.offset)
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
    for _ in range(_TRIES):
        if _try_lock(fd, fcntl.LOCK_EX):
            return
        # `halt` looks for a writer with a shared lock that it holds for an instant.
        if not _try_lock(fd, fcntl.LOCK_SH):
            break
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(_TRIES_EVERY_S)
    reason = "another process writes to it. Stop that process or choose another path (reading needs no lock)"
    raise StoreLockedError(path, reason)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    fd = disk.open(free, must_be_new=True)
    try:
        with log.open("rb") as source:
            source.seek(offset)
            while part := source.read(_COPIED_AT_ONCE):
                disk.append(fd, part)
                digest.update(part)
                size += len(part)
        disk.sync(fd)
    finally:
        os.close(fd)
    disk.sync_folder(path.absolute().parent)
    return free, TailSetAside(bytes=size, kept_as=free.name, sha256=digest.hexdigest())


def _note(body: TailSetAside) -> Event:
    """Return the event that records a torn end and the name of its file."""
    note_id = derived_id(body.KIND, body.kept_as, body.sha256)
    return body.as_event(event_id=note_id, trace_id=note_id, tenant_id=PLATFORM, time=_system_clock.now())
