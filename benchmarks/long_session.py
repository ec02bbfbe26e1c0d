"""What a long session keeps in memory: a year of five-minute bars played by the rules, and its replay.

Run: python -m benchmarks.long_session [--quick | --bars N]. Exits with 1 if either peaks at 400 MB or more, or grows by
40 MB or more per 100,000 bars. Needs Linux: resident memory is read from /proc.
"""

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from agentic_trading.app.bar_files import BAR_COLUMNS, bar_row
from agentic_trading.app.session_folder import SessionFolder
from agentic_trading.desk.market.samples import load_sample

YEAR = 105_120
QUICK = 7_728
"""Three times the shipped bars: the memory that every session fills once is still growing, so only the peak is judged."""
JUDGED_FROM = 50_000
MOST_PEAK_MB = 400.0
MOST_SLOPE_MB = 40.0
SETTLED = 0.3
"""The share of a session after which its slope is taken: bounded memories, such as the ledger's, fill first."""
EVERY_S = 0.2
PROGRAM = "from agentic_trading.app.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory of one process, in MB: its peak, and how it grew in 100,000 bars."""

    name: str
    bars: int
    peak_mb: float
    slope_mb: float
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether the promise holds; the slope of a short session says nothing."""
        return self.peak_mb < MOST_PEAK_MB and (self.bars < JUDGED_FROM or self.slope_mb < MOST_SLOPE_MB)


def write_bars(path: Path, count: int) -> None:
    """Write the shipped bars one after the other, from their first moment on and without their halt, `count` in all."""
    shipped = load_sample("btcusdt-5m")
    start, step = shipped[0].open_time, shipped[0].timeframe.length
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(",".join(BAR_COLUMNS) + "\n")
        for place in range(count):
            row = bar_row(shipped[place % len(shipped)])
            file.write(f"{(start + place * step).isoformat()},{row.partition(',')[2]}\n")


def slope(samples: Sequence[tuple[float, float]], bars: int) -> float:
    """Return by how many MB a process grew in 100,000 bars; `samples` are (how far it was, MB)."""
    end = samples[-1][0] if samples else 0
    if not end:  # it was too quick, or the machine too busy, to be seen on its way
        return 0.0
    settled = [(at / end * bars, mb) for at, mb in samples if at >= SETTLED * end]
    if len(settled) < 2:
        return 0.0
    return linear_regression(*zip(*settled, strict=True)).slope * 100_000


def measured(name: str, arguments: Sequence[str], bars: int, kept: Path | None = None) -> Memory:
    """Run a command of the program in a process of its own and return what it took.

    The size of `kept`, the file to which a run adds each bar, says how far it was; without it, the time does.
    """
    started = time.monotonic()
    samples: list[tuple[float, float]] = []
    peak_mb = 0.0
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:  # noqa: S603 - ours
        while process.poll() is None:
            now_mb, most_mb = resident_mb(process.pid)
            if now_mb:
                samples.append((time.monotonic() - started if kept is None else size_of(kept), now_mb))
                peak_mb = max(peak_mb, most_mb)
            time.sleep(EVERY_S)
    if process.returncode != 0:
        raise SystemExit(f"{name}: `{' '.join(arguments)}` has failed with {process.returncode}")
    if kept is not None:  # the report comes after the last bar; what it takes is in the peak
        samples = [(size, mb) for size, mb in samples if size < samples[-1][0]]
    return Memory(name, bars, peak_mb, slope(samples, bars), time.monotonic() - started)


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


def measure(bars: int, folder: Path) -> list[Memory]:
    """Play a session and its replay over `bars` bars; files go into `folder`."""
    source, out = folder / "BTCUSDT.csv.gz", folder / "session"
    write_bars(source, bars)
    run = ["run", "--data", str(source), "--provider", "rules", "--out", str(out), "--json"]
    played = measured("run", run, bars, SessionFolder(out).bars(1, "BTCUSDT"))
    manifest = SessionFolder(out).read_manifest()
    if manifest.bars_done != bars:
        raise SystemExit(f"run: {manifest.bars_done} of {bars} bars were played")
    return [played, measured("replay", ["replay", "run", str(out)], bars)]


def table(rows: Sequence[Memory]) -> str:
    """Return the figures, one process a line."""
    lines = [f"{'':<8}{'bars':>9}{'peak MB':>10}{'MB / 100,000 bars':>20}{'seconds':>10}"]
    lines += [
        f"{row.name:<8}{row.bars:>9,}{row.peak_mb:>10.1f}{row.slope_mb:>20.1f}{row.seconds:>10.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK:,} bars, of which only the peak is judged"
    )
    parser.add_argument("--bars", type=int, default=YEAR, help="how many bars (a year of five minutes)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="long-session-") as folder:
        rows = measure(QUICK if options.quick else options.bars, Path(folder))
    print(table(rows))
    kept = all(row.is_kept for row in rows)
    promise = f"below {MOST_PEAK_MB:.0f} MB, and below {MOST_SLOPE_MB:.0f} MB per 100,000 bars"
    print(f"{promise}: {'holds' if kept else 'DOES NOT HOLD'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
