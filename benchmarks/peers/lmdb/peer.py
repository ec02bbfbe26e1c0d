"""LMDB: a log with its bodies, and what finds a record by its id and by its trace."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import orjson

from benchmarks.peers.rounds import answer_steps

LOADED_AT_ONCE = 10_000
WARMED = 50


def _opened(folder: str, *, sync: bool) -> tuple[lmdb.Environment, Any, Any, Any]:
    """Return the environment with its tables: bodies by number, and numbers by id and by trace."""
    env = lmdb.open(folder, map_size=1 << 40, max_dbs=3, sync=sync)
    return env, env.open_db(b"bodies"), env.open_db(b"ids"), env.open_db(b"traces", dupsort=True)


def _rows(file: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the id, the trace and the bytes of each record of a file of lines."""
    with file.open("rb") as lines:
        for raw in lines:
            fields = orjson.loads(raw)
            record_id = fields.get("interaction_id") or fields["id"]
            yield record_id.encode(), (fields.get("envelope") or fields)["trace_id"].encode(), raw


def _put(tables: tuple[Any, ...], number: int, rows: Sequence[tuple[bytes, bytes, bytes]]) -> int:
    """Write records in one transaction, each unless its id is there; return the number of the next one."""
    env, bodies, ids, traces = tables
    with env.begin(write=True) as txn:
        for record_id, trace, raw in rows:
            key = number.to_bytes(8)
            if txn.put(record_id, key, db=ids, overwrite=False):
                txn.put(key, raw, db=bodies, append=True)
                txn.put(trace, key, db=traces)
                number += 1
    return number


def load(folder: str, files: Sequence[str]) -> dict[str, float]:
    """Load the files of a log; return the CPU seconds, the records and the bytes on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.process_time()
    tables = _opened(folder, sync=False)
    number, rows = 1, []
    with closing(tables[0]):
        for file in files:
            for row in _rows(Path(file)):
                rows.append(row)
                if len(rows) == LOADED_AT_ONCE:
                    number, rows = _put(tables, number, rows), []
        number = _put(tables, number, rows)
        tables[0].sync(force=True)
    cpu_s = time.process_time() - begin
    return {"cpu_s": cpu_s, "records": number - 1, "bytes": Path(folder, "data.mdb").stat().st_blocks * 512}


def traces(folder: str, ids: Sequence[str]) -> dict[str, float]:
    """Read decision chains as JSON objects; return the CPU milliseconds of each, and the records."""
    env, bodies, _, by_trace = _opened(folder, sync=True)

    def read(trace: str) -> int:
        with env.begin(buffers=True) as txn:
            cursor = txn.cursor(by_trace)
            numbers = cursor.iternext_dup() if cursor.set_key(trace.encode()) else ()
            return len([orjson.loads(txn.get(number, db=bodies)) for number in numbers])

    with closing(env):
        for trace in ids[:WARMED]:
            read(trace)
        begin = time.process_time()
        records = sum(map(read, ids))
        return {"ms": (time.process_time() - begin) / len(ids) * 1e3, "records": records}


def append(folder: str, file: str, at_once: int) -> dict[str, float]:
    """Append the records of a file, so many in a transaction, each on disk before the next; return the CPU of one."""
    rows = [*_rows(Path(file))]
    tables = _opened(folder, sync=True)
    with closing(tables[0]):
        with tables[0].begin() as txn:
            number = txn.stat(tables[1])["entries"] + 1
        begin, started = time.process_time(), time.perf_counter()
        for place in range(0, len(rows), at_once):
            number = _put(tables, number, rows[place : place + at_once])
        cpu_s, seconds = time.process_time() - begin, time.perf_counter() - started
    return {"us": cpu_s / len(rows) * 1e6, "seconds": seconds}


if __name__ == "__main__":
    answer_steps({"load": load, "traces": traces, "append": append})
