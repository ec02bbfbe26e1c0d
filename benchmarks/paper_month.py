"""Whether paper trading runs for a month: no hang, flat memory, and each bar of streams that are silent, late, repeated and cut.

Run: python -m benchmarks.paper_month [--quick] [--seed N]. Sends 30 days of one-minute bars of two symbols to `agentic-trading run
--mode paper`. The sender moves the clock of the program, so that a month takes minutes. Exits with 1 if a promise does not hold.
`--quick` sends 2 days. Needs Linux: memory, descriptors and threads are read from /proc.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, linear_regression, median

import orjson

from agentic_trading.desk.session.options import SILENT_AFTER
from agentic_trading.llm.store import LOG_NAME
from benchmarks.long_session import PROGRAM
from benchmarks.paper_month_plan import MINUTE, SLOTS, SYMBOLS, plan_of
from benchmarks.paper_month_sender import AGENT, ProgramError, Sample, Session
from benchmarks.peers.contender import ROOT

MONTH = 30 * 24 * 60
QUICK = 2 * 24 * 60
WARM_UP_SLOTS = 2
JUDGED_FROM = MONTH // 2
"""The memory of the first days still grows, because it fills bounded memories, such as that of the ledger."""
MOST_PEAK_MB = 160.0
MOST_SLOPE_MB = 40.0 * 2 * 24 * 60 / 100_000
"""The bound of `long_session`, 40 MB per 100,000 bars, for the bars of two symbols in a day."""
MOST_WAIT_S = 10.0
MOST_FOLDER_RATIO = 1.25
MOST_MORE_DESCRIPTORS = 1
MOST_THREADS = 40


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: its name, the figure with its bound, and whether it holds."""

    name: str
    figure: str
    holds: bool


def memory_slope(samples: Sequence[Sample]) -> float:
    """Return by how many MB the program grew in a day of minutes, within its starts."""
    minutes: list[float] = []
    grown: list[float] = []
    for start in starts_of(samples):
        minutes += [each.minute - fmean(one.minute for one in start) for each in start]
        grown += [each.mb - fmean(one.mb for one in start) for each in start]
    return linear_regression(minutes, grown).slope * 24 * 60


