"""What the gateway within a process costs in CPU time, beside its runner and the vendors' SDKs, and where a call's CPU goes.

Run: python -m benchmarks.embedded [--quick] [--gateways] [--write]. Exits with 1 if an answer was wrong, or if a promise
does not hold in this run. Goals are printed and not judged: every run missed them. The first run installs the SDKs; `--gateways` installs and shows others' gateways, which are
not judged. `--write` puts the table of the steps into `docs/explanation/performance.md`.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from statistics import fmean

from benchmarks.call_path import Row, contender, measure
from benchmarks.embedded_ours import STEPS
from benchmarks.floor import REFERENCE_US
from benchmarks.gateways import GATEWAYS
from benchmarks.http_stub import VENDORS, serving
from benchmarks.peers.contender import ROOT, Measured, versions

OURS = "benchmarks.embedded_ours"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- steps of a call: benchmarks/embedded.py --write -->", "<!-- end of the steps -->"
AT_ONCE = (1, 16)
SDKS = [f"{vendor}_sdk" for vendor in VENDORS]


def rows() -> dict[str, Row]:
    """Return what is measured around a provider in the process, by the way of measuring it."""
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


def http_rows() -> dict[str, Row]:
    """Return what is measured with a server as the provider: ours, with budget and log, and the SDK alone."""
    table = {}
    for vendor in VENDORS:
        for tasks in AT_ONCE:
            title, sdk = f"{vendor}, {tasks} at once", f"{vendor}_sdk"
            table[f"{sdk}_{tasks}"] = Row(f"{title}: the SDK alone", sdk, f"call_{tasks}")
            for log in ("relaxed", "group"):
                way = f"{vendor}_{log}_{tasks}"
                table[way] = Row(f"  embedded, budget, log on disk ({log})", OURS, way)
    return table


def gateway_rows() -> dict[str, Row]:
    """Return what is measured of other gateways."""
    return {
        f"{name}_{tasks}": Row(f"{title}, {tasks} at once", name, f"call_{tasks}")
        for name, (title, _) in GATEWAYS.items()
        for tasks in AT_ONCE
    }


SDK_SHARES = {("group", 16): 0.5, ("relaxed", 16): 0.5, ("relaxed", 1): 0.6, ("group", 1): 0.9}
"""The share of the SDK's cost that a call shall take at most: one at once, a durable log has a thread's turn and a commit for itself."""

PROMISES: Sequence[tuple[str, str, float]] = (
    ("memory_16", "runner_16", 1.7),
    ("repeated", "memory_1", 1.15),
    ("reading", "least", 100 / REFERENCE_US),
    ("hop", "least", 30 / REFERENCE_US),
)
"""What costs at most so many times what else, in one run."""

GOALS: Sequence[tuple[str, str, float]] = (
    ("memory_1", "runner_1", 1.7),
    *(
        (f"{vendor}_{log}_{tasks}", f"{vendor}_sdk_{tasks}", most)
        for vendor in VENDORS
        for (log, tasks), most in SDK_SHARES.items()
    ),
)
"""The same, printed and not judged: no run has reached all of them."""


def start(name: str) -> AbstractContextManager[Measured]:
    """Return the contender of that name; raises `UnavailableError` where it cannot be installed."""
    return GATEWAYS[name][1]() if name in GATEWAYS else contender(name)


def steps_table(steps: Row) -> str:
    """Return the steps of a call and what each took, as a table of Markdown."""
    names = [*(step for step, _ in STEPS), "pool, slots, waits, the loop"]
    us = {name: fmean(one.stages_us.get(name, 0.0) for one in steps.rounds) for name in names}
    total = sum(us.values())
    lines = [f"| {name} | {cost / total:.0%} | {cost:,.0f} |" for name, cost in us.items()]
    return "\n".join(["| step | share | CPU us |", "|---|---|---|", *lines, f"| **sum** | | {total:,.0f} |"])


def print_costs(table: dict[str, Row]) -> None:
    """Print what each costs, also in floors and as a share of its vendor's SDK; gateways speak the API of OpenAI."""
    print(f"\n{'':<50}{'CPU us':>10}{'floors':>10}{'to the SDK':>12}")
    for way, row in table.items():
        if row.unavailable:
            print(f"{row.title:<50}  {row.unavailable}")
            continue
        name, tasks = way.partition("_")[0], way.rpartition("_")[2]
        sdk = table.get(f"{'openai' if row.contender in GATEWAYS else name}_sdk_{tasks}")
        share = f"{row.over(sdk):>12.2f}" if sdk and not sdk.unavailable else ""
        print(f"{row.title:<50}{row.cpu_us:>10,.0f}{row.over(table['least']):>10.1f}{share}")
    if any(row.contender in GATEWAYS for row in table.values()):
        print("Of a proxy the CPU is that of its own process: its caller's, such as an SDK's, comes on top.")


def write(table: str) -> None:
    """Put the table in its place in the page."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text), encoding="utf-8")


def holds(table: dict[str, Row]) -> bool:
    """Print the promises and the goals; return whether all promises hold and no answer was wrong."""
    kept = True
    for way, other, most, is_judged in (
        *((*each, True) for each in PROMISES),
        *((*each, False) for each in GOALS),
    ):
        if table[way].unavailable or table[other].unavailable:
            continue
        ratio = table[way].over(table[other])
        kept &= ratio <= most or not is_judged
        if is_judged:
            verdict = "holds" if ratio <= most else "DOES NOT HOLD"
            print(f"{way}: at most {most:.2f} of {other}: {ratio:.2f}, {verdict}")
        else:
            verdict = "met" if ratio <= most else "not met"
            print(f"{way}: goal {most:.2f} of {other} (not judged): {ratio:.2f}, {verdict}")
    wrong = sum(one.wrong for row in table.values() for one in row.rounds)
    print(f"Wrong answers: {wrong}")
    return kept and wrong == 0


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 9 long ones")
    arguments.add_argument("--gateways", action="store_true", help="show other gateways, too")
    arguments.add_argument("--write", action="store_true", help=f"put the steps into {PAGE.name}")
    given = arguments.parse_args()
    rounds, count = (3, 200) if given.quick else (9, 600)
    table = rows() | http_rows() | (gateway_rows() if given.gateways else {})
    with serving() as os.environ["HTTP_STUB"]:
        measure([*table.values()], rounds, count, start)
    if broken := [row.unavailable for row in table.values() if row.unavailable and row.contender == OURS]:
        print("; ".join(broken), file=sys.stderr)
        return 1
    print(f"{rounds} rounds of {count:,}, interleaved; medians. SDKs: {', '.join(map(versions, SDKS))}")
    print_costs(table)
    steps = steps_table(table["steps"])
    print(f"\n{steps}\n")
    if given.write:
        write(steps)
    return 0 if holds(table) else 1


if __name__ == "__main__":
    sys.exit(main())
