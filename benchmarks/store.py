"""How fast records become safe: group commit next to an fsync for each record and SQLite, in one run on one disk.

Then the CPU of the check that `trace` and `spend` make of the end of a log, beside that of all lines (`audit verify`).

Run: python benchmarks/store.py [--quick] [--dir FOLDER]. Exits with 1 if group commit with 256 callers waiting does
not acknowledge at least three times as many records a second as a log that waits for the disk once a record, or if
the check of the end takes over twice as long in a log eight times as large.
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from agentic_trading.llm import (
    Durability,
    EnvelopeBuilder,
    JsonFileInteractionStore,
    LLMInteraction,
    LLMResult,
)
from agentic_trading.llm.event import RunStarted
from agentic_trading.llm.runs import run_on_record
from agentic_trading.operate.log_check import LogCheck, check_end, check_file
from benchmarks import floor

PROMISED_RATIO = 3.0
MOST_GROWTH = 2.0
"""The most that the check of the end of a log eight times as large may take, as a multiple."""

BARS = [
    {"t": f"2026-01-02T00:{minute:02}:00Z", "o": 42_000.5, "c": 42_001.25, "v": 17.375}
    for minute in range(60)
]
ON_DISK = "on disk"
ACCEPTED = "accepted; on disk at close"


@dataclass
class Run:
    """What one way of keeping `count` records took: `waits_ms` is how long each caller waited for its answer."""

    count: int
    seconds: float = 0.0
    cpu_s: float = 0.0
    syncs: int = 0
    waits_ms: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Take the time of the whole run."""
        start, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds, self.cpu_s = time.perf_counter() - start, time.process_time() - cpu

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Take the time of one wait."""
        start = time.perf_counter()
        yield
        self.waits_ms.append((time.perf_counter() - start) * 1e3)


def attempts(count: int) -> list[LLMInteraction]:
    """Return interactions of about 7 KB each, serialised: the stream needs the same bytes, so no way pays for them."""
    builder = (
        EnvelopeBuilder().for_analysis().with_instructions("Judge the market.").with_context({"bars": BARS})
    )
    made = []
    for _ in range(count):
        envelope = builder.build()
        result = LLMResult(envelope_id=envelope.envelope_id, raw_output="{}" * 300, model=envelope.model)
        made.append(LLMInteraction(envelope=envelope, result=result))
        _ = made[-1].wire
    return made


def group_commit(folder: Path, records: list[LLMInteraction], waiting: int, durability: Durability) -> Run:
    """Let `waiting` callers store one record after the other, all at once."""

    async def caller(store: JsonFileInteractionStore, mine: list[LLMInteraction], run: Run) -> None:
        for record in mine:
            with run.waited():
                await store.store(record)

    async def callers() -> Run:
        run = Run(len(records))
        store = JsonFileInteractionStore(folder / "log.jsonl", durability=durability)
        await store.flush()
        with run.measured():
            async with asyncio.TaskGroup() as group:
                for number in range(waiting):
                    group.create_task(caller(store, records[number::waiting], run))
            await store.aclose()
        run.syncs = store.statistics().syncs
        return run

    return asyncio.run(callers())


def sync_each(folder: Path, records: list[LLMInteraction]) -> Run:
    """Append a line and wait for the disk, record by record."""
    run = Run(len(records), syncs=len(records))
    fd = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with run.measured():
        for record in records:
            with run.waited():
                os.write(fd, record.wire + b"\n")
                os.fdatasync(fd)
    os.close(fd)
    return run


def sqlite_full(folder: Path, records: list[LLMInteraction]) -> Run:
    """Insert into SQLite (WAL, synchronous=FULL, index on the trace), one transaction a record."""
    run = Run(len(records), syncs=len(records))
    db = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
    db.executescript(
        "CREATE TABLE log (id PRIMARY KEY, trace_id, body); CREATE INDEX by_trace ON log (trace_id);"
    )
    with run.measured():
        for record in records:
            with run.waited():
                row = (record.interaction_id, record.trace_id, record.wire)
                db.execute("INSERT INTO log VALUES (?, ?, ?)", row)
    db.close()
    return run


def best(
    way: Callable[[Path, list[LLMInteraction]], Run], records: list[LLMInteraction], rounds: int, folder: Path
) -> Run:
    """Return the fastest of a few runs, each in a folder of its own: a shared disk is noisy in one direction."""
    runs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            runs.append(way(Path(place), records))
    return max(runs, key=lambda run: run.per_second)


def group_of(
    waiting: int, durability: Durability = Durability.GROUP
) -> Callable[[Path, list[LLMInteraction]], Run]:
    """Return the way that lets so many callers wait at once."""
    return lambda folder, records: group_commit(folder, records, waiting, durability)


@dataclass(frozen=True)
class Checked:
    """The CPU milliseconds of a check of the end of a log, and of all its lines; "norm." is that on a quiet machine."""

    end_ms: float
    all_ms: float
    quiet: float

    def row(self, name: str) -> str:
        """Return a row of the table."""
        normed = (ms * self.quiet for ms in (self.end_ms, self.all_ms))
        return f"{name:<34}{self.end_ms:>10.2f}{self.all_ms:>10.1f}{''.join(f'{ms:>14.2f}' for ms in normed)}"


def checks(folder: Path, records: list[LLMInteraction]) -> Checked:
    """Write and index a log, then check its end and all of it, each several times; return the medians."""
    path = folder / "log.jsonl"
    asyncio.run(_written_and_indexed(path, records))

    def cpu_ms(check: Callable[[Path], Coroutine[Any, Any, LogCheck]], rounds: int) -> float:
        taken = []
        for _ in range(rounds):
            begin = time.process_time()
            found = asyncio.run(check(path))
            taken.append((time.process_time() - begin) * 1e3)
            assert found.lines == len(records) + 2
            assert not found.findings
        return median(taken)

    quiet = floor.REFERENCE_US / asyncio.run(floor.cpu_us())
    return Checked(cpu_ms(check_end, 15), cpu_ms(check_file, 3), quiet)


async def _written_and_indexed(path: Path, records: list[LLMInteraction]) -> None:
    async with aclosing(JsonFileInteractionStore(path, durability=Durability.RELAXED)) as store:
        started = RunStarted(session_id="benchmark", mode="backtest", package="0")
        async with run_on_record(store, started, event_id="start"):
            for record in records:
                await store.store(record)
        await store.records.spend("agent")


def shown(name: str, run: Run, acknowledged: str) -> str:
    """Return a row of the table."""
    cuts = quantiles(run.waits_ms, n=100)
    return (
        f"{name:<34}{run.per_second:>10,.0f}{cuts[49]:>9.2f}{cuts[98]:>9.2f}"
        f"{run.cpu_s / run.count * 1e6:>9.0f}{run.syncs:>8}  {acknowledged}"
    )


def main() -> int:
    """Print the table; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="a few seconds instead of a minute")
    arguments.add_argument("--dir", type=Path, default=Path("runs"), help="a folder on the disk to measure")
    chosen = arguments.parse_args()
    chosen.dir.mkdir(parents=True, exist_ok=True)
    few, many, rounds = (1_000, 8_000, 3) if chosen.quick else (5_000, 40_000, 3)
    records = attempts(many)

    def measure(
        name: str, way: Callable[[Path, list[LLMInteraction]], Run], count: int, answered: str
    ) -> Run:
        run = best(way, records[:count], rounds, chosen.dir)
        print(shown(name, run, answered))
        return run

    print(f"Records of {len(records[0].wire):,} bytes, serialised beforehand; best of {rounds} runs each.\n")
    print(f"{'':<34}{'records/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}{'syncs':>8}  answered when")
    each = measure("a sync for each record", sync_each, few, ON_DISK)
    measure("SQLite, WAL, FULL", sqlite_full, few, ON_DISK)
    measure("group commit, 1 waiting", group_of(1), few, ON_DISK)
    measure("group commit, 64 waiting", group_of(64), many, ON_DISK)
    grouped = measure("group commit, 256 waiting", group_of(256), many, ON_DISK)
    measure("relaxed", group_of(1, Durability.RELAXED), many, ACCEPTED)

    ratio = grouped.per_second / each.per_second
    print(
        f"\nGroup commit with 256 waiting / a sync for each: {ratio:.1f} (promised: {PROMISED_RATIO:.0f} or more)"
    )
    header = f"\n{'check of a log, CPU ms':<34}{'end':>10}{'all':>10}{'end, norm.':>14}{'all, norm.':>14}"
    print(header)
    found = []
    for count in (many // 8, many):
        with tempfile.TemporaryDirectory(dir=chosen.dir) as place:
            found.append(checks(Path(place), records[:count]))
        print(found[-1].row(f"{count:,} records"))
    growth = found[1].end_ms / found[0].end_ms
    print(
        f"\nEnd of a log eight times as large / end of the small one: {growth:.2f} (at most {MOST_GROWTH:.0f})"
    )
    return 0 if ratio >= PROMISED_RATIO and growth <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
