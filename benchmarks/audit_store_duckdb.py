"""DuckDB over the export of `audit_store.py`, in a process of its own."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from agentic_trading.audit.export_files import ExportOptions
from agentic_trading.platform.log_segments import export_at
from benchmarks.peers.rounds import answer_steps

_TRACE: Final = "SELECT * FROM records WHERE trace_id = ? ORDER BY seq"
_SUMS: Final = (
    "SELECT agent, day, sum(cost_nusd), count(*) FROM records WHERE kind = 'interaction' GROUP BY agent, day"
)


def export(log: str, to: str) -> dict[str, Any]:
    """Export a log to Parquet; return the CPU seconds, and the size."""
    shutil.rmtree(to, ignore_errors=True)
    begin = time.process_time()
    export_at(Path(log), Path(to), ExportOptions(), include_active=True)
    cpu_s = time.process_time() - begin
    return {"cpu_s": cpu_s, "bytes": sum(file.stat().st_size for file in Path(to).rglob("*.parquet"))}


def ask(folder: str, ids: Sequence[str]) -> dict[str, Any]:
    """Read decision chains, and sum the cost by agent and day; return the CPU milliseconds of each."""
    db = duckdb.connect(config={"threads": 1})
    db.execute(f"CREATE VIEW records AS FROM read_parquet('{folder}/**/*.parquet')")

    def cpu_ms(ask: Callable[[], Any]) -> tuple[float, Any]:
        ask()
        begin = time.process_time()
        found = ask()
        return (time.process_time() - begin) * 1e3, found

    traces_ms, records = cpu_ms(lambda: sum(len(db.execute(_TRACE, [trace]).fetchall()) for trace in ids))
    sums_ms, sums = cpu_ms(lambda: db.execute(_SUMS).fetchall())
    return {
        "version": duckdb.__version__,
        "trace_ms": traces_ms / len(ids),
        "records": records,
        "sums_ms": sums_ms,
        "cost_nusd": int(sum(row[2] for row in sums)),
    }


STEPS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {"export": export, "ask": ask}

if __name__ == "__main__":
    answer_steps(STEPS)
