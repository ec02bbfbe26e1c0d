"""What the gateway within a process adds to the calls themselves, in CPU time, and where a call's CPU goes.

Run: python -m benchmarks.embedded [--quick] [--write]. Exits with 1 if an answer was wrong, or if a promise does not
hold in this run. `--write` puts the table of the steps into `docs/embedding.md`.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.call_path import Row
from benchmarks.embedded_ours import STEPS
from benchmarks.peers.contender import ROOT, Contender

OURS = "benchmarks.embedded_ours"
PAGE = ROOT / "docs" / "embedding.md"
BEGIN, END = "<!-- steps of a call: benchmarks/embedded.py --write -->", "<!-- end of the steps -->"
FLOOR_US = 38
"""What the floor costs on a quiet machine of the reference figures; "norm." is scaled to it."""


def rows() -> dict[str, Row]:
    """Return what is measured, by the way of measuring it; `most` is the share of the row that it is judged against."""
    titles = {
        "least": "floor: the same bytes, hashes and checks alone",
        "runner_1": "the runner alone, 1 at once",
        "runner_16": "the runner alone, 16 at once",
        "memory_1": "embedded, log in memory, 1 at once",
        "memory_16": "embedded, log in memory, 16 at once",
        "repeated": "  the same question again and again",
        "file_1": "embedded, durable log, 1 at once",
        "file_16": "embedded, durable log, 16 at once",
        "reading": "an interaction read from its bytes",
        "hop": "a hop over the broker in memory",
        "steps": "embedded, looked at after each ms of CPU",
    }
    return {way: Row(title, OURS, way) for way, title in titles.items()}


PROMISES: Sequence[tuple[str, str, float]] = (
    ("memory_1", "runner_1", 1.7),
    ("memory_16", "runner_16", 1.7),
    ("repeated", "memory_1", 1.15),
    ("reading", "least", 4.0),
    ("hop", "least", 30 / FLOOR_US),
)
"""What costs at most so many times what else, in one run."""


def measure(table: Sequence[Row], rounds: int, count: int) -> None:
    """Fill the rows, interleaved; the first round warms up."""
    with Contender(OURS, Path(sys.executable)) as contender:
        for number in range(rounds + 1):
            for row in table if number % 2 else reversed(table):
                row.measure(contender, count)
    for row in table:
        del row.rounds[:1]


def steps_table(steps: Row) -> str:
    """Return the steps of a call and what each took, as a table of Markdown."""
    names = [*(step for step, _ in STEPS), "pool, slots, waits, the loop"]
    us = {name: fmean(one.stages_us.get(name, 0.0) for one in steps.rounds) for name in names}
    total = sum(us.values())
    lines = [f"| {name} | {cost / total:.0%} | {cost:,.0f} |" for name, cost in us.items()]
    return "\n".join(["| step | share | CPU us |", "|---|---|---|", *lines, f"| **sum** | | {total:,.0f} |"])


def write(table: str) -> None:
    """Put the table in its place in the page."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text), encoding="utf-8")


def holds(table: dict[str, Row]) -> bool:
    """Print what was promised and what is; return whether all of it holds."""
    kept = True
    for way, other, most in PROMISES:
        ratio = table[way].over(table[other])
        kept &= ratio <= most
        verdict = "holds" if ratio <= most else "DOES NOT HOLD"
        print(f"{table[way].title.strip()}: at most {most:.2f} of {other}: {ratio:.2f}, {verdict}")
    goal = table["reading"].over(table["least"]) * FLOOR_US
    print(f"Goal 100 us norm. for reading an interaction: {'met' if goal <= 100 else 'not met'} ({goal:.0f})")
    wrong = sum(one.wrong for row in table.values() for one in row.rounds)
    print(f"Wrong answers: {wrong}")
    return kept and wrong == 0


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 9 long ones")
    arguments.add_argument("--write", action="store_true", help=f"put the steps into {PAGE.name}")
    given = arguments.parse_args()
    rounds, count = (3, 200) if given.quick else (9, 600)
    table = rows()
    measure([*table.values()], rounds, count)
    if any(row.unavailable for row in table.values()):
        print("; ".join(row.unavailable for row in table.values()), file=sys.stderr)
        return 1
    print(f"{rounds} rounds of {count:,}, interleaved; medians.\n\n{'':<50}{'CPU us':>10}{'floors':>10}")
    for row in table.values():
        print(f"{row.title:<50}{row.cpu_us:>10,.0f}{row.over(table['least']):>10.1f}")
    steps = steps_table(table["steps"])
    print(f"\n{steps}\n")
    if given.write:
        write(steps)
    return 0 if holds(table) else 1


if __name__ == "__main__":
    sys.exit(main())
