"""The tables of an index, and the rows that lines of the log add to them."""

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from agentic_trading.llm.event import ArchiveStarted, RunEnded, RunStarted
from agentic_trading.llm.log_line import INTERACTION, IndexRow
from agentic_trading.llm.store import IdKind
from agentic_trading.llm.stores.record_facts import MICROSECONDS_A_DAY, bucket_of, micros_of

SUCCESS: Final = 1
SENT: Final = 2
RECORDED: Final = 4
IN_DOUBT: Final = 8
RUN: Final = 16
UNMETERED: Final = 32
"""The flags of a record: those of `Fact`, and whether it starts or ends a run."""

_Ids = tuple[int, int, int | None, int | None]
_RUN_KINDS: Final = (RunStarted.KIND, RunEnded.KIND, ArchiveStarted.KIND)
INTERACTION_NUMBER: Final = 1

VERSION: Final = 8
TABLES: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT UNIQUE);
INSERT INTO names VALUES (0, ''), ({INTERACTION_NUMBER}, '{INTERACTION}');
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, offset, length,
    time, kind, tenant, agent, workflow, provider, model, subject, verdict, failure,
    attempt, flags, input_tokens, output_tokens, cost_nusd, latency_ms,
    id, trace, envelope, request, reservation, billed_nusd
);
CREATE TABLE sums (
    tenant, day, kind, agent, workflow, provider, model, verdict, failure, flags,
    records, input_tokens, output_tokens, cost_nusd, billed_nusd,
    PRIMARY KEY (tenant, day, kind, agent, workflow, provider, model, verdict, failure, flags)
) WITHOUT ROWID;
CREATE TABLE latencies (
    tenant, day, model, bucket, attempts, PRIMARY KEY (tenant, day, model, bucket)
) WITHOUT ROWID;
CREATE TABLE other_ids (of, id, tenant, PRIMARY KEY (of, id, tenant)) WITHOUT ROWID;
CREATE TABLE segments (first INTEGER PRIMARY KEY);
CREATE TABLE head (seq, hash, first, offset, resets);
INSERT INTO head VALUES (0, '', 1, 0, 0);
PRAGMA user_version = {VERSION};
COMMIT;
"""  # noqa: S608 - constants of this module
# Empty names have no entry, because a query without an agent or a failure reads most rows anyway.
_INDEXES: Final = {
    "by_id": "(id)",
    "by_trace": "(trace)",
    "by_envelope": "(envelope) WHERE attempt > 0",
    "by_request": "(request) WHERE attempt > 0",
    "by_time": "(time)",
    "by_tenant": "(tenant)",
    "by_agent": "(agent, time) WHERE agent > 0",
    "by_failure": "(failure, time) WHERE failure > 0",
    "by_kind": f"(kind, time) WHERE kind > {INTERACTION_NUMBER}",
    "by_run": f"(seq) WHERE flags & {RUN}",
}
_CLEARED: Final = ("records", "sums", "latencies", "other_ids", "segments")
_COLUMNS: Final = 25

_ROW: Final = f"INSERT INTO records VALUES ({', '.join('?' * _COLUMNS)})"  # noqa: S608 - a mark for each column
_SUMS: Final = """
INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    records = records + excluded.records,
    input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cost_nusd = cost_nusd + excluded.cost_nusd,
    billed_nusd = billed_nusd + excluded.billed_nusd
