"""What a long session takes: memory and CPU of a year of five-minute bars played by the rules, and of its replay.

Run: python -m benchmarks.long_session [--quick | --bars N | --minutes] [--before FOLDER]. Plays a quarter, a half and a whole year one
after the other. Exits with 1 if a process peaks or grows beyond its bound, or if a bar late in a session costs more than one
early in it. `--before` plays the same with the package of another checkout, and prints the ratio. `--minutes` plays a month of one-minute bars
with an own agent instead, beside the second run of `make run`. Needs Linux: memory and CPU are
read from /proc.
"""

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import linear_regression

from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.operate.session_folder import SessionFolder
from benchmarks.peers.contender import ROOT

YEAR = 105_120
SIZES = (YEAR // 4, YEAR // 2, YEAR)
QUICK = 7_728
"""Three times the shipped bars: the memory that every session fills once is still growing, so only the peak is judged."""
JUDGED_FROM = 50_000
PACE_FROM = YEAR // 4
MOST_PEAK_MB = 250.0
MOST_PEAK_OF_YEARS_MB = 400.0
MOST_SLOPE_MB = 40.0
MOST_PACE = 1.2
GOAL_OF_BEFORE = 0.5
MONTH_OF_MINUTES = 43_200
MOST_PEAK_OF_MINUTES_MB = 120.0
MOST_OF_MAKE_RUN = 1.3
SHIPPED_BARS = 2_576
FAULTS = "malformed=5%,timeout=2%,refusal=1%,truncated=1%"
SETTLED = 0.3
"""The share of a session after which its slope is taken: bounded memories, such as the ledger's, fill first."""
EVERY_S = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
PROGRAM = "from agentic_trading.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Sample:
    """A process on its way: how far it was, in any unit, the MB that it held, and the CPU seconds that it had used."""

    at: float
    mb: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: its peak in MB, how that grew in 100,000 bars, and its CPU.

    `pace` is the CPU of a bar of the last quarter over that of one of the first; 0 where it is not known.
    """

    name: str
    bars: int
    peak_mb: float
    slope_mb: float
    cpu_s: float
    pace: float = 0.0

    @property
    def most_peak_mb(self) -> float:
        return MOST_PEAK_MB if self.bars <= YEAR else MOST_PEAK_OF_YEARS_MB

    @property
    def is_kept(self) -> bool:
        """Whether the promises hold; slope and pace of a short session say nothing."""
        is_settled, is_paced = self.bars >= JUDGED_FROM, self.bars >= PACE_FROM
        grows = is_settled and self.slope_mb >= MOST_SLOPE_MB
        return self.peak_mb < self.most_peak_mb and not grows and not (is_paced and self.pace > MOST_PACE)


def write_bars(path: Path, count: int, step: timedelta = timedelta(minutes=5)) -> None:
    """Write `count` shipped bars one after the other, `step` apart, from their first moment on and without their halt."""
    shipped = load_sample("btcusdt-5m")
    start = shipped[0].open_time
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(",".join(BAR_COLUMNS) + "\n")
        for place in range(count):
            row = bar_row(shipped[place % len(shipped)])
            file.write(f"{(start + place * step).isoformat()},{row.partition(',')[2]}\n")


def slope(samples: Sequence[Sample], bars: int) -> float:
    """Return by how many MB a process grew in 100,000 bars."""
    end = samples[-1].at if samples else 0
    if not end:  # it was too quick, or the machine too busy, to be seen on its way
        return 0.0
    settled = [(one.at / end * bars, one.mb) for one in samples if one.at >= SETTLED * end]
    if len(settled) < 2:
        return 0.0
    return linear_regression(*zip(*settled, strict=True)).slope * 100_000


def pace(samples: Sequence[Sample]) -> float:
    """Return what the last quarter of a session took in CPU over what the first one did; 0 where too little was seen."""
    under_way = [one for one in samples if one.at > 0]
    if len({one.at for one in under_way}) < 8:
        return 0.0
    start, end = under_way[0].at, under_way[-1].at
    quarter = (end - start) / 4
    marks = [_cpu_at(under_way, start + share * quarter) for share in range(5)]
    return (marks[4] - marks[3]) / (marks[1] - marks[0]) if marks[1] > marks[0] else 0.0


def _cpu_at(samples: Sequence[Sample], place: float) -> float:
    """Return the CPU that had been used when `place` was reached, on a straight line between two samples."""
    after = next((number for number, one in enumerate(samples) if one.at >= place), len(samples) - 1)
    later, earlier = samples[after], samples[max(after - 1, 0)]
    if later.at == earlier.at:
        return later.cpu_s
    share = (place - earlier.at) / (later.at - earlier.at)
    return earlier.cpu_s + share * (later.cpu_s - earlier.cpu_s)


def measured(
    name: str, arguments: Sequence[str], bars: int, *, kept: Path | None = None, package: Path = ROOT
) -> Cost:
    """Run a command of the program in a process of its own and return what it took.

    The size of `kept`, the file to which a run adds its bars, says how far it was; without it, the CPU does. `package` is
    the checkout whose program it is.
    """
    samples: list[Sample] = []
    peak_mb = cpu_s = 0.0
    command = [sys.executable, "-c", PROGRAM, *arguments]
    env = {**os.environ, "PYTHONPATH": str(package)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=package, env=env) as process:  # noqa: S603 - ours
        while process.poll() is None:
            now_mb, most_mb = resident_mb(process.pid)
            if now_mb:
                cpu_s = max(cpu_s, cpu_of(process.pid))
                samples.append(Sample(cpu_s if kept is None else size_of(kept), now_mb, cpu_s))
                peak_mb = max(peak_mb, most_mb)
            time.sleep(EVERY_S)
    if process.returncode != 0:
        raise SystemExit(f"{name}: `{' '.join(arguments)}` has failed with {process.returncode}")
    if kept is None:
        return Cost(name, bars, peak_mb, slope(samples, bars), cpu_s)
    # The report comes after the last bar; what it takes is in the peak and the CPU.
    played = [one for one in samples if one.at < samples[-1].at]
    return Cost(name, bars, peak_mb, slope(played, bars), cpu_s, pace(played))


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used, 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def size_of(path: Path) -> int:
    """Return the size of a file, 0 before it is there."""
    return path.stat().st_size if path.exists() else 0


def resident_mb(pid: int) -> tuple[float, float]:
    """Return what a process holds now and what it held at most, zeros once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0, 0.0
    kilobytes = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in status.splitlines())
        if name in {"VmRSS", "VmHWM"}
    }
    return kilobytes.get("VmRSS", 0) / 1024, kilobytes.get("VmHWM", 0) / 1024