def starts_of(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples of each start."""
    return [list(start) for _, start in groupby(samples, key=lambda each: each.start)]


def folder_ratio(samples: Sequence[Sample]) -> float:
    """Return by how much faster the folder grew in the second half than in the first."""
    middle = samples[len(samples) // 2]
    first, last = samples[0], samples[-1]
    earlier = (middle.folder_mb - first.folder_mb) / (middle.minute - first.minute)
    return (last.folder_mb - middle.folder_mb) / (last.minute - middle.minute) / earlier


def more_descriptors(samples: Sequence[Sample]) -> int:
    """Return by how many descriptors a start grew at most."""
    return max(max(each.descriptors for each in start) - start[0].descriptors for start in starts_of(samples))


def note_faults(session: Session) -> Iterator[str]:
    """Yield each difference between what the sender did and what the reports count."""
    for noted, report in session.ends:
        for data in report["data"]:
            found = {"late": data["late"], "duplicates": data["duplicates"], "unclosed": data["unclosed"]}
            sent = {kind: noted[data["symbol"]][kind] for kind in found}
            if found != sent:
                yield f"{data['symbol']}: {found} in the report, {sent} sent"
    for data in session.ends[-1][1]["data"]:
        times = session.expected[data["symbol"]]
        gaps = sum(later - earlier > MINUTE for earlier, later in pairwise(times))
        if (data["bars"], len(data["gaps"])) != (len(times), gaps):
            yield f"{data['symbol']}: {data['bars']} bars and {len(data['gaps'])} gaps, {len(times)} and {gaps} sent"


def silences_sent(expected: Mapping[str, Sequence[datetime]]) -> dict[str, int]:
    """Return how often each symbol had `SILENT_AFTER` missing bars at a bar of another symbol."""
    times = sorted({each for opens in expected.values() for each in opens})
    counts = {}
    for symbol, opens in expected.items():
        has_bar, last, count, is_silent = set(opens), times[0], 0, False
        for each in times:
            was_silent, is_silent = is_silent, each not in has_bar and each - last >= SILENT_AFTER * MINUTE
            last = each if each in has_bar else last
            count += is_silent and not was_silent
        counts[symbol] = count
    return counts


def silences_on_record(log: Path) -> dict[str, int]:
    """Return the number of `feed.silent` events of each symbol. A resumed run records an event again."""
    with log.open("rb") as lines:
        events = [orjson.loads(line) for line in lines if b'"feed.silent"' in line]
    unique = {each["id"]: each["body"]["symbol"] for each in events if each["body"]["symbol"]}
    return dict(Counter(unique.values()))


def passes(*command: str) -> bool:
    """Return whether a command of the program ends with 0."""
    words = [sys.executable, "-c", PROGRAM, *command]
    ended = subprocess.run(  # noqa: S603 - ours
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, check=False
    )
    return ended.returncode == 0


def promises(session: Session, minutes: int) -> Iterator[Promise]:
    """Yield the promises about a month that was sent."""
    faults = list(note_faults(session))
    bars = sum(len(session.expected[symbol]) for symbol in SYMBOLS)
    yield Promise("each bar, gap and note as sent", "; ".join(faults) or f"{bars:,} bars", not faults)
    sent, found = silences_sent(session.expected), silences_on_record(session.out / LOG_NAME)
    figure = ", ".join(f"{symbol} {count}" for symbol, count in sorted(found.items()))
    yield Promise("silences on record as sent", figure, found == sent and all(found.values()))
    longest = max(session.waits_s)
    yield Promise(
        "longest wait for a time slice", f"{longest:.2f} s, at most {MOST_WAIT_S:.0f}", longest <= MOST_WAIT_S
    )
    peak = max(each.mb for each in session.samples)
    yield Promise("peak memory", f"{peak:.0f} MB, at most {MOST_PEAK_MB:.0f}", peak <= MOST_PEAK_MB)
    settled = [each for each in session.samples if each.minute >= WARM_UP_SLOTS * minutes // SLOTS]
    if minutes >= JUDGED_FROM:
        slope = memory_slope(settled)
        yield Promise(
            "growth of memory", f"{slope:.2f} MB a day, at most {MOST_SLOPE_MB:.2f}", slope <= MOST_SLOPE_MB
        )
        ratio = folder_ratio(settled)
        yield Promise(
            "growth of the folder, second half over first",
            f"{ratio:.2f}, at most {MOST_FOLDER_RATIO}",
            ratio <= MOST_FOLDER_RATIO,
        )
    more, threads = more_descriptors(settled), max(each.threads for each in settled)
    yield Promise(
        "more file descriptors", f"{more}, at most {MOST_MORE_DESCRIPTORS}", more <= MOST_MORE_DESCRIPTORS
    )
    yield Promise("threads", f"{threads}, at most {MOST_THREADS}", threads <= MOST_THREADS)
    out = str(session.out)
    is_same = passes("replay", "run", out, "--agent", AGENT)
    yield Promise("replay", "identical" if is_same else "DIFFERS", is_same)
    is_whole = passes("audit", "verify", out)
    yield Promise("log", "whole" if is_whole else "NOT WHOLE", is_whole)


def main(argv: Sequence[str] | None = None) -> int:
    """Send a month, print its figures, and return 0 if all promises hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 days, with the same number of events")
    parser.add_argument("--seed", type=int, default=1, help="of the prices and of the plan")
    options = parser.parse_args(argv)
    minutes = QUICK if options.quick else MONTH
    with tempfile.TemporaryDirectory(prefix="paper-month-") as folder:
        session = Session(plan_of(minutes, options.seed), options.seed, Path(folder))
        try:
            session.play()
        except ProgramError as fault:
            print(f"DOES NOT HOLD: {fault}")
            return 1
        print(
            f"{minutes:,} minutes, {len(session.waits_s):,} time slices, {len(session.starts_s)} starts, "
            f"CPU {session.cpu_s:.0f} s, median wait {median(session.waits_s) * 1000:.1f} ms, slowest start "
            f"{max(session.starts_s):.1f} s"
        )
        rows = list(promises(session, minutes))
    for row in rows:
        print(f"{row.name:<46}{row.figure:<40}{'holds' if row.holds else 'DOES NOT HOLD'}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
