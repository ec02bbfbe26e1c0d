"""What a call costs in CPU time, next to what others cost: the whole in-process path around an answer that is there at once.

Run: python benchmarks/call_path.py [--quick]. Exits with 1 if an answer was wrong. The shares of the peers' cost are printed with
their goals and are not judged: every run missed both. The first run installs the peers, each into an environment of its own.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.peers.contender import Contender, Measured, UnavailableError, peer, versions
from benchmarks.peers.rounds import Round

STAGES = "stage_by_stage"
DISPATCHED = "in_memory"
DISPATCH_GOAL_US = 60
"""The goal for what the record of its dispatch adds to a call, 16 at once in a durable file; printed, not judged."""


@dataclass
class Row:
    """One way of making calls, and its rounds. `goal` is the share of its cost that ours shall reach; None for no goal."""

    title: str
    contender: str
    way: str
    goal: float | None = None
    rounds: list[Round] = field(default_factory=list)
    unavailable: str = ""

    @property
    def cpu_us(self) -> float:
        return median(one.cpu_us for one in self.rounds)

    @property
    def best_us(self) -> float:
        return min(one.cpu_us for one in self.rounds)

    def measure(self, contender: Measured, count: int) -> None:
        """Add a round; a contender that breaks is out, with the reason."""
        try:
            self.rounds.append(contender.round(self.way, count))
        except UnavailableError as e:
            self.unavailable = e.reason

    def over(self, other: "Row") -> float:
        """Return the median of how many times `other` this one cost, round by round: neighbours disturb both alike."""
        return median(
            mine.cpu_us / theirs.cpu_us for mine, theirs in zip(self.rounds, other.rounds, strict=True)
        )


OURS = "benchmarks.ours"
PEERS = ("anthropic_sdk", "langchain")


def rows() -> list[Row]:
    """Return what is measured, ours first."""
    return [
        Row("agentic_trading, kept in memory", OURS, "without_dispatch"),
        Row("  and its dispatch on record", OURS, DISPATCHED),
        Row("  and kept in a file (relaxed)", OURS, "in_a_file"),
        Row("  and 64 keys known, which are looked for", OURS, "redacted"),
        Row("floor: the same bytes, hashes and checks alone", OURS, "least"),
        Row("agentic_trading, its stages one by one", OURS, STAGES),
        Row("Anthropic SDK: messages.create alone", "anthropic_sdk", "call", goal=0.65),
        Row("LangChain: prompt | model | parser, callback", "langchain", "call", goal=0.32),
    ]


@dataclass
class Pair:
    """The same calls with the record of their dispatch and without it."""

    with_record: Row
    without: Row

    def added_us(self) -> float:
        """Return the median of what the record added, round by round."""
        pairs = zip(self.with_record.rounds, self.without.rounds, strict=True)
        return median(one.cpu_us - other.cpu_us for one, other in pairs)


def pairs() -> list[Pair]:
    """Return the pairs of rows that differ in the record of the dispatch alone; the one with the goal is the last."""
    return [
        Pair(*(Row(title, OURS, f"{dispatch}_{way}") for dispatch in ("dispatch", "no_dispatch")))
        for title, way in (
            ("in memory, 1 at once", "1_memory"),
            ("in memory, 16 at once", "16_memory"),
            ("in a durable file, 1 at once", "1_durable"),
            ("in a durable file, 16 at once", "16_durable"),
        )
    ]


def contender(name: str) -> Contender:
    """Return the module of ours, or the peer, of that name; raises `UnavailableError` where it cannot be installed."""
    return Contender(name, Path(sys.executable)) if "." in name else peer(name)


Start = Callable[[str], AbstractContextManager[Measured]]


def opened(stack: ExitStack, table: Sequence[Row], start: Start) -> dict[str, Measured]:
    """Start every contender that there is; the rows of others say why there is none."""
    contenders = {}
    for name in dict.fromkeys(row.contender for row in table):
        try:
            contenders[name] = stack.enter_context(start(name))
        except UnavailableError as e:
            for row in table:
                row.unavailable = row.unavailable or (e.reason if row.contender == name else "")
    return contenders


def measure(table: Sequence[Row], rounds: int, count: int, start: Start = contender) -> None:
    """Fill the rows: each round measures every row once, every second one in reverse order; the first warms up."""
    with ExitStack() as stack:
        contenders = opened(stack, table, start)
        for number in range(rounds + 1):
            for row in table if number % 2 else reversed(table):
                if not row.unavailable:
                    row.measure(contenders[row.contender], count)
    for row in table:
        del row.rounds[:1]


def print_costs(table: Sequence[Row]) -> None:
    """Print what each way costs."""
    ours = table[0]
    print(f"\n{'':<50}{'CPU us a call':>14}{'best':>8}{'to ours':>10}")
    for row in table:
        if row.way == STAGES:
            continue
        if row.unavailable:
            print(f"{row.title:<50}{row.unavailable}")
        else:
            print(f"{row.title:<50}{row.cpu_us:>14,.0f}{row.best_us:>8,.0f}{row.over(ours):>9.2f}x")


def print_dispatch(table: Sequence[Pair]) -> None:
    """Print what the record of its dispatch adds to a call."""
    print(
        f"\n{'dispatch on record':<50}{'with':>14}{'without':>9}{'added':>8}{'ratio':>9}   (medians, CPU us)"
    )
    for pair in table:
        one, other = pair.with_record, pair.without
        added, ratio = pair.added_us(), one.over(other)
        print(f"  {one.title:<48}{one.cpu_us:>14,.0f}{other.cpu_us:>9,.0f}{added:>8,.0f}{ratio:>8.2f}x")
    added = table[-1].added_us()
    verdict = "met" if added <= DISPATCH_GOAL_US else "not met"
    print(f"Goal {DISPATCH_GOAL_US} us in the last row: {verdict} ({added:.0f})")


def print_stages(whole: Row, stages: Row) -> None:
    """Print each stage's cost, and what the loop around them adds."""
    names = stages.rounds[0].stages_us
    us = {name: min(one.stages_us[name] for one in stages.rounds) for name in names}
    total = sum(us.values())
    print(f"\n{'stage, timed alone':<50}{'best CPU us':>14}{'share':>8}")
    for name, cost in us.items():
        print(f"  {name:<48}{cost:>14.1f}{cost / total:>8.0%}")
    print(f"  {'sum of the stages':<48}{total:>14.1f}")
    print(f"  {'whole call':<48}{whole.best_us:>14.1f}   (the loop, its time limit, colder caches: the rest)")