"""
_LATENCIES: Final = """
INSERT INTO latencies VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET attempts = attempts + excluded.attempts
"""

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_LOWEST_UUID: Final = "00000000-0000-1000-0000-000000000000"
_HIGHEST_UUID: Final = "ffffffff-ffff-8fff-ffff-ffffffffffff"
_BITS_64: Final = len("00000000-0000-1000")
_OFFSET: Final = 1 << 63  # SQLite has signed integers
UUID_BITS: Final = 0xF000
"""The bits of a number that has the version of a UUID. They are 0 for any other id."""


def id_number(text: str) -> int:
    """Return the number of an id: the first 64 bits of a UUID, or a hash.

    Two ids may have the same number.
    """
    if _UUID.fullmatch(text):
        return int(text[:_BITS_64].replace("-", ""), 16) - _OFFSET
    return _hash_number(text)


# The decision chains of successive lines are few.
_trace_number: Final = lru_cache(maxsize=1024)(id_number)


def _hash_number(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") & ~UUID_BITS) - _OFFSET


def is_uuid(text: str) -> bool:
    """Return whether an id is a UUID in its usual form."""
    return _UUID.fullmatch(text) is not None


def uuid_range(prefix: str) -> tuple[int, int] | None:
    """Return the lowest and the highest number of UUIDs with this prefix, None if there is no such UUID."""
    low, high = prefix + _LOWEST_UUID[len(prefix) :], prefix + _HIGHEST_UUID[len(prefix) :]
    return (id_number(low), id_number(high)) if is_uuid(low) and is_uuid(high) else None


def request_number(request_hash: str, occurrence: int) -> int:
    """Return the number of a request and its occurrence: 48 bits, because a hit is confirmed by its record."""
    return _hash_number(f"{request_hash}\n{occurrence}") >> 16


class Names:
    """The numbers of names in an index. The empty name is 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self._written = 0
        self._resets = -1

    def read(self, db: sqlite3.Connection) -> None:
        """Read new names of the index."""
        (resets,) = db.execute("SELECT resets FROM head").fetchone()
        if resets != self._resets:
            self.forget()
            self._resets = resets
        query = "SELECT name FROM names WHERE number >= ? ORDER BY number"
        for (name,) in db.execute(query, (len(self._texts),)):
            self._remember(name)
        self._written = len(self._texts)

    def forget(self) -> None:
        """Read all names again at the next `read`."""
        self._numbers.clear()
        self._texts.clear()

    def number(self, name: str) -> int | None:
        """Return the number of a name, None if no record has it."""
        return self._numbers.get(name)

    def numbers(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of names, and give new names the next numbers."""
        try:
            return tuple(map(self._numbers.__getitem__, names))
        except KeyError:
            for name in names:
                if name not in self._numbers:
                    self._remember(name)
            return self.numbers(names)

    def has(self, number: int) -> bool:
        """Return whether a name with this number has been read."""
        return number < len(self._texts)

    def text(self, number: int) -> str:
        """Return the name that has a number."""
        return self._texts[number]

    def write(self, db: sqlite3.Connection) -> None:
        """Write the new names to the index."""
        new = enumerate(self._texts[self._written :], start=self._written)
        db.executemany("INSERT INTO names VALUES (?, ?)", new)
        self._written = len(self._texts)

    def _remember(self, name: str) -> None:
        self._numbers[name] = len(self._texts)
        self._texts.append(name)


class IndexedLine(NamedTuple):
    """A line of the log: its place in its segment, and the facts of its record."""

    seq: int
    offset: int
    length: int
    facts: IndexRow


def add_rows(db: sqlite3.Connection, names: Names, lines: Sequence[IndexedLine]) -> None:
    """Add the rows, the sums and the other ids of new lines. Call it within a transaction."""
    rows = []
    sums: defaultdict[tuple[int, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    latencies = Counter[tuple[int, ...]]()
    others = set[tuple[IdKind, str, int]]()
    for seq, offset, length, row in lines:
        micros = micros_of(datetime.fromisoformat(row.time))
        day = micros // MICROSECONDS_A_DAY
        numbers = names.numbers((
            row.kind,
            row.tenant,
            row.agent,
            row.workflow,
            row.provider,
            row.model,
            row.subject,
            row.verdict,
            row.failure,
        ))
        kind, tenant, agent, workflow, provider, model, _, verdict, failure = numbers
        flags = _flags_of(row)
        ids = _ids_of(row)
        rows.append((
            seq,
            offset,
            length,
            micros,
            *numbers,
            row.attempt,
            flags,
            row.input_tokens,
            row.output_tokens,
            row.cost_nusd,
            row.latency_ms,
            *ids,
            row.reservation,
            row.billed_nusd,
        ))
        total = sums[tenant, day, kind, agent, workflow, provider, model, verdict, failure, flags]
        total[0] += 1
        total[1] += row.input_tokens
        total[2] += row.output_tokens
        total[3] += row.cost_nusd
        total[4] += row.billed_nusd
        if row.sent:
            latencies[tenant, day, model, bucket_of(row.latency_ms)] += 1
        of_record, of_trace, of_envelope, _ = ids
        if not (
            of_record & UUID_BITS
            and of_trace & UUID_BITS
            and (of_envelope is None or of_envelope & UUID_BITS)
        ):
            others.update(_other_ids(row, ids, tenant))
    names.write(db)
    db.executemany(_ROW, rows)
    # Summed here first, because most lines of a batch share their names and their day.
    db.executemany(_SUMS, [(*key, *total) for key, total in sums.items()])
    db.executemany(_LATENCIES, [(*key, attempts) for key, attempts in latencies.items()])
    db.executemany("INSERT OR IGNORE INTO other_ids VALUES (?, ?, ?)", sorted(others))


def missing_indexes(db: sqlite3.Connection) -> list[str]:
    """Return the statements that make the missing indexes. They are made when all lines of a log are in."""
    made = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
    missing = {name: columns for name, columns in _INDEXES.items() if name not in made}
    # Another process may make them at the same time.
    return [f"CREATE INDEX IF NOT EXISTS {name} ON records {columns}" for name, columns in missing.items()]


def clear_rows(db: sqlite3.Connection) -> None:
    """Delete all rows and indexes. Call it within a transaction."""
    for name in _INDEXES:
        db.execute(f"DROP INDEX IF EXISTS {name}")
    for table in _CLEARED:
        db.execute(f"DELETE FROM {table}")  # noqa: S608 - names from above
    db.execute(f"DELETE FROM names WHERE number > {INTERACTION_NUMBER}")  # noqa: S608 - a constant
    db.execute("UPDATE head SET resets = resets + 1")


def _flags_of(row: IndexRow) -> int:
    if not row.attempt:
        return RUN if row.kind in _RUN_KINDS else 0
    return (
        (SUCCESS if row.success else 0)
        | (SENT if row.sent else 0)
        | (RECORDED if row.recorded else 0)
        | (IN_DOUBT if row.in_doubt else 0)
        | (UNMETERED if row.unmetered else 0)
    )


def _ids_of(row: IndexRow) -> _Ids:
    """Return the columns `id`, `trace`, `envelope` and `request`."""
    record, trace = id_number(row.id), _trace_number(row.trace_id)
    if not row.attempt:
        return record, trace, None, None
    return record, trace, id_number(row.envelope_id), request_number(row.request_hash, row.occurrence)


def _other_ids(row: IndexRow, ids: _Ids, tenant: int) -> Iterable[tuple[IdKind, str, int]]:
    """Yield the ids that are no UUIDs: an index finds their prefixes by their text."""
    of_record, of_trace, of_envelope, _ = ids
    names: Sequence[tuple[IdKind, str, int | None]] = (
        ("record", row.id, of_record),
        ("record", row.envelope_id, of_envelope),
        ("trace", row.trace_id, of_trace),
    )
    for of, text, number in names:
        if number is not None and not number & UUID_BITS:
            yield of, text, tenant
