"""Counting money on one Redis: a call's reservation and its settlement, ours beside the peers'."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis

from benchmarks.overspend import a_server
from benchmarks.peers.contender import Program, UnavailableError, environment, is_ready, versions
from benchmarks.peers.rounds import Round
from benchmarks.peers.spending import TASKS

LEAST_RATIO = 5.0
"""How many times LiteLLM's calls a second ours must make, in one process."""
LITELLM = "litellm_proxy"
QUICK_PEERS = (LITELLM,)
"""What is judged is installed under `--quick` too."""


@dataclass
class Row:
    """One way of counting, and its rounds: `TASKS` at once, one after the other, `TASKS` without waiting for the disk."""

    title: str
    folder: str
    way: str
    at_once: list[Round] = field(default_factory=list)
    in_turn: list[Round] = field(default_factory=list)
    unsynced: list[Round] = field(default_factory=list)
    unavailable: str = ""


def rows() -> list[Row]:
    """Return who counts; ours is in no folder of the peers."""
    return [
        Row("agentic_trading, 5 scopes with 3 ceilings each", "", "every_scope"),
        Row("agentic_trading, a limit on the tenant", "", "tenant"),
        Row("LiteLLM: reserve, reconcile; one key", LITELLM, "default"),
        Row("pydantic-ai-harness: get_many, add_many; one budget", "pydantic_ai_harness", "default"),
        Row("MLflow: should_reject_request, record_cost; one policy", "mlflow", "default"),
    ]


def program(row: Row, url: str, *, quick: bool) -> Program:
    """Return the process that counts; raises `UnavailableError` where there is none."""
    if not row.folder:
        return Program([sys.executable, "-m", "benchmarks.overspend_ours", "steps", url, row.way])
    if quick and row.folder not in QUICK_PEERS and not is_ready(row.folder):
        raise UnavailableError("not installed yet; a run without --quick does it")
    python: Path = environment(row.folder)
    return Program([python, "-m", f"benchmarks.peers.{row.folder}.peer", "steps", url, row.way])


def measure(table: Sequence[Row], *, quick: bool) -> None:
    """Fill all rows, a round of each in turn, every other time in reverse; one that breaks says why."""
    calls, rounds, without_disk = (640, 2, 1) if quick else (4_000, 7, 3)
    with a_server() as (server, url), ExitStack() as stack:
        programs = dict(_started(table, url, stack, quick=quick))
        for number in range(rounds + 1):
            order = list(programs) if number % 2 else list(reversed(programs))
            for index in order:
                row, counting = table[index], programs[index]
                _round(row, row.at_once if number else [], counting, TASKS, calls)
                _round(row, row.in_turn if number else [], counting, 1, calls // 16)
        if server is not None:
            Redis.from_url(url).config_set("appendfsync", "everysec")
            for _ in range(without_disk):
                for index, counting in programs.items():
                    _round(table[index], table[index].unsynced, counting, TASKS, calls)


def _started(
    table: Sequence[Row], url: str, stack: ExitStack, *, quick: bool
) -> Iterator[tuple[int, Program]]:
    for index, row in enumerate(table):
        try:
            yield index, stack.enter_context(program(row, url, quick=quick))
        except UnavailableError as e:
            row.unavailable = e.reason


def _round(row: Row, into: list[Round], counting: Program, tasks: int, calls: int) -> None:
    if row.unavailable:
        return
    try:
        into.append(Round(**json.loads(counting.ask(f"{tasks} {calls}"))))
    except UnavailableError as e:
        row.unavailable = e.reason


def per_second(rounds: Sequence[Round]) -> float:
    """Return calls a second: the median round."""
    return 1e6 / median(one.wall_us for one in rounds) if rounds else 0.0


def ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Return how many times theirs ours is, as the median of the ratios, round by round; 0 where there is none."""
    pairs = [(mine.wall_us, other.wall_us) for mine, other in zip(ours, theirs, strict=False)]
    return median(other / mine for mine, other in pairs) if pairs else 0.0


def print_table(table: Sequence[Row]) -> None:
    """Print calls a second of one process, and how many times theirs ours makes."""
    ours = table[0]
    print(
        f"\n{'one process, one Redis; calls a second':<58}{'64 at once':>11}{'CPU us':>8}{'ours /':>8}",
        end="",
    )
    print(f"{'in turn':>9}{'ours /':>8}{'everysec':>10}{'ours /':>8}{'failed':>8}")
    for row in table:
        if row.unavailable:
            print(f"{row.title:<58}  {row.unavailable}")
            continue
        cpu_us = median(one.cpu_us for one in row.at_once)
        failed = sum(one.wrong for one in (*row.at_once, *row.in_turn, *row.unsynced))
        print(
            f"{row.title:<58}{per_second(row.at_once):>11,.0f}{cpu_us:>8.0f}{ratio(ours.at_once, row.at_once):>8.2f}"
            f"{per_second(row.in_turn):>9,.0f}{ratio(ours.in_turn, row.in_turn):>8.2f}"
            f"{per_second(row.unsynced):>10,.0f}{ratio(ours.unsynced, row.unsynced):>8.2f}{failed:>8}"
        )
    print(
        "Reserve, dispatch and settle are three steps on the server's disk; the others take one, or none, before the"
    )
    print("call. `appendfsync always` for everybody; `everysec` beside it, which ours refuses to start with.")
    folders = dict.fromkeys(row.folder for row in table if row.folder)
    print("Peers: " + "; ".join(f"{folder} ({versions(folder)})" for folder in folders))


def kept(table: Sequence[Row]) -> bool:
    """Print what was promised and what is; return whether it holds. A peer that is not here is not judged."""
    ours, litellm = table[0], next(row for row in table if row.folder == LITELLM)
    if ours.unavailable:
        print(f"Ours: {ours.unavailable}")
        return False
    if any(one.wrong for one in ours.at_once):
        print("Ours refused a step that nothing stood against: DOES NOT HOLD")
        return False
    if litellm.unavailable:
        return True
    times = ratio(ours.at_once, litellm.at_once)
    verdict = "holds" if times >= LEAST_RATIO else "DOES NOT HOLD"
    print(
        f"{times:.2f} times LiteLLM's calls a second in one process; promised are {LEAST_RATIO:.0f}: {verdict}"
    )
    return times >= LEAST_RATIO