def judged(table: Sequence[Row]) -> bool:
    """Print the goals and the wrong answers; return whether there is no wrong answer."""
    ours = table[0]
    print()
    for row in table:
        if row.goal is not None and not row.unavailable:
            share = ours.over(row)
            verdict = "met" if share <= row.goal else "not met"
            print(
                f"Goal {row.goal:.2f} of {row.title.partition(':')[0]} (not judged): {share:.2f}, {verdict}"
            )
    wrong = sum(one.wrong for row in table for one in row.rounds)
    print(f"Wrong answers: {wrong}")
    return wrong == 0


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 9 long ones")
    rounds, count = (3, 200) if arguments.parse_args().quick else (9, 1_000)
    table, dispatch = rows(), pairs()
    measure(table, rounds, count)
    measure(
        [row for pair in dispatch for row in (pair.with_record, pair.without)],
        3 * rounds,
        max(160, count // 4),
    )
    ours = [row for row in table if row.contender == OURS]
    if any(row.unavailable for row in ours):
        print("; ".join(row.unavailable for row in ours), file=sys.stderr)
        return 1
    print(f"{rounds} rounds of {count:,} calls each, interleaved; medians. Question 3 KB, answer 1.5 KB.")
    print("Peers: " + "; ".join(f"{name} ({versions(name)})" for name in PEERS))
    print_costs(table)
    print_stages(*(row for row in ours if row.way in (DISPATCHED, STAGES)))
    print_dispatch(dispatch)
    return 0 if judged(table) else 1


if __name__ == "__main__":
    sys.exit(main())
