"""The steps of `audit_store.py` in a process of their own: our store, and SQLite with the bodies in it."""

import asyncio
import os
import resource
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from agentic_trading.audit.trace import TraceTree
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.store import Record
from agentic_trading.llm.stores import record_codec
from agentic_trading.llm.stores.jsonl.frames import compressed_frames
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from benchmarks.peers.rounds import answer_steps

WARMED: Final = 50
INSERTED_AT_ONCE: Final = 10_000
OPENED_BYTES: Final = 32 << 20
"""The size of the active segment of the logs that are opened."""

_SCHEMA: Final = "CREATE TABLE records (seq INTEGER PRIMARY KEY, id, trace, cause, tenant, agent, model, day, cost, body BLOB)"
_INDEXES: Final = (
    "CREATE UNIQUE INDEX by_id ON records (id)",
    "CREATE INDEX by_trace ON records (trace)",
    "CREATE INDEX by_agent ON records (agent, day, cost)",
)

# A store that answers the questions of `Records` needs more columns and indexes.
_ALL_SCHEMA: Final = (
    "CREATE TABLE records (seq INTEGER PRIMARY KEY, id, trace, cause, tenant, agent, model, day, cost, body BLOB,"
    " time, kind, workflow, provider, subject, verdict, failure, envelope, request, occurrence, attempt,"
    " input_tokens, output_tokens, latency_ms)"
)
_ALL_INDEXES: Final = (
    *_INDEXES,
    "CREATE INDEX by_envelope ON records (envelope) WHERE envelope IS NOT NULL",
    "CREATE INDEX by_request ON records (request, occurrence) WHERE request IS NOT NULL",
    "CREATE INDEX by_time ON records (time)",
    "CREATE INDEX by_failure ON records (failure, time) WHERE failure IS NOT NULL",
    "CREATE INDEX by_kind ON records (kind, time) WHERE kind IS NOT NULL",
)


class Cpu:
    """The CPU seconds that this process and its children took in a block, and its time."""

    cpu_s = 0.0
    seconds = 0.0

    @classmethod
    @contextmanager
    def taken(cls) -> Iterator["Cpu"]:
        """Measure the block."""
        took, begin = cls(), _used()
        started = time.perf_counter()
        yield took
        took.cpu_s, took.seconds = _used() - begin, time.perf_counter() - started


def _used() -> float:
    each = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def _peak_mb() -> float:
    # Not `ru_maxrss`, in which a new process begins with the memory of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def segments_of(log: Path) -> list[Path]:
    """Return the files of a log's segments, in order."""
    files = LogFiles(log)
    return [*(files.sealed(first) for first in files.sealed_firsts()), files.active]


def _index_files(log: Path) -> list[Path]:
    index = LogFiles(log).index
    return [*index.parent.glob(f"{index.name}*")]


def rebuild(log: str) -> dict[str, Any]:
    """Make the index of a log again, and ask it one question."""
    for file in _index_files(Path(log)):
        file.unlink()

    async def asked() -> int:
        async with aclosing(JsonFileInteractionStore(Path(log))) as store:
            return sum(each.cost_nusd for each in await store.records.spend("agent", "day"))

    before_mb = _peak_mb()
    with Cpu.taken() as took:
        cost_nusd = asyncio.run(asked())
    size = sum(file.stat().st_size for file in _index_files(Path(log)))
    return {
        "cpu_s": took.cpu_s,
        "bytes": size,
        "mb": _peak_mb(),
        "before_mb": before_mb,
        "cost_nusd": cost_nusd,
    }


def load(log: str, db: str, *, all_questions: bool = False) -> dict[str, Any]:
    """Load a log into SQLite with its bodies. Its indexes are made behind the rows, which is the faster way.

    With `all_questions` it has the columns and indexes for the questions of our index: by attempt, request, time, failure
    and kind. Otherwise it answers three of them: by id, by trace, and the cost by agent and day.
    """
    schema, indexes, row_of = (
        (_ALL_SCHEMA, _ALL_INDEXES, _all_of) if all_questions else (_SCHEMA, _INDEXES, _row)
    )
    for suffix in ("", "-wal", "-shm"):
        Path(f"{db}{suffix}").unlink(missing_ok=True)
    with Cpu.taken() as took, closing(_connect(db, "NORMAL")) as bodies:
        bodies.execute(schema)
        rows = []
        for file in segments_of(Path(log)):
            with file.open("rb") as lines:
                for raw in lines:
                    rows.append(row_of(raw[: raw.rindex(b',"seq":')] + b"}"))
                    if len(rows) == INSERTED_AT_ONCE:
                        _insert(bodies, rows)
                        rows = []
        _insert(bodies, rows)
        for index in indexes:
            bodies.execute(index)
        bodies.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"cpu_s": took.cpu_s, "bytes": Path(db).stat().st_size}


