"""Reading a log's file, which needs no lock; everything here blocks and belongs into a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import LogEntry, Record, Verification
from agentic_trading.llm.stores.chain import BrokenRecordError, ChainHead, ChainedRecord, check_link, read_line
from agentic_trading.llm.stores.index_row import IndexRow, index_row_of
from agentic_trading.llm.stores.record_codec import record_of

_BATCH_LINES = 256
_BATCH_BYTES = 1 << 20


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

    def walk(self, start: LogPosition = START, end: int | None = None) -> Iterator[tuple[ChainedRecord, LogPosition]]:
        """Give each line from `start` on with the place behind it; stop at offset `end`, or at an unfinished line.

        Raises `StoreError` naming the first line that is broken or does not continue the chain.
        """
        if not self.exists():
            return
        position = start
        with self._opened(start.offset) as file:
            for raw in file:
                offset = position.offset + len(raw)
                if not raw.endswith(b"\n") or (end is not None and offset > end):
                    return
                line = self._checked(raw, position.head)
                position = LogPosition(offset, line.head)
                yield line, position

    def entries(self, start: LogPosition, after: int, end: int | None) -> tuple[list[LogEntry], LogPosition]:
        """Read one batch of entries numbered above `after`, and say where it ended; no progress means no more."""
        found: list[LogEntry] = []
        position = start
        for line, position in self.walk(start, end):
            if line.seq > after:
                found.append(LogEntry(line.seq, self.record(line), line.hash))
            if len(found) >= _BATCH_LINES or position.offset - start.offset >= _BATCH_BYTES:
                break
        return found, position

    def line_at(self, offset: int, length: int) -> ChainedRecord | None:
        """Return the line that stands there, or None if there is no whole and unbroken line."""
        with self._opened(offset) as file:
            raw = file.read(length)
        try:
            return read_line(raw) if len(raw) == length and raw.endswith(b"\n") else None
        except BrokenRecordError:
            return None

    def record(self, line: ChainedRecord) -> Record:
        """Return the record that a line carries; raises `StoreError` if it carries none that we know."""
        try:
            return record_of(line.record)
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
        try:
            for _line, reached in self.walk(end=written.offset if written else None):
                position = reached
        except StoreError as e:
            if not e.line:
                raise
            return _broken(position, e.reason)
        if written and position != written:
            return _broken(position, f"it is missing or cut; {written.head.seq} lines were written")
        if not written and self._goes_on_after(position):
            return _broken(position, "it is unfinished: it is being written, or its writer died while it was")
        return Verification(position.head.seq, position.head.hash)

    @contextmanager
    def _opened(self, offset: int) -> Iterator[BinaryIO]:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                yield file
        except OSError as e:
            raise StoreError(
                self.path, f"cannot be read ({e.strerror}); allow reading it, or mend the disk"
            ) from e

    def _checked(self, raw: bytes, head: ChainHead) -> ChainedRecord:
        try:
            line = read_line(raw)
            check_link(line, head)
        except BrokenRecordError as e:
            raise StoreError(self.path, e.reason, line=head.seq + 1) from e
        return line

    def _unknown(self, line: ChainedRecord, why: Exception) -> StoreError:
        reason = f"it holds neither an interaction nor an event ({why}); a newer release may read it"
        return StoreError(self.path, reason, line=line.seq)

    def _goes_on_after(self, position: LogPosition) -> bool:
        return self.exists() and self.path.stat().st_size > position.offset


def _broken(position: LogPosition, reason: str) -> Verification:
    return Verification(position.head.seq, position.head.hash, position.head.seq + 1, reason)
