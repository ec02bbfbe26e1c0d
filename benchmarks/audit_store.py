"""The log beside SQLite, LMDB and DuckDB: decision chains, the index, durable appends, a replay, and opening.

Run: python -m benchmarks.audit_store [--quick] [--alone] [--folder FOLDER]. Writes a log of 1,000,000 attempts (`--quick`: 50,000) with
the events around them, and loads it into the others: 30 GB of disk and half an hour. Exits with 1 if a bound is missed, or if two of
them answer differently. All figures are CPU time, and all bounds are ratios within this run. The log stays in FOLDER for the
next run. The first run installs LMDB and LiteLLM, each into an environment of its own.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

from agentic_trading.llm.stores.jsonl.segments import SEGMENT_BYTES
from benchmarks.audit_store_log import Records, WrittenLog, write_log
from benchmarks.call_path import OURS, Row, contender, measure
from benchmarks.peers.contender import Contender, Measured, Program, UnavailableError, environment

INTERACTIONS: Final = 1_000_000
QUICK: Final = 50_000
QUICK_SEGMENT_BYTES: Final = 5 << 19
"""Small segments, so that a small log has as many."""
SEALED: Final = 90
"""The sealed segments of the larger log that is opened."""
AT_ONCE: Final = 64
"""Records in a commit, and callers that wait."""

TRACE, TRACE_PACKED, REBUILD, APPEND, REPLAY, OPENING, OPENING_MB = 1.3, 4.0, 0.8, 1.5, 0.1, 1.5, 100.0

LITELLM: Final = "litellm_proxy"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    interactions: int
    segment_bytes: int
    traces: int
    rounds: int
    appended: int
    calls: int


FULL_SIZES: Final = Sizes(INTERACTIONS, SEGMENT_BYTES, traces=400, rounds=5, appended=12_800, calls=1_000)
QUICK_SIZES: Final = Sizes(QUICK, QUICK_SEGMENT_BYTES, traces=150, rounds=3, appended=3_200, calls=200)


@dataclass(frozen=True)
class Bound:
    """A figure that is at most `most`; None if it could not be measured, for `reason`."""

    name: str
    most: float
    figure: float | None
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether it holds. What could not be measured is not judged."""
        return self.figure is None or self.figure <= self.most

    def row(self) -> str:
        """Return a row of the table."""
        if self.figure is None:
            return f"{self.name:<66}{self.most:>8.2f}       -  not judged: {self.reason}"
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.name:<66}{self.most:>8.2f}{self.figure:>8.2f}  {verdict}"


@dataclass
class Report:
    """What was measured, printed as it comes, and the bounds."""

    bounds: list[Bound] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def show(self, name: str, text: str) -> None:
        """Print a figure."""
        print(f"  {name:<56}{text}", flush=True)

    def judge(self, name: str, most: float, figure: float | None, reason: str = "") -> None:
        """Add a bound."""
        self.bounds.append(Bound(name, most, figure, reason))

    def check_equal(self, what: str, *answers: object) -> None:
        """Add a difference unless all answers are equal."""
        if any(answer != answers[0] for answer in answers):
            self.differences.append(f"{what}: {', '.join(map(str, answers))}")

    def verdict(self) -> bool:
        """Print the bounds and the differences; return whether all bounds hold and nothing differs."""
        print(f"\n{'':<66}{'at most':>8}{'figure':>8}")
        for bound in self.bounds:
            print(bound.row())
        for difference in self.differences:
            print(f"DIFFERENT ANSWERS: {difference}")
        return all(bound.holds for bound in self.bounds) and not self.differences


def ours() -> Program:
    """Return a new process for steps of ours and of SQLite."""
    return Program([sys.executable, "-m", "benchmarks.audit_store_ours"])


def step_alone(name: str, **arguments: Any) -> dict[str, Any]:
    """Take one step in a new process, so that its memory is that of the step."""
    with ours() as program:
        return dict(program.take(name, **arguments))