def _connect(db: str, synchronous: str) -> sqlite3.Connection:
    made = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    made.execute("PRAGMA journal_mode = WAL")
    made.execute(f"PRAGMA synchronous = {synchronous}")
    return made


def _row(raw: bytes) -> tuple[Any, ...]:
    return _columns(orjson.loads(raw), raw)


def _all_of(raw: bytes) -> tuple[Any, ...]:
    fields = orjson.loads(raw)
    envelope, result, body = (fields.get(name) or {} for name in ("envelope", "result", "body"))
    failure = result.get("failure") or body.get("reason")
    return (
        *_columns(fields, raw), fields.get("stored_at") or fields["time"], fields.get("kind"), envelope.get("workflow"),
        result.get("provider"), envelope.get("subject") or body.get("subject") or body.get("symbol"), body.get("verdict"),
        failure.get("category") if isinstance(failure, dict) else None, envelope.get("envelope_id"),
        envelope.get("request_hash"), envelope.get("occurrence"), result.get("attempt_number"),
        result.get("input_tokens"), result.get("output_tokens"), result.get("latency_ms"),
    )  # fmt: skip


def _columns(fields: dict[str, Any], raw: bytes) -> tuple[Any, ...]:
    envelope, result = fields.get("envelope") or fields, fields.get("result") or {}
    moment = fields.get("stored_at") or fields["time"]
    return (
        fields.get("interaction_id") or fields["id"], envelope["trace_id"], envelope["causation_id"],
        envelope["tenant_id"], envelope.get("agent_id"), result.get("model"), moment[:10], result.get("cost_nusd"), raw,
    )  # fmt: skip


