"""What reading an answer costs and what calls it saves, beside what others cost: speed, schema sizes, billed calls.

Run: python benchmarks/structured.py [--quick]. Exits with 1 if a ratio that was promised does not hold in this run, or if one
of our ways misses an order that it should read, reads another one, or pays for a call that others need and it does not. The
first run installs the peers, each into an environment of its own.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.contender import Contender, Program, UnavailableError, peer, versions
from benchmarks.peers.failures import FAILURES
from benchmarks.peers.order import ORDER, SCHEMAS, TEXTS
from benchmarks.peers.reader import Timed
from benchmarks.peers.slips import TICKET
from benchmarks.sizes import sizes

OURS = "agentic_trading"
PEERS = ("instructor", "pydantic_ai", "json_repair")
SCHEMA = "full"
WELL_FORMED_GOAL_US = 25
BROKEN_GOAL_US = 300
"""The absolute goals, on the machine of the reference figures; printed, not judged: machines differ."""
BROKEN = ("trailing comma", "single quotes", "comments", "bare keys")
PUBLISHED = Path(__file__).parents[1] / "schemas"

_TICKET = json.dumps(TICKET)
HAZARDS = {
    "NaN": _TICKET.replace("null", "NaN"),
    "Infinity": _TICKET.replace("null", "-Infinity"),
    "1e999": _TICKET.replace("null", "1e999"),
    "a key twice": _TICKET.replace('"qty": 0.25', '"qty": 0.25, "qty": 2.5'),
    "half a character": _TICKET.replace("trend", "\\ud800"),
    "a draft in thinking": f"{_TICKET}, or not.</think>I stay out.",
}
"""Texts that no reader should take; the first three stand where the schema wants a number without bounds."""


@dataclass
class Row:
    """One way of reading: its rounds, by text, and which hazards it takes."""

    title: str
    contender: str
    way: str
    texts: tuple[str, ...]
    rounds: dict[str, list[Timed]] = field(default_factory=dict)
    takes: list[str] = field(default_factory=list)
    unavailable: str = ""

    def measure(self, program: Program, text: str, count: int) -> None:
        """Add a round; a contender that breaks is out, with the reason."""
        request = {"way": self.way, "schema": SCHEMA, "time": text, "count": count}
        try:
            self.rounds.setdefault(text, []).append(Timed(**json.loads(program.ask(json.dumps(request)))))
        except UnavailableError as e:
            self.unavailable = e.reason

    def endanger(self, program: Program) -> None:
        """Find out which hazards it takes."""
        request = {"way": self.way, "schema": "ticket", "texts": list(HAZARDS.values())}
        told = json.loads(program.ask(json.dumps(request)))
        self.takes = [name for name, one in zip(HAZARDS, told, strict=True) if one is not None]

    def cpu_us(self, text: str) -> float:
        """Return the median of the rounds."""
        return median(one.cpu_us for one in self.rounds[text])

    def right(self, text: str) -> float:
        """Return the share of readings that gave the order."""
        return min(one.right for one in self.rounds[text])

    def over(self, text: str, other: "Row", others: str) -> float:
        """Return the median of how many times the other one's cost this is, round by round; what is not read is no bargain."""
        if self.right(text) < 1:
            return math.inf
        pairs = zip(self.rounds[text], other.rounds[others], strict=True)
        return median(mine.cpu_us / theirs.cpu_us for mine, theirs in pairs)


ALL = tuple(TEXTS)
NOT_BROKEN = ("plain", "fenced", "prose")


def rows() -> list[Row]:
    """Return what is measured, ours first."""
    return [
        Row("agentic_trading: read, all of it", OURS, "planning", ALL),
        Row("agentic_trading: read_json, lossless, and check", OURS, "read_json", ALL),
        Row("agentic_trading: strict decode and check alone", OURS, "strict", ("plain",)),
        Row("floor: safe json.loads, jsonschema-rs", OURS, "safe floor", ("plain",)),
        Row("json.loads, jsonschema-rs", OURS, "json", ("plain",)),
        Row("orjson, jsonschema-rs", OURS, "orjson", ("plain",)),
        Row("instructor's path", "instructor", "extract", NOT_BROKEN),
        Row("pydantic-ai's path", "pydantic_ai", "validate", NOT_BROKEN),
        Row("json-repair (checks nothing)", "json_repair", "repair", ALL),
    ]


