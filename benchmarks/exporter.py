"""Do metrics slow a worker down: its estimated cycles for a call, with the counts and scrapes of `/metrics` and without.

The base is the runner alone with a log in memory. A worker also reads a bus, claims, and waits for a disk, so that its own
ratio is smaller.

Run: python -m benchmarks.exporter [--calls N]. It needs callgrind (`apt-get install valgrind`). It exits with 1 if a call with
metrics takes more than 1.02 of the cycles of one without.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from typing_extensions import override

from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import BudgetStatus, CounterStatus
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.metrics import MOST_COUNTERS, attempt_samples, budget_samples, metrics_text
from agentic_trading.worker.attempt_statistics import AttemptCounter
from agentic_trading.worker.housekeeping import BudgetReports
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from benchmarks import ours

MOST: Final = 1.02
CALLS: Final = 200
CACHE: Final = "33554432,16,64"
"""A last cache of 32 MB in 16 ways, so that the figures of two machines can be compared."""

CALLS_A_SCRAPE: Final = 3_800
"""Calls of a fully loaded worker between two scrapes: 15 seconds of calls that take 3.9 ms (`infra/README.md`)."""

EVENTS: Final = re.compile(r"^events: (.*)$", re.MULTILINE)
TOTALS: Final = re.compile(r"^totals: (.*)$", re.MULTILINE)


class _Uncounted(AttemptCounter):
    """Count nothing."""

    @override
    @contextmanager
    def waiting(self, workflow: EnvelopeWorkflow) -> Iterator[None]:
        yield

    @override
    def note(self, interaction: LLMInteraction) -> None:
        return


class _Untimed(Recorder):
    """Take no time of records."""

    @override
    async def _stored(self, storing: Awaitable[int]) -> int:
        return await storing


def runner(counter: AttemptCounter, recorder: type[Recorder]) -> CallRunner:
    """Return a runner over a log in memory, whose other costs are the smallest."""
    gateway = ours.Gateway(MemoryInteractionStore())
    return CallRunner(
        RunnerDependencies(
            gate=gateway.gate,
            providers=Providers.every(gateway.provider),
            recorder=recorder(gateway.store),
            capabilities=ours.CAPABILITIES,
            clock=ours.CLOCK,
            checks={},
            counter=counter,
        )
    )


def counted() -> AttemptCounter:
    """Return the counter of a worker."""
    return AttemptCounter(("default",), {(str(row.provider), row.model) for row in ours.CAPABILITIES})


async def calls(run: CallRunner, number: int) -> None:
    """Run so many calls."""
    for _ in range(number):
        assert (await run.run(ours.envelope())).result.success


def reports() -> BudgetReports:
    """Return the budgets of a tenant with as many counters as the metrics show."""
    counter = CounterStatus(
        scope=ScopeKind.AGENT, id="a", window=Window.DAY, window_id="2026-01-02", most=(10**9, None, 10**6),
        spent=(10**8, 0, 100), held=(10**6, 0, 2), in_doubt=(0, 0, 0), nusd_per_hour=10**7, exhausted_at=ours.AS_OF,
        exhausted_unit="nano-USD",
    )  # fmt: skip
    counters = tuple(counter.model_copy(update={"id": f"agent-{number}"}) for number in range(MOST_COUNTERS))
    status = BudgetStatus(
        worker="w", tenant="default", time=ours.AS_OF, as_of=ours.AS_OF, is_running=True, limits_version=0,
        counters=counters,
    )  # fmt: skip
    return BudgetReports([status], {}, {})


async def measured(way: str, number: int) -> None:
    """Do the work of a way once to warm up, and then so often under callgrind's count."""
    counter = _Uncounted() if way == "without" else counted()
    run = runner(counter, _Untimed if way == "without" else Recorder)
    await calls(run, 20)
    found = reports()

    async def scrapes(times: int) -> None:
        for _ in range(times):
            metrics_text(attempt_samples(counter.statistics()), budget_samples(found, {"default": 1}))

    work: Callable[[], Awaitable[None]] = (
        (lambda: scrapes(number)) if way == "scrape" else (lambda: calls(run, number))
    )
    if way == "scrape":
        await scrapes(1)
    _instrument("on")
    await work()
    _instrument("off")


def _instrument(state: str) -> None:
    """Tell callgrind to begin or end its count."""
    words = ["callgrind_control", "-i", state, str(os.getpid())]
    subprocess.run(words, check=True, capture_output=True)  # noqa: S603 - no word of it comes from outside


def cycles(way: str, number: int) -> float:
    """Return the estimated cycles of a call or scrape: instructions, and the misses of the simulated caches."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        words = [
            "valgrind",
            "--tool=callgrind",
            "--cache-sim=yes",
            f"--LL={CACHE}",
            "--instr-atstart=no",
            f"--callgrind-out-file={out}",
        ]
        child = [sys.executable, "-m", "benchmarks.exporter", "--child", way, "--calls", str(number)]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
        subprocess.run([*words, *child], check=True, capture_output=True, env=environment)  # noqa: S603 - our own program
        text = out.read_text(encoding="utf-8")
    names, totals = EVENTS.search(text), TOTALS.search(text)
    assert names is not None
    assert totals is not None
    counts: dict[str, int] = dict(zip(names[1].split(), map(int, totals[1].split()), strict=False))
    first = sum(counts[name] for name in ("I1mr", "D1mr", "D1mw"))
    last = sum(counts[name] for name in ("ILmr", "DLmr", "DLmw"))
    return (counts["Ir"] + 10 * first + 100 * last) / number


def main() -> None:
    """Measure three ways, and judge their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--child", choices=("without", "with", "scrape"))
    asked = parser.parse_args()
    if asked.child:
        ours.main()
        asyncio.run(measured(asked.child, asked.calls))
        return
    without, with_ = cycles("without", asked.calls), cycles("with", asked.calls)
    scrape = cycles("scrape", max(1, asked.calls // 40))
    ratio = (with_ + scrape / CALLS_A_SCRAPE) / without
    print(f"a call without metrics       {without:14,.0f} estimated cycles")
    print(f"a call with its counts       {with_:14,.0f}   {with_ / without:.4f}")
    print(f"a scrape, {MOST_COUNTERS} counters       {scrape:14,.0f}   each {CALLS_A_SCRAPE:,} calls")
    print(f"a call with counts and scrapes               {ratio:.4f}   at most {MOST}")
    if ratio > MOST:
        sys.exit("metrics take more than they may")


if __name__ == "__main__":
    main()
