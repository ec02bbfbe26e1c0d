"""Read the lines of a log, across its segments.

All of this blocks. Run it in a thread.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.log_line import BrokenRecordError, IndexRow, check_link, index_row_of, read_line
from agentic_trading.llm.store import ChainedRecord, ChainHead, Record, RunRecord, Seal, Verification
from agentic_trading.llm.stores import record_codec
from agentic_trading.llm.stores.jsonl.frames import DamagedSegmentError, open_compressed
from agentic_trading.llm.stores.jsonl.segments import LogFiles, SegmentContent, read_seals

T = TypeVar("T")

_LINE_BYTES = 4096
_WALK_BYTES = 128 << 10  # read at once, because a line is often longer than the usual buffer
_UNBUFFERED = 0  # for single lines, whose neighbours are of other decision chains
_ID_WITHIN_BYTES = 1 << 16
_HAS_ZEROS = "it holds zero bytes, as a power cut leaves them. The next process that writes to the log moves it and all that follows to another file"


class LogPosition(NamedTuple):
    """A position between two lines.

    Attributes:
        head: The head of the chain there.
        first: The number of the first line of its segment.
        offset: Its offset in the segment, in uncompressed bytes.

    """

    head: ChainHead = ChainHead()
    first: int = 1
    offset: int = 0

    @property
    def in_next_segment(self) -> "LogPosition":
        """The same position, as the start of the next segment."""
        return LogPosition(self.head, self.head.seq + 1)


START = LogPosition()


class LogState(NamedTuple):
    """The state of the active segment's file. It is another one after each new line."""

    inode: int
    size: int
    changed_ns: int


class LinePlace(NamedTuple):
    """The place of a line: its number, the first line of its segment, its offset and its length there."""

    seq: int
    first: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _OpenSegment:
    file: BinaryIO
    sealed: Path | None


class _MadeSeals:
    """The seals that the lines of a log have, segment by segment."""

    def __init__(self) -> None:
        self._seals: list[Seal] = []
        self._content = SegmentContent(ChainHead())

    def add(self, line: ChainedRecord, first: int) -> None:
        """Add the next line, which is in the segment that begins with line `first`."""
        if first != self._content.first:
            self._content = SegmentContent(self.finished()[-1].end)
        self._content.add(line.line + b"\n", line.head)

    def finished(self) -> Sequence[Seal]:
        """Return the seals of all segments."""
        if self._content.bytes and (not self._seals or self._seals[-1].last < self._content.head.seq):
            self._seals.append(self._content.seal())
        return self._seals


