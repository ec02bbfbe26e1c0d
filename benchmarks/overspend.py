"""Who keeps a budget of 100 dollars when 64 workers in 4 processes spend it: ours while it is being killed, and the peers.

Run: python benchmarks/overspend.py [--quick]. Exits with 1 if ours overspends, refuses calls while the most expensive one
would still fit, or differs from the provider's invoice by anything but the calls that it lists as in doubt; if a run in a
folder that is killed and resumed passes its limit, or shows less than its invoice; and if MLflow does not overspend, as the load was then too easy. The first run installs the peers, each into an environment of its own.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.llm.interaction import reservation_id
from benchmarks.overspend_fleet import PROCESSES, Fleet, Plan
from benchmarks.overspend_folders import KILLS, QUICK_KILLS, print_folders, problems_of, run_folders
from benchmarks.overspend_ours import ledger_of
from benchmarks.overspend_table import Books, Invoice, Row, print_books, print_rows, problems, usd
from benchmarks.peers.contender import ROOT, UnavailableError, environment, is_ready, versions
from benchmarks.peers.load import BUDGET_NUSD, CENTS, LOADS, NANO, Load, billed_as
from benchmarks.peers.spending import TASKS, WORKERS, Opening
from tests.redis_server import GIVEN, RealServer, own_server, servers

OURS = "agentic_trading, killed and restarted"
KILLED = 0.02
TWICE = 0.05
RESTARTS = 3
LATENCY_MS = 20
ATTEMPTS = 3
"""More attempts are not looked for; one that is in doubt after them would be missed, and the books would not agree."""
SETTLED_WITHIN_S = 60.0
QUICK_PEERS = ("mlflow",)
"""Peers that are installed under `--quick` too: without this one the run says nothing."""
SLOW_TO_START = ("litellm_proxy",)


@dataclass(frozen=True)
class Peer:
    """A contender with an environment of its own, and the ways in which it can be set up."""

    folder: str
    ways: dict[str, str]


PEERS = (
    Peer("mlflow", {"default": "MLflow, RedisBudgetTracker"}),
    Peer("pydantic_ai_harness", {"default": "pydantic-ai-harness, RedisSpendStore"}),
    Peer("litellm_proxy", {"default": "LiteLLM", "fail_closed": "LiteLLM, fail_closed_budget_enforcement"}),
    Peer(
        "tensorzero",
        {
            "default": "TensorZero, cost_per_month",
            "most": "TensorZero, default_cost = most",
            "tokens": "TensorZero, tokens_per_month",
        },
    ),
)
MLFLOW = PEERS[0].ways["default"]


@dataclass(frozen=True)
class Size:
    """How much is done: calls, and the budget of each load."""

    calls: int
    cents_nusd: int

    def budget(self, load: Load) -> int:
        """Return the budget; a load of few calls that are cheap has a smaller one, so that it is used up."""
        return self.cents_nusd if load is CENTS else BUDGET_NUSD


FULL = Size(10_000, BUDGET_NUSD)
QUICK = Size(1_000, 10 * NANO)


class Stub:
    """The provider's process and its invoice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    @contextmanager
    def opened(self) -> Iterator[tuple[int, Path]]:
        """Run a new one for as long as the block lasts; give its port and its invoice."""
        self._number += 1
        invoice = self._folder / f"invoice-{self._number}"
        command = [sys.executable, "-m", "benchmarks.peers.paid", str(invoice), str(LATENCY_MS)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - ours
            assert process.stdout is not None
            yield int(process.stdout.readline()), invoice


def plan_of(opening: Opening, load: Load, size: Size, *, is_ours: bool) -> Plan:
    """Return the run of a load; ours is disturbed, the peers have it easier."""
    if not is_ours:
        return Plan(opening, load, size.calls)
    chance = Random(opening.run)  # noqa: S311 - no secret
    kills = max(2, round(KILLED * size.calls / WORKERS))
    paid = min(size.calls, 2 * size.budget(load) // load.most_nusd)  # about what the budget pays for
    return Plan(
        opening,
        load,
        size.calls,
        kills=[
            chance.randrange(paid // 2),
            *(chance.randrange(size.calls * 9 // 10) for _ in range(kills - 1)),
        ],
        restarts=[int(paid * share) for share in (0.2, 0.5, 0.8)][:RESTARTS],
        twice=frozenset(chance.sample(range(size.calls), round(TWICE * size.calls))),
    )


async def settled(url: str, plan: Plan) -> Books:
    """Wait until no call is under way any more, and read the books."""
    ledger = ledger_of(url, plan.opening)
    tenant = plan.opening.run
    try:
        until = time.monotonic() + SETTLED_WITHIN_S
        while True:
            try:
                await ledger.expire_leases()
                counters = {(one.scope, one.window): one for one in await ledger.balances(tenant)}
            except LedgerUnavailableError:
                continue
            balance = counters[ScopeKind.TENANT, Window.NONE]
            if not any(balance.held.units) or time.monotonic() > until:
                break
            await asyncio.sleep(0.25)
        doubtful = await in_doubt(ledger, plan)
    finally:
        await ledger.aclose()
    return Books(balance.spent.nusd, balance.held.nusd, dict.fromkeys(doubtful, plan.load.most_nusd))


async def in_doubt(ledger: RedisLedger, plan: Plan) -> list[str]:
    """Ask for every attempt at every call; return those of which nobody knows whether they were billed."""
    asked, found = product(range(plan.calls), range(1, ATTEMPTS + 1)), list[str]()

    async def ask() -> None:
        for number, attempt in asked:
            call = f"call-{number}"
            id_ = reservation_id(plan.opening.run, call, attempt)
            if await ledger.state_of(id_) is ReservationState.IN_DOUBT:
                found.append(billed_as(call, attempt))

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(ask())
    return found


async def spend_ours(server: RealServer | None, url: str, stub: Stub, size: Size, row: Row, run: str) -> None:
    """Spend as we do: with processes killed, calls delivered twice and the server restarted."""
    opening = Opening("default", row.load.name, row.budget_nusd, run)
    plan = plan_of(opening, row.load, size, is_ours=True)
    if server is None:
        plan = replace(plan, restarts=())
    with stub.opened() as (port, invoice):
        command = [sys.executable, "-m", "benchmarks.overspend_ours", "spend", url, str(port)]
        async with Fleet(command, server) as fleet:
            row.ran = await fleet.run(plan)
            row.books = await settled(url, plan)
        row.invoice = Invoice.read(invoice.read_text(), row.load)


def our_rows(server: RealServer | None, url: str, stub: Stub, size: Size, name: str) -> list[Row]:
    """Measure ours; a load that breaks says why."""
    table = [Row(OURS, load, size.budget(load)) for load in LOADS.values()]
    for row in table:
        try:
            asyncio.run(spend_ours(server, url, stub, size, row, f"{name}-ours-{row.load.name}"))
        except* UnavailableError as broken:
            row.unavailable = str(broken.exceptions[0])
    return table


async def run_peer(peer: Peer, url: str, stub: Stub, size: Size, name: str) -> list[Row]:
    """Spend as a peer does, undisturbed."""
    table = []
    with stub.opened() as (port, invoice):
        command: list[str | Path] = [
            environment(peer.folder),
            "-m",
            f"benchmarks.peers.{peer.folder}.peer",
            "spend",
            url,
            str(port),
        ]
        async with Fleet(command) as fleet:
            for way, title in peer.ways.items():
                for load in LOADS.values():
                    run = f"{name}-{peer.folder}-{way}-{load.name}"
                    opening = Opening(way, load.name, size.budget(load), run)
                    before = invoice.read_text() if invoice.exists() else ""
                    row = Row(title, load, opening.budget_nusd)
                    row.ran = await fleet.run(plan_of(opening, load, size, is_ours=False))
                    row.invoice = Invoice.read(invoice.read_text()[len(before) :], load)
                    table.append(row)
    return table


def peer_rows(peer: Peer, url: str, stub: Stub, size: Size, name: str) -> list[Row]:
    """Measure a peer; one that is not here is rows with the reason."""
    why = ""
    if size is QUICK and peer.folder in SLOW_TO_START:
        why = "left out of --quick: its processes take half a minute to start"
    elif size is QUICK and peer.folder not in QUICK_PEERS and not is_ready(peer.folder):
        why = "not installed yet; a run without --quick does it"
    else:
        try:
            return asyncio.run(run_peer(peer, url, stub, size, name))
        except* UnavailableError as broken:
            why = str(broken.exceptions[0])
    return [
        Row(title, load, size.budget(load), unavailable=why)
        for title in peer.ways.values()
        for load in LOADS.values()
    ]


def judged(table: Sequence[Row]) -> bool:
    """Print what was promised and what is; return whether all of it holds."""
    holds = True
    for row in table:
        if row.title != OURS:
            continue
        found = [row.unavailable] if row.unavailable else problems(row)
        print(
            f"Ours, {row.load.name}: {'; '.join(found) + ': DOES NOT HOLD' if found else 'all promises hold'}"
        )
        holds &= not found
    overspent = max(
        (row.overspend for row in table if row.title == MLFLOW and not row.unavailable), default=None
    )
    if overspent is None:
        print("MLflow is not here: THE RUN IS VOID, as nothing says that the load is hard.")
    elif not overspent:
        print("MLflow kept the budget: THE RUN IS VOID, the load was too easy.")
    return holds and bool(overspent)


@contextmanager
def a_server() -> Iterator[tuple[RealServer | None, str]]:
    """Give a server that may be killed, and its address; one that was given is somebody else's and is not killed."""
    name = servers()[0]
    if name == "given":
        yield None, str(GIVEN)
        return
    with own_server(name) as server:
        yield server, server.url


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--quick", action="store_true", help="a tenth of the calls, and only peers that are there"
    )
    size = QUICK if arguments.parse_args().quick else FULL
    name = f"overspend-{time.time_ns()}"
    with a_server() as (server, url), tempfile.TemporaryDirectory() as folder:
        stub = Stub(Path(folder))
        table = our_rows(server, url, stub, size, name)
        for peer in PEERS:
            table += peer_rows(peer, url, stub, size, name)
    print(
        f"{size.calls:,} calls on each side and load, {PROCESSES} processes of {WORKERS} workers, one Redis "
        f"({'appendfsync always' if server else 'given, so that it is not restarted'}), answers after {LATENCY_MS} ms.\n"
        f"Only ours is disturbed: {KILLED:.0%} of the calls hit by kill -9, {TWICE:.0%} delivered twice, "
        f"{RESTARTS if server else 0} restarts of the server."
    )
    print("Peers: " + "; ".join(f"{peer.folder} ({versions(peer.folder)})" for peer in PEERS))
    for load in LOADS.values():
        print(f"\n{load.name}: calls up to {usd(load.most_nusd)} on {usd(size.budget(load))}")
        print_rows([row for row in table if row.load is load])
    for row in table:
        if row.books is not None and not row.unavailable:
            print_books(row)
    folders = run_folders(QUICK_KILLS if size is QUICK else KILLS)
    print_folders(folders)
    found = problems_of(folders)
    print(f"\nFolder runs: {'; '.join(found) + ': DOES NOT HOLD' if found else 'all promises hold'}")
    return 0 if judged(table) and not found else 1


if __name__ == "__main__":
    sys.exit(main())
