"""The index of a log: a SQLite file without bodies, built from the log.

All of this blocks. One thread does all of it, because the connection belongs to that thread.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from itertools import islice
from typing import TypeVar

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.log_line import IndexRow
from agentic_trading.llm.store import ChainHead
from agentic_trading.llm.stores.jsonl.reader import START, LinePlace, LogPosition, LogReader

T = TypeVar("T")

_VERSION = 6
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, offset, length,
    id, kind, trace_id, causation_id, tenant, time, day, subject, envelope_id, request_hash, occurrence, attempt,
    agent, workflow, provider, model, success, input_tokens, output_tokens, cost_nusd,
    sent, in_doubt, recorded, reservation, billed_nusd
);
CREATE INDEX by_id ON records (id, tenant);
CREATE INDEX by_trace ON records (trace_id, tenant);
CREATE INDEX by_envelope ON records (envelope_id, tenant) WHERE attempt > 0;
CREATE INDEX by_request ON records (request_hash, occurrence, tenant) WHERE attempt > 0;
CREATE INDEX by_tenant ON records (tenant);
CREATE INDEX by_run ON records (seq) WHERE kind IN ('run.started', 'run.ended', 'archive.started');
CREATE TABLE segments (first INTEGER PRIMARY KEY);
CREATE TABLE head (seq, hash, first, offset);
INSERT INTO head VALUES (0, '', 1, 0);
PRAGMA user_version = 6;
COMMIT;
"""
_INSERT = "INSERT INTO records VALUES (" + ", ".join("?" * (3 + len(fields(IndexRow)))) + ")"  # noqa: S608 - a mark for each column
_LINES_AT_ONCE = 5_000  # a limit for one transaction, so that other processes may write in between
_IN_MEMORY = ":memory:"


class LogIndex:
    """Answer queries about the log of `reader`, from a file next to it.

    A file that is missing, damaged, of another version or of another log is replaced. The index is in memory
    if no file can be written, or if another process locks it for more than `busy_s` seconds.
    """

    def __init__(self, reader: LogReader, *, busy_s: float = 10.0) -> None:
        self._reader = reader
        self._busy_s = busy_s
        self._file = reader.files.index
        self._place = str(self._file)
        self._db: sqlite3.Connection | None = None

    def answer(self, query: Callable[[sqlite3.Connection], T], end: int | None) -> T:
        """Return the result of `query`, after indexing the log up to line `end`.

        Raises:
            StoreError: If the log cannot be read or is broken, or if SQLite refuses the query.

        """
        for give_up in (self._start_afresh, self._move_to_memory):
            try:
                return query(self._catch_up(end))
            except sqlite3.DatabaseError as e:
                self.close()
                is_busy = getattr(e, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
                (self._move_to_memory if is_busy else give_up)()
        try:
            return query(self._catch_up(end))
        except sqlite3.Error as e:
            raise StoreError(self._reader.path, f"its index fails, even in memory ({e})") from e

    def end(self) -> LogPosition:
        """Return the position after the last indexed line, as of the latest `answer`."""
        return START if self._db is None else _head(self._db)

    def places(self, rows: Iterable[tuple[int, int, int]]) -> list[LinePlace]:
        """Return the places of lines, from their numbers, offsets and lengths. Only within a query."""
        if self._db is None:
            return []
        firsts = [first for (first,) in self._db.execute("SELECT first FROM segments ORDER BY first")]
        return [
            LinePlace(seq, firsts[bisect_right(firsts, seq) - 1], offset, length)
            for seq, offset, length in rows
        ]

    def close(self) -> None:
        """Close the file of the index. You may call it twice."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _start_afresh(self) -> None:
        try:
            for file in (self._file, self._file.with_name(f"{self._file.name}-journal")):
                file.unlink(missing_ok=True)
        except OSError:
            self._move_to_memory()

    def _move_to_memory(self) -> None:
        self._place = _IN_MEMORY

    def _catch_up(self, end: int | None) -> sqlite3.Connection:
        if self._db is None:
            self._db = _connect(self._place, self._busy_s)
        if not self._fits(self._db):
            with _transaction(self._db):
                self._db.execute("DELETE FROM records")
                self._db.execute("DELETE FROM segments")
                _move_head(self._db, START)
        while self._index_next(self._db, end):
            pass
        return self._db

    def _fits(self, db: sqlite3.Connection) -> bool:
        """Return whether the last indexed line is still at its place in the log."""
        head = _head(db)
        if head == START:
            return True
        query = "SELECT seq, offset, length FROM records WHERE seq = ?"
        places = self.places(db.execute(query, (head.head.seq,)))
        return any(line is not None and line.head == head.head for line in self._reader.lines_at(places))

    def _index_next(self, db: sqlite3.Connection, end: int | None) -> bool:
        """Index the next lines of the log. Return False if there are none."""
        head = position = _head(db)
        rows, firsts = [], set[int]()
        for line, reached in islice(self._reader.walk(head, end), _LINES_AT_ONCE):
            length = len(line.line) + 1
            rows.append((line.seq, reached.offset - length, length, *astuple(self._reader.facts(line))))
            firsts.add(reached.first)
            position = reached
        if not rows:
            return False
        with _transaction(db):
            if _head(db) == head:  # otherwise another process has indexed these lines
                db.executemany(_INSERT, rows)
                db.executemany("INSERT OR IGNORE INTO segments VALUES (?)", [(first,) for first in firsts])
                _move_head(db, position)
        return True


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
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        db.executescript(_SCHEMA)
    elif version != _VERSION:
        raise sqlite3.DatabaseError(f"it is of version {version}, not {_VERSION}")


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
