"""The index of a log: a SQLite file without bodies, built from the log.

All of this blocks. One thread does all of it, because the connection belongs to that thread.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import ChainHead
from agentic_trading.llm.stores.jsonl import index_rows
from agentic_trading.llm.stores.jsonl.index_rows import IndexedLine, Names
from agentic_trading.llm.stores.jsonl.reader import START, LinePlace, LogPosition, LogReader, LogState

T = TypeVar("T")

_CACHE_KB = 8_192
_LINES_AT_ONCE = 5_000  # a limit for one transaction, so that other processes may write in between
_IN_MEMORY = ":memory:"
_CLOCK = SystemClock()
_SEGMENTS_OF = """
SELECT first FROM segments
WHERE first BETWEEN (SELECT max(first) FROM segments WHERE first <= ?) AND ? ORDER BY first
"""


class _Indexed(NamedTuple):
    """A state of the log, and what was indexed in it: if nothing has changed, there is nothing to index."""

    state: LogState
    end: int | None
    head: LogPosition


class LogIndex:
    """Answer queries about the log of `reader`, from a file next to it.

    A file that is missing, damaged, of another version or of another log is replaced. The index is in memory
    if no file can be written, or while another process locks it for more than `busy_s` seconds.
    """

    def __init__(self, reader: LogReader, *, busy_s: float = 10.0, clock: Clock = _CLOCK) -> None:
        self._reader = reader
        self._busy_s = busy_s
        self._clock = clock
        self._file_again_at: float | None = None
        self._file = reader.files.index
        self._place = str(self._file)
        self._db: sqlite3.Connection | None = None
        self._has_indexes = False
        self._indexed: _Indexed | None = None
        self.names = Names()

    def answer(self, query: Callable[[sqlite3.Connection], T], end: int | None) -> T:
        """Return the result of `query`, after indexing the log up to line `end`.

        Raises:
            StoreError: If the log cannot be read or is broken, or if SQLite refuses the query.

        """
        self._return_to_file()
        for give_up in (self._start_afresh, self._move_to_memory):
            try:
                return query(self._catch_up(end))
            except sqlite3.DatabaseError as e:
                self.close()
                (self._leave_busy_file if _is_busy(e) else give_up)()
        try:
            return query(self._catch_up(end))
        except sqlite3.Error as e:
            raise StoreError(self._reader.path, f"its index fails, even in memory ({e})") from e

    def end(self) -> LogPosition:
        """Return the position after the last indexed line, as of the latest `answer`."""
        return START if self._db is None else _head(self._db)

    def close(self) -> None:
        """Close the file of the index. You may call it twice."""
        if self._db is not None:
            self._db.close()
            self._db = None
            self._has_indexes = False
            self._indexed = None
            self.names.forget()

    def _start_afresh(self) -> None:
        try:
            for file in (self._file, self._file.with_name(f"{self._file.name}-journal")):
                file.unlink(missing_ok=True)
        except OSError:
            self._move_to_memory()

    def _move_to_memory(self) -> None:
        self._place = _IN_MEMORY

    def _leave_busy_file(self) -> None:
        self._move_to_memory()
        self._file_again_at = self._clock.monotonic() + self._busy_s

    def _return_to_file(self) -> None:
        """Use the file again if its lock is gone. Try once in `busy_s` seconds, without a wait."""
        if self._file_again_at is None or self._clock.monotonic() < self._file_again_at:
            return
        try:
            with closing(sqlite3.connect(self._file, timeout=0, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as e:
            if _is_busy(e):
                self._leave_busy_file()
                return
        self.close()
        self._place = str(self._file)
        self._file_again_at = None

    def _catch_up(self, end: int | None) -> sqlite3.Connection:
        if self._db is None:
            self._db = _connect(self._place, self._busy_s)
        state = self._reader.state()  # before reading, because lines may be appended meanwhile
        if state is None or _Indexed(state, end, _head(self._db)) != self._indexed:
            self._catch_up_to(self._db, end)
            self._indexed = _Indexed(state, end, _head(self._db)) if state else None
        self.names.read(self._db)
        return self._db

    def _catch_up_to(self, db: sqlite3.Connection, end: int | None) -> None:
        if not self._fits(db):
            with _transaction(db):
                index_rows.clear_rows(db)
                _move_head(db, START)
            self._has_indexes = False
        while self._index_next(db, end):
            pass
        if not self._has_indexes:
            for index in index_rows.missing_indexes(db):
                with _transaction(db):  # one for each, because readers wait for a large one
                    db.execute(index)
        self._has_indexes = True

    def _fits(self, db: sqlite3.Connection) -> bool:
        """Return whether the last indexed line is still at its place in the log."""
        head = _head(db)
        if head == START:
            return True
        query = "SELECT seq, offset, length FROM records WHERE seq = ?"
        places = line_places(db, db.execute(query, (head.head.seq,)))
        return any(line is not None and line.head == head.head for line in self._reader.lines_at(places))

    def _index_next(self, db: sqlite3.Connection, end: int | None) -> bool:
        """Index the next lines of the log. Return False if there are none."""
        head = position = _head(db)
        lines, firsts = list[IndexedLine](), set[int]()
        for line, reached in islice(self._reader.walk(head, end), _LINES_AT_ONCE):
            length = len(line.line) + 1
            lines.append(IndexedLine(line.seq, reached.offset - length, length, self._reader.facts(line)))
            firsts.add(reached.first)
            position = reached
        if not lines:
            return False
        try:
            with _transaction(db):
                if _head(db) == head:  # otherwise another process has indexed these lines
                    self.names.read(db)
                    index_rows.add_rows(db, self.names, lines)
                    db.executemany(
                        "INSERT OR IGNORE INTO segments VALUES (?)", [(first,) for first in firsts]
                    )
                    _move_head(db, position)
        except BaseException:
            self.names.forget()  # their numbers are not in the file
            raise
        return True


def line_places(db: sqlite3.Connection, rows: Iterable[tuple[int, int, int]]) -> list[LinePlace]:
    """Return the places of lines, from their numbers, offsets and lengths in an index."""
    wanted = list(rows)
    seqs = [seq for seq, _, _ in wanted]
    found = db.execute(_SEGMENTS_OF, (min(seqs, default=0), max(seqs, default=0)))
    firsts = [first for (first,) in found]
    return [
        LinePlace(seq, firsts[bisect_right(firsts, seq) - 1], offset, length)
        for seq, offset, length in wanted
    ]


def _connect(place: str, busy_s: float) -> sqlite3.Connection:
    db = sqlite3.connect(place, timeout=busy_s, isolation_level=None)
    try:
        _prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        db.executescript(index_rows.TABLES)
    elif version != index_rows.VERSION:
        raise sqlite3.DatabaseError(f"it is of version {version}, not {index_rows.VERSION}")


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def _head(db: sqlite3.Connection) -> LogPosition:
    seq, digest, first, offset = db.execute("SELECT seq, hash, first, offset FROM head").fetchone()
    return LogPosition(ChainHead(seq, digest), first, offset) if seq else START


def _move_head(db: sqlite3.Connection, position: LogPosition) -> None:
    place = (position.head.seq, position.head.hash, position.first, position.offset)
    db.execute("UPDATE head SET seq = ?, hash = ?, first = ?, offset = ?", place)