@dataclass(frozen=True)
class Bill:
    """What a failure of one kind cost with one contender, and what came out."""

    calls: int
    outcome: str


Bills = dict[str, dict[str, Bill]]


def opened(stack: ExitStack, table: Sequence[Row]) -> dict[str, Program]:
    """Start every contender that there is; the rows of others say why there is none."""
    programs: dict[str, Program] = {
        OURS: stack.enter_context(Contender("benchmarks.ours_reading", Path(sys.executable)))
    }
    for name in PEERS:
        try:
            programs[name] = stack.enter_context(peer(name))
        except UnavailableError as e:
            for row in table:
                row.unavailable = row.unavailable or (e.reason if row.contender == name else "")
    return programs


def measure(programs: dict[str, Program], table: Sequence[Row], rounds: int, count: int) -> None:
    """Fill the rows: every round asks everybody once, every other one the other way round, after one to warm up."""
    for number in range(rounds + 1):
        for row in table if number % 2 else reversed(table):
            for text in row.texts:
                if not row.unavailable:
                    slow = text in BROKEN
                    row.measure(programs[row.contender], text, max(10, count // 10) if slow else count)
    for row in table:
        for found in row.rounds.values():
            del found[:1]
        if not row.unavailable:
            row.endanger(programs[row.contender])


def bills(programs: dict[str, Program]) -> Bills:
    """Ask a question whose answer fails, in every way, and count the calls."""
    found: Bills = {}
    for name in (OURS, "instructor", "pydantic_ai"):
        if name in programs:
            found[name] = {
                kind: Bill(**json.loads(programs[name].ask(json.dumps({"kind": kind})))) for kind in FAILURES
            }
    return found


def print_well_formed(table: Sequence[Row]) -> None:
    """Print what a well-formed answer costs, and what is taken besides."""
    ours = table[0]
    print(f"\n{'well-formed':<50}{'CPU us':>8}{'to ours':>9}{'right':>7}  of the hazards it takes")
    for row in table:
        if row.unavailable:
            print(f"{row.title:<50}{row.unavailable}")
            continue
        over = row.over("plain", ours, "plain")
        taken = ", ".join(row.takes) or "none"
        print(f"{row.title:<50}{row.cpu_us('plain'):>8.1f}{over:>8.2f}x{row.right('plain'):>7.0%}  {taken}")
    print(f"Hazards: {', '.join(HAZARDS)}")


def print_others(table: Sequence[Row]) -> None:
    """Print what the other texts cost: those that need no mending first."""
    there = [row for row in table if not row.unavailable and len(row.texts) > 1]
    print(f"\n{'':<18}" + "".join(f"{row.title.partition(' (')[0][:32]:>34}" for row in there))
    for text in ALL:
        cells = [
            f"{row.cpu_us(text):,.1f} us {row.right(text):>5.0%}" if text in row.texts else "-"
            for row in there
        ]
        print(f"{text:<18}" + "".join(f"{cell:>34}" for cell in cells))
    print("CPU time, and the share of readings that gave the order; a refusal takes time, too.")


def print_sizes() -> None:
    """Print how large a schema is in a prompt."""
    schemas: dict[str, Any] = {"the order": SCHEMAS["full"]}
    for name in ("cmt_assessment.v2", "fill_strategy.v2"):
        if (path := PUBLISHED / f"{name}.json").exists():
            schemas[name] = json.loads(path.read_text(encoding="utf-8"))
    print(
        f"\n{'schema in a prompt, characters':<34}{'indent=2':>10}{'compact':>16}{'sanitised':>16}{'rendered':>16}"
    )
    for name, schema in schemas.items():
        found = sizes(schema)
        cells = "".join(
            f"{f'{size:,} ({size / found.indented:.0%})':>16}"
            for size in (found.compact, found.sanitised, found.rendered)
        )
        print(f"{name:<34}{found.indented:>10,}{cells}")


def print_bills(found: Bills) -> None:
    """Print what each failure costs."""
    print(f"\n{'calls billed, and what came out':<34}" + "".join(f"{name:>34}" for name in found))
    for kind in FAILURES:
        cells = [f"{bill[kind].calls} {bill[kind].outcome}" for bill in found.values()]
        print(f"{kind:<34}" + "".join(f"{cell:>34}" for cell in cells))
    print(
        "Allowed are three retries; in planning three answers are read, and a cut one is asked for again with a raised cap."
    )


def judged(table: Sequence[Row], found: Bills) -> bool:
    """Print what was promised and what is; return whether all of it holds."""
    ours, floor = table[0], table[3]
    instructor, repair = table[6], table[8]
    slowest = max(ours.cpu_us(text) for text in BROKEN)
    print(f"\nGoal {WELL_FORMED_GOAL_US} us, well-formed: {_met(ours.cpu_us('plain'), WELL_FORMED_GOAL_US)}")
    print(f"Goal {BROKEN_GOAL_US} us, broken: {_met(slowest, BROKEN_GOAL_US)}")
    promises = [
        ("well-formed, of the floor", ours.over("plain", floor, "plain"), 1.3),
        ("fenced, of the plain one", ours.over("fenced", ours, "plain"), 1.5),
    ]
    if not instructor.unavailable:
        promises.append(("well-formed, of instructor", ours.over("plain", instructor, "plain"), 1 / 2.5))
    if not repair.unavailable:
        promises += [(f"{text}, of json-repair", ours.over(text, repair, text), 1.0) for text in BROKEN]
    for what, share, most in promises:
        print(f"At most {most:.2f} {what}: {share:.2f}, {'holds' if share <= most else 'DOES NOT HOLD'}")
    missed = [f"{row.title}: {text}" for row in table[:2] for text in row.texts if row.right(text) < 1]
    dear = [kind for kind in ONE_CALL if found[OURS][kind].calls > 1]
    wrong = [kind for kind, bill in found[OURS].items() if bill.outcome == "WRONG VALUE"]
    hazards = [f"{row.title}: {name}" for row in table[:3] for name in row.takes]
    for what, broken in (
        ("Orders not read", missed),
        ("Paid twice for", dear),
        ("Wrong values", wrong),
        ("Hazards taken", hazards),
    ):
        print(f"{what}: {', '.join(broken) or 'none'}")
    return all(share <= most for _, share, most in promises) and not (missed or dear or wrong or hazards)


ONE_CALL = ("none", "prose around", "trailing comma", "refusal")
"""Failures that need no second call: the answer is there, or will not come."""


def _met(us: float, goal: float) -> str:
    return f"{'met' if us <= goal else 'not met'} ({us:.0f})"


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 9 long ones")
    rounds, count = (3, 200) if arguments.parse_args().quick else (9, 1_000)
    table = rows()
    with ExitStack() as stack:
        programs = opened(stack, table)
        measure(programs, table, rounds, count)
        found = bills(programs)
    if any(row.unavailable for row in table if row.contender == OURS):
        print("; ".join(row.unavailable for row in table), file=sys.stderr)
        return 1
    print(
        f"{rounds} rounds of {count:,} readings each, interleaved; medians. An order of {len(ORDER):,} characters."
    )
    print("Peers: " + "; ".join(f"{name} ({versions(name)})" for name in PEERS))
    print_well_formed(table)
    print_others(table)
    print_sizes()
    print_bills(found)
    return 0 if judged(table, found) else 1


if __name__ == "__main__":
    sys.exit(main())
