"""What a strategy costs from its parameters to weights that keep their promises: template, gate, sandbox, promises.

Run: `python -m benchmarks.sandbox [--quick]`. Random sets of each family over the shipped panel; the first of each is not
counted. CPU is that of both processes, without the start of the child. The row without a strategy is what a process of its
own costs, the last column what the look-ahead check adds, once a body. Exits with 1 when a set breaks a
promise, looks ahead or is stopped, and when a set of a family takes more than 20 ms of CPU, look-ahead apart, scaled to
the machine of the reference figures (`floor.py`).
"""

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Final

import numpy as np

from agentic_trading.desk.planning.allowlist import code_problems
from agentic_trading.desk.planning.panel import Panel, load_panel
from agentic_trading.desk.planning.params import FAMILIES, Family, StrategyParams
from agentic_trading.desk.planning.promises import (
    WeightRules,
    broken_by_header,
    broken_by_look_ahead,
    broken_promises,
)
from agentic_trading.desk.planning.sandbox import Completed, Sandbox, SandboxJob
from agentic_trading.desk.planning.schema import PanelFacts, offered_by
from agentic_trading.desk.planning.search import random_sets
from agentic_trading.desk.planning.template import TEMPLATES
from benchmarks import floor

GOAL_MS: Final = 20.0
STEPS: Final = ("template", "gate", "run", "promises")
EMPTY: Final = "import numpy as np\n\n\ndef target_weights(close, volume, catalyst, rebalance):\n    return np.zeros(close.shape)\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if every set keeps its promises, and takes no more CPU than it may."""
    parser = argparse.ArgumentParser(prog="benchmarks.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 sets a family in place of 200")
    count = 10 if parser.parse_args(arguments).quick else 200
    most_ms = GOAL_MS * slowness()
    panel = load_panel()
    start, before = time.perf_counter(), cpu_s()
    with Sandbox(panel) as sandbox:
        started_ms = 1000 * (time.perf_counter() - start)
    opening_s = cpu_s() - before
    print(f"{panel.name}: {len(panel.days)} bars, {len(panel.symbols)} stocks; network {sandbox.network}")
    print(f"start of the sandbox: {started_ms:.0f} ms, {1000 * opening_s:.0f} ms of CPU\n")
    print(
        "ms a set".ljust(16)
        + "".join(f"{head:>11}" for head in ("CPU", "median", "p95", *STEPS, "look-ahead"))
    )
    without_strategy(panel, count, opening_s)
    problems = [problem for family in FAMILIES for problem in judge(family, panel, count, opening_s, most_ms)]
    print("", *(problems or [f"held: at most {most_ms:.0f} ms of CPU a set"]), sep="\n")
    return 1 if problems else 0


def slowness() -> float:
    """Return how many times what it costs on the reference machine the floor costs here and now, at least once."""
    return max(1.0, asyncio.run(floor.cpu_us()) / floor.REFERENCE_US)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def sets_of(family: Family, panel: Panel, count: int) -> list[StrategyParams]:
    """Return random sets that a panel of prices and volumes can serve, the same ones each time."""
    grid = offered_by(PanelFacts(panel.name, len(panel.days))).grids[family]
    return list(random_sets(grid, family, count, seed="1"))


def judge(family: Family, panel: Panel, count: int, opening_s: float, most_ms: float) -> list[str]:
    """Print the row of a family; return what is wrong with its sets, of which each may take `most_ms` of CPU."""
    sets = sets_of(family, panel, count + 1)
    with Sandbox(panel) as sandbox:
        start = time.perf_counter()
        code = TEMPLATES[family].generate_code(sets[0])
        ahead = broken_by_look_ahead(sandbox.run, SandboxJob.of(code, sets[0], panel.days))
        ahead_ms = 1000 * (time.perf_counter() - start)
    before = cpu_s()
    with Sandbox(panel) as sandbox:
        measured = [measure(params, sandbox, panel) for params in sets]
    cpu_s_a_set = (cpu_s() - before - opening_s) / len(sets)
    show(family, cpu_s_a_set, [steps for steps, _ in measured[1:]], ahead_ms)
    wrong: list[object] = [*ahead, *(problem for _, problems in measured for problem in problems)]
    if 1000 * cpu_s_a_set > most_ms:
        wrong.append(f"{1000 * cpu_s_a_set:.1f} ms of CPU a set; allowed: {most_ms:.0f}")
    return [f"{family}: {each}" for each in wrong]


def measure(params: StrategyParams, sandbox: Sandbox, panel: Panel) -> tuple[list[float], list[object]]:
    """Return the milliseconds of each step of `STEPS`, and what is wrong with a set."""
    stamps = [time.perf_counter()]
    code = TEMPLATES[params.strategy_type].generate_code(params)
    stamps.append(time.perf_counter())
    wrong: list[object] = [*code_problems(code)]
    stamps.append(time.perf_counter())
    job = SandboxJob.of(code, params, panel.days)
    outcome = sandbox.run(job)
    stamps.append(time.perf_counter())
    if isinstance(outcome, Completed):
        rules = WeightRules.of(params)
        wrong += broken_promises(outcome.weights, panel.filled, job.rebalance, rules)
        wrong += broken_by_header(code, params)
    else:
        wrong.append(outcome.text)
    stamps.append(time.perf_counter())
    return [1000 * (later - earlier) for earlier, later in pairwise(stamps)], wrong


def without_strategy(panel: Panel, count: int, opening_s: float) -> None:
    """Print the row of code that does nothing."""
    job = SandboxJob(EMPTY, np.ones(len(panel.days), dtype=np.bool_))
    before = cpu_s()
    with Sandbox(panel) as sandbox:
        rows = [[0.0, 0.0, 1000 * sandbox.run(job).wall_s, 0.0] for _ in range(count)]
    show("no strategy", (cpu_s() - before - opening_s) / count, rows, 0.0)


def show(name: str, cpu_s_a_set: float, rows: Sequence[Sequence[float]], look_ahead_ms: float) -> None:
    totals = [sum(row) for row in rows]
    steps = [median(column) for column in zip(*rows, strict=True)]
    figures = (1000 * cpu_s_a_set, median(totals), quantiles(totals, n=20)[-1], *steps, look_ahead_ms)
    print(name.ljust(16) + "".join(f"{figure:11.1f}" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