@dataclass(frozen=True)
class Run:
    """One run: its folder, its log, how much is measured, what was found, and the process of ours and SQLite."""

    folder: Path
    log: WrittenLog
    sizes: Sizes
    report: Report
    ours: Program

    @property
    def traces(self) -> list[str]:
        """The ids of the decision chains that are read."""
        every = max(1, len(self.log.traces) // self.sizes.traces)
        return [trace for trace, _ in self.log.traces[::every]][: self.sizes.traces]

    @property
    def records_in_traces(self) -> int:
        """The number of their records."""
        wanted = {*self.traces}
        return sum(count for trace, count in self.log.traces if trace in wanted)

    def path(self, name: str) -> str:
        """Return the path of a file or folder of this run."""
        return str(self.folder / name)

    def measure_index(self) -> None:
        """Compare making the index with loading the bodies into SQLite."""
        index = step_alone("rebuild", log=str(self.log.path))
        self.report.show(
            "index made again",
            f"{index['cpu_s']:.1f} s, {index['bytes'] / self.log.lines:.0f} bytes a line, "
            f"{index['mb'] - index['before_mb']:.0f} MB of memory",
        )
        everything = self.path("everything.sqlite")
        same = self.ours.take("load", log=str(self.log.path), db=everything, all_questions=True)
        Path(everything).unlink()
        few = self.ours.take("load", log=str(self.log.path), db=self.path("bodies.sqlite"))
        self.report.show("bodies loaded into SQLite, for the same questions", loaded(same, self.log))
        ratio = index["cpu_s"] / few["cpu_s"]
        self.report.show(
            "  for three of them: id, trace, agent and day",
            f"{loaded(few, self.log)}: our index takes {ratio:.2f} of it",
        )
        self.report.judge(
            "index made again / bodies loaded into SQLite", REBUILD, index["cpu_s"] / same["cpu_s"]
        )
        self.report.check_equal("cost of the log", index["cost_nusd"], self.log.cost_nusd)

    def measure_traces(self, lmdb: Program | str) -> None:
        """Compare reading decision chains."""
        packed = self.ours.take("pack", log=str(self.log.path), to=self.path("packed/interactions.jsonl"))
        self.report.show(
            "log with compressed segments", f"{packed['bytes'] / self.log.bytes:.2f} of its size"
        )
        found = self.ours.take(
            "traces", log=str(self.log.path), packed=self.path("packed/interactions.jsonl"),
            db=self.path("bodies.sqlite"), ids=self.traces, rounds=self.sizes.rounds,
        )  # fmt: skip
        titles = {
            "plain": "a trace with its tree",
            "packed": "  from compressed segments",
            "sqlite": "  from SQLite, the same records and tree",
            "sqlite_objects": "  from SQLite, JSON objects alone",
        }
        for name, title in titles.items():
            self.report.show(title, f"{median(found['ms'][name]):.2f} ms")
        if isinstance(lmdb, Program):
            other = lmdb.take("traces", folder=self.path("lmdb"), ids=self.traces)
            self.report.show("  from LMDB, JSON objects alone", f"{other['ms']:.2f} ms")
            self.report.check_equal("records of traces", self.records_in_traces, other["records"])
        self.report.check_equal("records of traces", self.records_in_traces, *found["records"].values())
        for name, most in (("plain", TRACE), ("packed", TRACE_PACKED)):
            ratios = [
                mine / theirs for mine, theirs in zip(found["ms"][name], found["ms"]["sqlite"], strict=True)
            ]
            title = "compressed" if name == "packed" else "plain"
            self.report.judge(f"a trace with its tree, {title} / SQLite with bodies", most, median(ratios))

    def load_lmdb(self, lmdb: Program) -> None:
        """Load the log into LMDB."""
        files = [*sorted(self.log.path.parent.glob("interactions-*.jsonl")), self.log.path]
        found = lmdb.take("load", folder=self.path("lmdb"), files=[str(file) for file in files])
        self.report.show("bodies loaded into LMDB", loaded(found, self.log))
        self.report.check_equal("records in LMDB", self.log.lines, found["records"])

    def measure_appends(self, lmdb: Program | str) -> None:
        """Compare appending records that are on disk when they are acknowledged, to stores that hold the whole log."""
        self.ours.take("copy", log=str(self.log.path), to=self.path("append/interactions.jsonl"))
        rows: dict[str, list[dict[str, float]]] = {"ours": [], "sqlite": [], "lmdb": []}
        for number in range(self.sizes.rounds):
            file = self.path("append.jsonl")
            write_records(Path(file), self.sizes.appended, seed=100 + number)
            commits = {"file": file, "at_once": AT_ONCE}
            rows["ours"].append(
                self.ours.take("append", log=self.path("append/interactions.jsonl"), **commits)
            )
            rows["sqlite"].append(self.ours.take("append_sqlite", db=self.path("bodies.sqlite"), **commits))
            if isinstance(lmdb, Program):
                rows["lmdb"].append(lmdb.take("append", folder=self.path("lmdb"), **commits))
        titles = {
            "ours": f"a durable append, {AT_ONCE} callers waiting",
            "sqlite": f"  SQLite, {AT_ONCE} in a transaction",
            "lmdb": f"  LMDB, {AT_ONCE} in a transaction",
        }
        for name, title in titles.items():
            if found := rows[name]:
                rate = self.sizes.appended / median(each["seconds"] for each in found)
                self.report.show(title, f"{median(each['us'] for each in found):.0f} us, {rate:,.0f}/s")
        ratios = [mine["us"] / theirs["us"] for mine, theirs in zip(rows["ours"], rows["lmdb"], strict=False)]
        self.report.judge(
            f"a durable append / LMDB, {AT_ONCE} a commit",
            APPEND,
            median(ratios) if ratios else None,
            str(lmdb),
        )

    def measure_sums(self) -> None:
        """Compare the cost by agent and day, and DuckDB over an export."""
        found = self.ours.take("sums", log=str(self.log.path), db=self.path("bodies.sqlite"))
        self.report.show("cost by agent and day", f"{found['ours_ms']:.1f} ms")
        self.report.show("  SQLite, by an index of agent, day and cost", f"{found['sqlite_ms']:.1f} ms")
        self.report.check_equal("cost by agent and day", [self.log.cost_nusd], found["cost_nusd"])
        try:
            with Program([sys.executable, "-m", "benchmarks.audit_store_duckdb"]) as duckdb:
                export = duckdb.take("export", log=str(self.log.path), to=self.path("export"))
                other = duckdb.take("ask", folder=self.path("export"), ids=self.traces[:20])
        except UnavailableError as e:
            self.report.show("DuckDB", f"not measured: {e.reason}")
            return
        title = f"  DuckDB {other['version']} over an export"
        self.report.show(title, f"{other['sums_ms']:.1f} ms, and a trace {other['trace_ms']:.1f} ms")
        speed, share = self.log.bytes / export["cpu_s"] / 1e6, export["bytes"] / self.log.bytes
        self.report.show(
            "export to Parquet", f"{export['cpu_s']:.1f} s, {speed:.0f} MB/s, {share:.2f} of its size"
        )
        self.report.check_equal("cost by agent and day in DuckDB", self.log.cost_nusd, other["cost_nusd"])

    def measure_opening(self) -> None:
        """Compare opening a log with one sealed segment and with many, whose active segments have the same size."""
        copies = {
            sealed: self.ours.take(
                "copy",
                log=str(self.log.path),
                to=self.path(f"sealed-{sealed}/interactions.jsonl"),
                sealed=sealed,
            )
            for sealed in (1, SEALED)
        }
        taken: dict[int, list[dict[str, float]]] = {sealed: [] for sealed in copies}
        for _ in range(self.sizes.rounds):
            for sealed, each in taken.items():
                each.append(step_alone("opened", log=self.path(f"sealed-{sealed}/interactions.jsonl")))
        for sealed, copy in copies.items():
            ms, mb, before = (
                median(each[name] for each in taken[sealed]) for name in ("ms", "mb", "before_mb")
            )
            active = f"{copy['sealed']} sealed segments, {copy['active'] >> 20} MB active"
            ids = f"{copy['cpu_s']:.1f} s without the file of ids"
            self.report.show(
                f"opening with {active}", f"{ms:.0f} ms ({ids}), {mb:.0f} MB, of which {before:.0f} before"
            )
        pairs = zip(taken[SEALED], taken[1], strict=True)
        many = copies[SEALED]["sealed"]
        self.report.judge(
            f"opening with {many} sealed segments / with 1",
            OPENING,
            median(many["ms"] / one["ms"] for many, one in pairs),
        )
        most_mb = max(each["mb"] for each in taken[SEALED])
        self.report.judge(f"opening with {many} sealed segments, MB of the process", OPENING_MB, most_mb)

    def measure_replay(self, *, alone: bool) -> None:
        """Compare a step of a replay with a call that LiteLLM answers from its cache."""
        recorded = Row("a step of a replay: a recorded answer is read", OURS, "recorded")
        replayed = Row("  a whole call of a replay: gate, answer, record", OURS, "replayed")
        cached = Row("  LiteLLM, a call answered by its cache in memory", LITELLM, "cached")
        cached.unavailable = LEFT_OUT if alone else ""
        rows = [row for row in (recorded, replayed, cached) if not row.unavailable]
        measure(rows, self.sizes.rounds, self.sizes.calls, start)
        for row in (recorded, replayed, cached):
            self.report.show(row.title, row.unavailable or f"{row.cpu_us:.0f} us")
        figure = None if cached.unavailable else recorded.over(cached)
        self.report.judge("a step of a replay / LiteLLM's cached call", REPLAY, figure, cached.unavailable)
        wrong = [sum(one.wrong for one in row.rounds) for row in (recorded, replayed, cached)]
        self.report.check_equal("wrong answers", [0, 0, 0], wrong)


def start(name: str) -> AbstractContextManager[Measured]:
    """Return our calls, or LiteLLM; raises `UnavailableError` where it cannot be installed."""
    if name == LITELLM:
        return Contender("benchmarks.peers.litellm_proxy.cached", environment(LITELLM))
    return contender(name)


def loaded(found: dict[str, Any], log: WrittenLog) -> str:
    """Return the figures of a load."""
    return f"{found['cpu_s']:.1f} s, {found['bytes'] / log.bytes:.2f} of the log's size on disk"


def write_records(file: Path, count: int, seed: int) -> None:
    """Write records that are in no log yet, all of one hour."""
    with file.open("wb") as lines:
        for made in islice(Records(count, seed, days=1 / 24), count):
            lines.write(made.raw + b"\n")


LEFT_OUT: Final = "left out"


@contextmanager
def lmdb_process(*, alone: bool) -> Iterator[Program | str]:
    """Give the process of LMDB, or the reason why there is none."""
    if alone:
        yield LEFT_OUT
        return
    try:
        program = Program([environment("lmdb"), "-m", "benchmarks.peers.lmdb.peer"])
    except UnavailableError as e:
        yield e.reason
        return
    with program:
        yield program


def run(folder: Path, sizes: Sizes, *, alone: bool = False) -> bool:
    """Write the log, measure all, and print it; return whether all bounds hold.

    `alone` leaves out LMDB and LiteLLM, which would be installed.
    """
    begin = process_time()
    log = write_log(folder / "log", sizes.interactions, sizes.segment_bytes)
    report = Report()
    print(
        f"{log.interactions:,} attempts, {log.lines:,} lines, {log.bytes / 1e9:.2f} GB. CPU time of each process."
    )
    report.show("log written, by a generator and the log's own writer", f"{process_time() - begin:.1f} s")
    with lmdb_process(alone=alone) as lmdb, ours() as program:
        run = Run(folder, log, sizes, report, program)
        run.measure_index()
        if isinstance(lmdb, Program):
            run.load_lmdb(lmdb)
        run.measure_traces(lmdb)
        run.measure_sums()
        run.measure_opening()
        run.measure_appends(lmdb)
        run.measure_replay(alone=alone)
    return report.verdict()


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK:,} attempts")
    arguments.add_argument("--folder", type=Path, help="where the log stays for the next run")
    arguments.add_argument(
        "--alone", action="store_true", help="without LMDB and LiteLLM, which are installed"
    )
    given = arguments.parse_args()
    sizes = QUICK_SIZES if given.quick else FULL_SIZES
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        return 0 if run(given.folder, sizes, alone=given.alone) else 1
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        return 0 if run(Path(folder), sizes, alone=given.alone) else 1


if __name__ == "__main__":
    sys.exit(main())