def _insert(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    marks = ", ".join("?" * len(rows[0])) if rows else ""
    with db:
        db.executemany(f"INSERT OR IGNORE INTO records VALUES (NULL, {marks})", rows)  # noqa: S608 - marks


def pack(log: str, to: str) -> dict[str, Any]:
    """Copy a log and its index with compressed segments, unless the copy is there; return its size."""
    source, target = LogFiles(Path(log)), LogFiles(Path(to))
    with Cpu.taken() as took:
        for first in [] if target.active.parent.exists() else source.sealed_firsts():
            target.active.parent.mkdir(exist_ok=True)
            with source.sealed(first).open("rb") as plain, target.compressed(first).open("wb") as packed:
                packed.writelines(compressed_frames(plain))
    for name in (source.active.name, source.seals.name, *(file.name for file in _index_files(source.active))):
        shutil.copy(source.active.with_name(name), target.active.with_name(name))
    sealed = [target.compressed(first).stat().st_size for first in source.sealed_firsts()]
    return {"cpu_s": took.cpu_s, "bytes": sum(sealed) + target.active.stat().st_size}


def traces(log: str, packed: str, db: str, ids: Sequence[str], rounds: int) -> dict[str, Any]:
    """Read decision chains in each way; return the CPU milliseconds of one, round by round, and the records."""
    with closing(_connect(db, "FULL")) as bodies:
        return asyncio.run(_traces(log, packed, bodies, ids, rounds))


Read = Callable[[str], Awaitable[int]]


async def _traces(
    log: str, packed: str, bodies: sqlite3.Connection, ids: Sequence[str], rounds: int
) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    found: dict[str, int] = {}
    with ThreadPoolExecutor(1) as thread:
        async with (
            aclosing(JsonFileInteractionStore(Path(log))) as plain,
            aclosing(JsonFileInteractionStore(Path(packed))) as compressed,
        ):
            ways = {"plain": _from_log(plain), "packed": _from_log(compressed)} | _from_sqlite(bodies, thread)
            for number in range(rounds + 1):
                for name, read in [*ways.items()][:: 1 if number % 2 else -1]:
                    with Cpu.taken() as took:
                        found[name] = sum([await read(trace) for trace in (ids if number else ids[:WARMED])])
                    if number:
                        taken.setdefault(name, []).append(took.cpu_s / len(ids) * 1e3)
    return {"ms": taken, "records": found}


def _from_log(store: JsonFileInteractionStore) -> Read:
    """Return the way to read a decision chain and its tree from a log."""

    async def read(trace: str) -> int:
        return len(TraceTree(await store.records.trace(trace)).nodes)

    return read


def _from_sqlite(bodies: sqlite3.Connection, thread: ThreadPoolExecutor) -> dict[str, Read]:
    """Return the ways to read a decision chain from the bodies in SQLite.

    Records are read in a thread, as our store does, because a loop that serves other calls must not wait for a disk.
    """
    query = "SELECT body FROM records WHERE trace = ? ORDER BY seq"

    def records(trace: str) -> list[Record]:
        return [record_codec.record_of(raw) for (raw,) in bodies.execute(query, (trace,))]

    async def records_in(trace: str) -> int:
        found = await asyncio.get_running_loop().run_in_executor(thread, records, trace)
        return len(TraceTree(found).nodes)

    async def objects_in(trace: str) -> int:
        return len([orjson.loads(raw) for (raw,) in bodies.execute(query, (trace,))])

    return {"sqlite": records_in, "sqlite_objects": objects_in}


def sums(log: str, db: str) -> dict[str, Any]:
    """Sum the cost by agent and day in our index and in SQLite; return the CPU milliseconds of each, and the cost."""
    query = "SELECT agent, day, sum(cost), count(*) FROM records WHERE agent IS NOT NULL GROUP BY 1, 2"

    async def asked() -> tuple[float, int]:
        async with aclosing(JsonFileInteractionStore(Path(log))) as store:
            await store.records.spend("agent", "day")
            with Cpu.taken() as took:
                found = await store.records.spend("agent", "day")
        return took.cpu_s, sum(each.cost_nusd for each in found)

    ours_s, cost_nusd = asyncio.run(asked())
    with closing(_connect(db, "FULL")) as bodies:
        bodies.execute(query).fetchall()
        with Cpu.taken() as took:
            found = bodies.execute(query).fetchall()
    costs = {cost_nusd, sum(row[2] for row in found)}
    return {"ours_ms": ours_s * 1e3, "sqlite_ms": took.cpu_s * 1e3, "cost_nusd": sorted(costs)}


def append(log: str, file: str, at_once: int) -> dict[str, Any]:
    """Have so many callers store the records of a file, each when its last one is on disk; return the CPU of one."""
    records = [record_codec.record_of(raw) for raw in Path(file).read_bytes().splitlines()]
    for record in records:
        _ = record.wire  # the bus needs these bytes too

    async def stored() -> dict[str, Any]:
        async with aclosing(JsonFileInteractionStore(Path(log))) as store:
            await store.open()

            async def caller(number: int) -> None:
                for record in records[number::at_once]:
                    await (
                        store.store(record) if isinstance(record, LLMInteraction) else store.record(record)
                    )

            with Cpu.taken() as took:
                async with asyncio.TaskGroup() as group:
                    for number in range(at_once):
                        group.create_task(caller(number))
            statistics = store.statistics()
        assert statistics.records == len(records)
        return {
            "us": took.cpu_s / len(records) * 1e6, "seconds": took.seconds, "commits": statistics.commits,
        }  # fmt: skip

    return asyncio.run(stored())


def append_sqlite(db: str, file: str, at_once: int) -> dict[str, Any]:
    """Insert the records of a file into SQLite, so many in a transaction, each on disk before the next."""
    rows = [_row(raw) for raw in Path(file).read_bytes().splitlines()]
    with closing(_connect(db, "FULL")) as bodies, Cpu.taken() as took:
        for place in range(0, len(rows), at_once):
            _insert(bodies, rows[place : place + at_once])
    return {"us": took.cpu_s / len(rows) * 1e6, "seconds": took.seconds}


def copy(log: str, to: str, sealed: int | None = None) -> dict[str, Any]:
    """Copy a log, with links to its sealed segments: all of it, or `sealed` segments and an active one of 32 MB.

    The copy is opened once, so that it has its file of ids.
    """
    source, target = LogFiles(Path(log)), LogFiles(Path(to))
    shutil.rmtree(target.active.parent, ignore_errors=True)
    target.active.parent.mkdir()
    firsts = source.sealed_firsts()
    for first in firsts[:sealed]:
        os.link(source.sealed(first), target.sealed(first))
    seals = source.seals.read_bytes().splitlines(keepends=True)[:sealed]
    target.seals.write_bytes(b"".join(seals))
    if sealed is None:
        shutil.copy(source.active, target.active)
        shutil.copy(source.ids, target.ids)
    else:
        target.active.write_bytes(_first_lines(segments_of(source.active)[sealed:]))
    with Cpu.taken() as took:
        asyncio.run(_open(target.active))
    return {"sealed": len(firsts[:sealed]), "cpu_s": took.cpu_s, "active": target.active.stat().st_size}


def _first_lines(files: Sequence[Path]) -> bytes:
    """Return the whole lines in the first `OPENED_BYTES` of some files."""
    found = bytearray()
    for file in files:
        with file.open("rb") as lines:
            found += lines.read(OPENED_BYTES - len(found))
    return bytes(found[: found.rindex(b"\n") + 1])


async def _open(log: Path) -> Cpu:
    with Cpu.taken() as took:
        store = JsonFileInteractionStore(log)
        await store.open()
    await store.aclose()
    return took


def opened(log: str) -> dict[str, Any]:
    """Open a log to write to it; return the CPU milliseconds, and the peak memory of this process."""
    before_mb = _peak_mb()
    took = asyncio.run(_open(Path(log)))
    return {"ms": took.cpu_s * 1e3, "mb": _peak_mb(), "before_mb": before_mb}


STEPS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    step.__name__: step for step in (rebuild, load, pack, traces, sums, append, append_sqlite, copy, opened)
}

if __name__ == "__main__":
    answer_steps(STEPS)