def measure(bars: int, folder: Path, package: Path = ROOT) -> list[Cost]:
    """Play a session and its replay over `bars` bars with the program of `package`; files go into `folder`."""
    source, out = folder / "BTCUSDT.csv.gz", folder / "session"
    folder.mkdir(parents=True, exist_ok=True)
    write_bars(source, bars)
    run = ["run", "--data", str(source), "--provider", "rules", "--out", str(out), "--json"]
    kept = SessionFolder(out).bars(1, "BTCUSDT")
    played = measured("run", run, bars, kept=kept, package=package)
    rows = kept.read_bytes().count(b"\n") - 1
    if rows != bars:
        raise SystemExit(f"run: {rows} of {bars} bars were played")
    return [played, measured("replay", ["replay", "run", str(out)], bars, package=package)]


def measure_minutes(folder: Path) -> list[Cost]:
    """Play a month of minutes with an own agent, its replay, and the second run of `make run`."""
    source, out = folder / "BTCUSDT.csv.gz", folder / "session"
    write_bars(source, MONTH_OF_MINUTES, timedelta(minutes=1))
    agent = ["--agent", "examples.breakout:Breakout"]
    run = ["run", "--data", str(source), "--provider", "rules", *agent, "--out", str(out), "--json"]
    shipped = ["run", "--data", "btcusdt-5m", "--provider", "rules", "--inject", FAULTS, "--seed", "1"]
    return [
        measured("minutes", run, MONTH_OF_MINUTES, kept=SessionFolder(out).bars(1, "BTCUSDT")),
        measured("their replay", ["replay", "run", str(out), *agent], MONTH_OF_MINUTES),
        measured("make run", [*shipped, "--out", str(folder / "shipped")], SHIPPED_BARS),
    ]


