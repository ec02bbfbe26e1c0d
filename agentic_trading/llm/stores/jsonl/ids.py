"""The keys of the records in sealed segments, in a SQLite file that belongs to the log's writer.

All of this blocks. `find` may be called from several threads.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final

from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import Seal

_VERSION: Final = 1
_ASKED_AT_ONCE: Final = 500  # below the variable limit of every SQLite
_SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE ids (id INTEGER, seq INTEGER, offset INTEGER, PRIMARY KEY (id, seq)) WITHOUT ROWID;
CREATE TABLE segments (first INTEGER PRIMARY KEY, seal TEXT);
CREATE TABLE salt (value BLOB);
INSERT INTO salt VALUES (randomblob(32));
PRAGMA user_version = 1;
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A key that may be that of a line: two keys can have the same hash.

    Attributes:
        key: The key.
        seq: The number of the line.
        offset: Its offset in its segment, in uncompressed bytes.

    """

    key: str
    seq: int
    offset: int


class SealedIds:
    """Find the lines of sealed segments by the key of their record.

    A key is kept as a hash of 64 bits with a random salt, so that keys with equal hashes cannot be
    searched for. A file that is missing, damaged or of another log is made again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._db: sqlite3.Connection | None = None
        self._salt = b""

    def open(self, seals: Sequence[Seal]) -> int:
        """Open the file, and return the number of these segments whose keys it has: the first ones.

        Raises:
            StoreError: If the file cannot be used.

        """
        try:
            try:
                return self._open(seals)
            except sqlite3.DatabaseError:
                self.close()
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)
                return self._open(seals)
        except (sqlite3.Error, OSError) as e:
            raise self._failed(e) from e

    def add(self, seal: Seal, places: Iterable[KeyPlace]) -> None:
        """Add the keys of a segment. Raises `StoreError` if they cannot be written."""
        rows = [(self._hash(place.key), place.seq, place.offset) for place in places]
        try:
            # With its own connection, so that `find` does not wait.
            with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("BEGIN IMMEDIATE")
                with db:
                    db.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?, ?)", sorted(rows))
                    db.execute("INSERT INTO segments VALUES (?, ?)", (seal.first, seal.hash))
        except sqlite3.Error as e:
            raise self._failed(e) from e

    def find(self, keys: Sequence[str]) -> list[KeyPlace]:
        """Return the places of lines that may have one of the keys, in the log's order.

        Raises:
            StoreError: If the file cannot be read.

        """
        by_hash = {self._hash(key): key for key in keys}
        hashes = [*by_hash]
        found: list[KeyPlace] = []
        try:
            with self._lock:
                for at in range(0, len(hashes), _ASKED_AT_ONCE):
                    part = hashes[at : at + _ASKED_AT_ONCE]
                    query = f"SELECT id, seq, offset FROM ids WHERE id IN ({', '.join('?' * len(part))})"  # noqa: S608 - a mark for each key
                    found += [
                        KeyPlace(by_hash[id_], seq, offset)
                        for id_, seq, offset in self._opened.execute(query, part)
                    ]
        except sqlite3.Error as e:
            raise self._failed(e) from e
        return sorted(found, key=lambda place: place.seq)

    def close(self) -> None:
        """Close the file. You may call it twice."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._db is not None

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            raise sqlite3.ProgrammingError("it is closed")
        return self._db

    def _open(self, seals: Sequence[Seal]) -> int:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            kept = _prepare(db, seals)
            (self._salt,) = db.execute("SELECT value FROM salt").fetchone()
        except BaseException:
            db.close()
            raise
        self._db = db  # last, because `find` may run in another thread
        return kept

    def _hash(self, key: str) -> int:
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "little", signed=True)

    def _failed(self, e: Exception) -> StoreError:
        return StoreError(
            self._path, f"cannot be used ({e}). Free disk space, or delete the file: it is made again"
        )


def _prepare(db: sqlite3.Connection, seals: Sequence[Seal]) -> int:
    """Create missing tables. Return the number of segments whose keys they have."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA)
    elif version != _VERSION:
        raise sqlite3.DatabaseError(f"it is of version {version}, not {_VERSION}")
    kept = [seal for (seal,) in db.execute("SELECT seal FROM segments ORDER BY first")]
    if kept != [seal.hash for seal in seals[: len(kept)]]:
        raise sqlite3.DatabaseError("it is of another log")
    return len(kept)