class LogReader:
    """Read the log whose active segment is at `path`.

    A missing log raises `StoreError`, or is empty with `may_be_missing`.
    """

    def __init__(self, path: Path, *, may_be_missing: bool = False) -> None:
        self.path = path
        self.files = LogFiles(path)
        self._may_be_missing = may_be_missing

    def exists(self) -> bool:
        """Return whether the log exists.

        Raises `StoreError` if it must exist and does not.
        """
        if self.files.exist():
            return True
        if self._may_be_missing:
            return False
        raise StoreError(self.path, "there is no log here. Name the .jsonl file of an earlier run")

    def state(self) -> LogState | None:
        """Return the state of the log, None without an active segment."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return LogState(found.st_ino, found.st_size, found.st_mtime_ns)

    def walk(
        self, start: LogPosition = START, last: int | None = None
    ) -> Iterator[tuple[ChainedRecord, LogPosition]]:
        """Yield each line from `start` on, with the position after it.

        It stops after line `last`, or at an unfinished line of the active segment.

        Raises:
            StoreError: At the first line that is missing, broken or does not continue the chain. It names the
                line.

        """
        position = start
        while position.head.seq != last and self.exists():
            with self._opened(position.first, _WALK_BYTES) as segment:
                if segment is None:
                    break
                position, rest = yield from self._walk_segment(segment, position, last)
            if segment.sealed is None and self.files.find_sealed(position.first) is None:
                break
            # An active segment that was sealed since it was opened may have more lines: it is opened again.
            if segment.sealed is not None and position.head.seq != last:
                position = self._after_sealed(segment.sealed, position, rest)
        if position.head.seq != last:
            self._check_is_last(position)

    def _walk_segment(
        self, segment: _OpenSegment, position: LogPosition, last: int | None
    ) -> Generator[tuple[ChainedRecord, LogPosition], None, tuple[LogPosition, bytes]]:
        """Yield the lines of a segment. Return the position after them, and an unfinished line there."""
        try:
            segment.file.seek(position.offset)
            for raw in segment.file:
                if not raw.endswith(b"\n"):
                    return position, raw
                line, head = self._check(raw, position.head, segment)
                position = LogPosition(head, position.first, position.offset + len(raw))
                yield line, position
                if line.seq == last:
                    break
        except DamagedSegmentError as e:
            raise self._broken(f"{e.strerror}. Restore the file", position.head) from e
        return position, b""

    def lines(
        self, start: LogPosition, after: int, last: int | None, make: Callable[[ChainedRecord], T], most: int
    ) -> tuple[list[T], LogPosition]:
        """Read a batch of lines after a position. Return it and the position of its end.

        A batch has at most `most` lines numbered above `after`, and about 4 KB for each of them. If the
        position does not move, the log has no more lines up to `last`. Lines before a broken line are
        returned first. The next batch raises `StoreError`.
        """
        found: list[T] = []
        position = start
        size = 0
        try:
            for line, reached in self.walk(start, last):
                if line.seq > after:
                    found.append(make(line))
                position = reached
                size += len(line.line)
                if len(found) >= most or size >= most * _LINE_BYTES:
                    break
        except StoreError:
            if position == start:
                raise
        return found, position

    def lines_at(self, places: Iterable[LinePlace]) -> Iterator[ChainedRecord | None]:
        """Yield the line at each place, or None if it is not whole and unbroken."""
        for first, in_segment in groupby(places, lambda place: place.first):
            with self._opened(first, _UNBUFFERED) as segment:
                for place in in_segment:
                    yield None if segment is None else _line_at(segment.file, place)

    def segment_start(self, seq: int) -> LogPosition:
        """Return the start of the segment that has the line after line `seq`. Reads the seals only."""
        sealed = [seal for seal in read_seals(self.files.seals).each if seal.last <= seq]
        # Not the newest one before it has its name, because it is the active one until then.
        if sealed and self.files.find_sealed(sealed[-1].first) is None:
            sealed.pop()
        return LogPosition(sealed[-1].end, sealed[-1].last + 1) if sealed else START

    def line_from(self, first: int, offset: int) -> bytes:
        """Return the bytes of the line at an offset of a segment, with its newline. Empty at the end of the segment."""
        with self._opened(first) as segment:
            if segment is None:
                return b""
            segment.file.seek(offset)
            return segment.file.readline()

    def record(self, line: ChainedRecord) -> Record:
        """Return the record of a line. Raises `StoreError` if it is unknown."""
        try:
            return record_codec.record_of(line.record)
        except ValueError as e:
            raise self._unknown(line, e) from e

    def facts(self, line: ChainedRecord) -> IndexRow:
        """Return the facts of the record of a line. Raises `StoreError` if it is unknown."""
        try:
            return index_row_of(line.line)  # not of `record`, which is a copy: the rest are no facts
        except ValueError as e:
            raise self._unknown(line, e) from e

    def verify(self, written: LogPosition | None = None) -> Verification:
        """Check every line and every seal. With `written`, also check that the log ends there."""
        runs: list[RunRecord] = []
        made = _MadeSeals()
        position = START
        try:
            for line, position in self.walk(last=written.head.seq if written else None):
                made.add(line, position.first)
                runs += record_codec.run_records(line)
        except StoreError as e:
            if not e.line:
                raise
            return self._found(position, e.reason, runs)
        if problem := self._wrong_seal(made.finished(), position):
            return self._found(*problem, runs)
        if written is None:
            return self.verify_from(position, runs)
        is_there = position.head == written.head
        reason = "" if is_there else f"it is missing or cut: {written.head.seq} lines were written"
        return self._found(position, reason, runs)

    def _wrong_seal(self, made: Sequence[Seal], end: LogPosition) -> tuple[LogPosition, str] | None:
        """Return the start of the first segment whose seal is not the one of its lines, and the problem."""
        # In this order, because a segment gets its name after its seal was written.
        paths = [self.files.find_sealed(seal.first) for seal in made]
        recorded = read_seals(self.files.seals)
        before = ChainHead()
        for seal, path in zip(made, paths, strict=True):
            kept = recorded.of(seal.first)
            # The last one was active when it was read, and has been sealed since with more lines.
            is_part = seal.first == end.first and kept is not None and kept.last > seal.last
            if path is not None and not is_part and not seal.has_content_of(kept):
                missing = f"the seal of {path.name} is missing. {recorded.problem}".strip()
                reason = f"{path.name} is not as it was sealed" if kept else missing
                return LogPosition(before, seal.first), reason
            before = seal.end
        return None

    def verify_from(self, position: LogPosition, runs: Sequence[RunRecord]) -> Verification:
        """Check only that the log ends at `position`, up to which it was verified."""
        is_unfinished = self.exists() and bool(self._rest_at(position))
        reason = "it is unfinished: it is being written, or its writer died while it was"
        return self._found(position, reason if is_unfinished else "", runs, is_unfinished=is_unfinished)

    def _found(
        self, position: LogPosition, reason: str, runs: Sequence[RunRecord], *, is_unfinished: bool = False
    ) -> Verification:
        if not reason:
            return Verification(position.head.seq, position.head.hash, runs=tuple(runs))
        raw = b""
        with suppress(StoreError):  # it is only needed for the id of the record
            raw = self._rest_at(position)
        return record_codec.broken_at(position.head, reason, raw, runs, is_unfinished=is_unfinished)

    def _rest_at(self, position: LogPosition) -> bytes:
        """Return the begin of the line after a position, finished or not. Empty at the end of the log."""
        with self._opened(position.first) as segment:
            if segment is None:
                return b""
            segment.file.seek(position.offset)
            raw = segment.file.readline(_ID_WITHIN_BYTES)
            is_at_end = segment.sealed is None or bool(raw) or position.offset == 0
        return raw if is_at_end else self._rest_at(position.in_next_segment)

    def _after_sealed(self, path: Path, position: LogPosition, rest: bytes) -> LogPosition:
        """Return the start of the segment after a sealed one that ends at `position`."""
        if position.offset == 0 or rest:
            raise self._broken(f"{path.name} is cut. Restore it", position.head)
        return position.in_next_segment

    def _check_is_last(self, position: LogPosition) -> None:
        """Raise `StoreError` if the log ends at a position, and sealed segments after it are missing."""
        is_sealed = position.offset == 0 and read_seals(self.files.seals).end.seq > position.head.seq
        # The active segment may have got lines and a seal since it was read.
        if is_sealed and not self._begins(position):
            name = self.files.sealed(position.head.seq + 1).name
            raise self._broken(f"{name} is missing. Restore it", position.head)

    def _begins(self, position: LogPosition) -> bool:
        """Return whether the segment at a position has its first line."""
        try:
            return read_line(self.line_from(position.first, 0)).seq == position.first
        except BrokenRecordError:
            return False

    def _broken(self, reason: str, head: ChainHead) -> StoreError:
        return StoreError(self.path, reason, line=head.seq + 1)

    def _check(self, raw: bytes, head: ChainHead, segment: "_OpenSegment") -> tuple[ChainedRecord, ChainHead]:
        """Return the line after `head`, and the new head."""
        try:
            line = read_line(raw)
            return line, check_link(line, head)
        except BrokenRecordError as e:
            reason = _HAS_ZEROS if b"\0" in raw and segment.sealed is None else e.reason
            place = f" (in {segment.sealed.name})" if segment.sealed else ""
            raise self._broken(f"{reason}{place}", head) from e

    def _unknown(self, line: ChainedRecord, why: Exception) -> StoreError:
        reason = f"it holds neither an interaction nor an event ({why}). A newer release may read it"
        return StoreError(self.path, reason, line=line.seq)

    @contextmanager
    def _opened(self, first: int, buffered: int = -1) -> Iterator[_OpenSegment | None]:
        """Open the segment that begins with line `first`. It may be one that has no line yet, or None."""
        try:
            segment = self._open(first, buffered)
            try:
                yield segment
            finally:
                if segment is not None:
                    segment.file.close()
        except DamagedSegmentError as e:
            raise StoreError(self.path, f"{e.strerror}. Restore the file", line=first) from e
        except OSError as e:
            reason = f"cannot be read ({e.strerror}). Allow reading it, or repair the disk"
            raise StoreError(self.path, reason) from e

    def _open(self, first: int, buffered: int) -> _OpenSegment | None:
        if sealed := self._open_sealed(first, buffered):
            return sealed
        try:
            active = _OpenSegment(self.path.open("rb", buffered), None)
        except FileNotFoundError:
            active = None
        # Looked for again, because the active segment may have been sealed before it was opened.
        if (sealed := self._open_sealed(first, buffered)) and active is not None:
            active.file.close()
        return sealed or active

    def _open_sealed(self, first: int, buffered: int) -> _OpenSegment | None:
        # Opened without a check before, because the writer may replace the plain file by the compressed one.
        plain = self.files.sealed(first)
        with suppress(FileNotFoundError):
            return _OpenSegment(plain.open("rb", buffered), plain)
        packed = self.files.compressed(first)
        with suppress(FileNotFoundError):
            return _OpenSegment(open_compressed(packed), packed)
        return None


def _line_at(file: BinaryIO, place: LinePlace) -> ChainedRecord | None:
    file.seek(place.offset)
    raw = file.read(place.length)
    try:
        line = read_line(raw) if len(raw) == place.length and raw.endswith(b"\n") else None
    except BrokenRecordError:
        return None
    return line if line is not None and line.seq == place.seq else None