def minutes_hold(rows: Sequence[Cost]) -> bool:
    """Print the promises about a month of minutes, and return whether they hold."""
    minutes, replayed, shipped = rows
    ratio = (minutes.cpu_s / minutes.bars) / (shipped.cpu_s / shipped.bars)
    peak = max(minutes.peak_mb, replayed.peak_mb)
    kept = ratio <= MOST_OF_MAKE_RUN and peak <= MOST_PEAK_OF_MINUTES_MB
    print(
        f"CPU of a bar {ratio:.2f} of that of make run (at most {MOST_OF_MAKE_RUN}), peak {peak:.0f} MB (at most "
        f"{MOST_PEAK_OF_MINUTES_MB:.0f}): {'holds' if kept else 'DOES NOT HOLD'}"
    )
    return kept


def table(rows: Sequence[Cost]) -> str:
    """Return the figures, one process a line."""
    lines = [
        f"{'':<14}{'bars':>9}{'peak MB':>10}{'MB / 100,000 bars':>20}{'CPU s':>8}{'us a bar':>10}{'pace':>7}"
    ]
    lines += [
        f"{row.name:<14}{row.bars:>9,}{row.peak_mb:>10.1f}{row.slope_mb:>20.1f}{row.cpu_s:>8.1f}"
        f"{row.cpu_s / row.bars * 1e6:>10.0f}{f'{row.pace:.2f}' if row.pace else '-':>7}"
        for row in rows
    ]
    return "\n".join(lines)


def holds(rows: Sequence[Cost]) -> bool:
    """Print what is promised and whether it is so."""
    kept = all(row.is_kept for row in rows)
    years = max(row.bars for row in rows) > YEAR
    print(
        f"Below {MOST_PEAK_OF_YEARS_MB if years else MOST_PEAK_MB:.0f} MB, below {MOST_SLOPE_MB:.0f} MB more per 100,000 bars, a bar of "
        f"the last quarter at most {MOST_PACE} times one of the first: {'holds' if kept else 'DOES NOT HOLD'}"
    )
    replays = [row.cpu_s / row.bars for row in rows if row.name == "replay"]
    if len(replays) > 1:
        steady = replays[-1] <= MOST_PACE * replays[0]
        print(
            f"A bar of the longest replay at most {MOST_PACE} times one of the shortest: {replays[-1] / replays[0]:.2f}, "
            f"{'holds' if steady else 'DOES NOT HOLD'}"
        )
        kept &= steady
    return kept


def compare(rows: Sequence[Cost], before: Sequence[Cost]) -> None:
    """Print what each process took over what it took before."""
    for row, earlier in zip(rows, before, strict=True):
        ratio = row.cpu_s / earlier.cpu_s
        verdict = "met" if ratio <= GOAL_OF_BEFORE else "not met"
        print(
            f"{row.name}, {row.bars:,} bars: {ratio:.2f} of the CPU before (goal {GOAL_OF_BEFORE}: {verdict})"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK:,} bars, of which only the peak is judged"
    )
    parser.add_argument("--bars", type=int, help="how many bars, in place of a quarter, a half and a year")
    parser.add_argument("--minutes", action="store_true", help="a month of one-minute bars with an own agent")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    options = parser.parse_args(argv)
    if options.minutes:
        with tempfile.TemporaryDirectory(prefix="long-session-") as folder:
            rows = measure_minutes(Path(folder))
        print(table(rows))
        return 0 if minutes_hold(rows) else 1
    sizes = (QUICK,) if options.quick else SIZES if options.bars is None else (options.bars,)
    rows = []
    before: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="long-session-") as folder:
        for bars in sizes:
            rows += measure(bars, Path(folder, f"{bars}"))
            if options.before is not None:
                before += measure(bars, Path(folder, f"{bars}-before"), options.before.resolve())
    print(table([*rows, *(replace(row, name=f"{row.name}, before") for row in before)]))
    kept = holds(rows)
    if before:
        compare(rows, before)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
