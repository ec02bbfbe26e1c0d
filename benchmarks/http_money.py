"""A budget of 100 dollars over HTTP: 64 callers of `agentic-trading serve`, against the invoice of a stand-in vendor.

Run: python -m benchmarks.http_money [--quick] [--rows abcdefg]. Exits with 1 if a row overspends, if its ledger, its log and the invoice
differ by anything but the charges in doubt and without a usage that `spend` shows, or if money is unusable beside them.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentic_trading.audit.logs import logs_at
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform.port_adapters import records_of
from benchmarks.http_money_callers import CALLERS, Calls
from benchmarks.http_money_place import Place, placed
from benchmarks.peers.load import BUDGET_NUSD, DOLLARS, NANO

FULL, QUICK = 400, 200
LATENCY_S, SPREAD = 0.6, 0.6
"""How long the vendor takes: 0.24 to 0.96 s."""
ATTEMPT_TIMEOUT_S = 30.0
LEASE_ENDS_S = ATTEMPT_TIMEOUT_S + 30.0 + 60.0
"""Seconds after which no reservation can be held: the lease of a sent one, or of one that was not sent, and time to sweep."""
BEFORE_KILL = 10
"""Answers before the kill. 64 calls of 1.28 USD must still fit, so that all are in flight."""
LONG_S = 11.0
FLIES_WITHIN_S = 20.0
"""Less than the time limit of an attempt, so that none ends before the kill."""
REDIS_KILLS, REDIS_AWAY_S = (30, 70, 110), 0.5


@dataclass(frozen=True)
class Case:
    """A row: its conditions, and what is done while its calls run."""

    letter: str
    title: str
    trouble: str = ""
    drops: float = 0.0
    without_usage: float = 0.0
    with_redis: bool = False
    wait_s: float = 0.0
    is_long: bool = False


CASES = (
    Case("a", "plain race"),
    Case("b", "30 % of the streams dropped", drops=0.3),
    Case("c", "half of the answers without usage", without_usage=0.5),
    Case("d", "kill -9, restart at once", trouble="kill"),
    Case("d", "kill -9, restart at once, Redis", trouble="kill", with_redis=True),
    Case("e", "kill -9, restart after 62 s, Redis", trouble="kill", with_redis=True, wait_s=62.0),
    Case("f", "Redis killed and restarted", trouble="redis", with_redis=True),
    Case("g", "calls of 11 s, Redis", with_redis=True, is_long=True),
)


@dataclass
class Row:
    """The figures of a row. Money is in nano-dollars."""

    letter: str
    title: str
    asked: int = 0
    answered: int = 0
    dropped: int = 0
    refused_402: int = 0
    busy_429: int = 0
    other: dict[str, int] = field(default_factory=dict)
    asked_again: dict[str, int] = field(default_factory=dict)
    in_flight_at_kill: int = 0
    restarts: int = 0
    most_held: int = 0
    invoice: int = 0
    spent: int = 0
    held: int = 0
    settled: int = 0
    in_doubt_calls: int = 0
    in_doubt: int = 0
    unmetered_calls: int = 0
    unmetered: int = 0
    seconds: float = 0.0
    wrong_charges: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def overspend(self) -> int:
        """By how much the invoice passes the budget."""
        return max(0, self.invoice - BUDGET_NUSD)

    @property
    def unusable(self) -> int:
        """The part of the budget that bought no settled call, after a call was refused."""
        return max(0, BUDGET_NUSD - self.settled) if self.refused_402 else 0


async def run_case(case: Case, place: Place, count: int) -> Row:
    """Run a row, and return its figures."""
    row = Row(case.letter, case.title)
    calls = Calls(deque(f"call-{number}" for number in range(count)), case.drops, LATENCY_S)
    row.asked = count
    begun = time.perf_counter()
    if case.trouble == "kill":
        await asyncio.to_thread(place.ask_vendor, f"hold/{BEFORE_KILL}")
    trouble = _TROUBLES[case.trouble]
    async with asyncio.TaskGroup() as group:
        making = group.create_task(calls.make(place.url, place.secret))
        disturbing = group.create_task(trouble(case, place, calls, row))
        await making
        disturbing.cancel()
    row.seconds = time.perf_counter() - begun
    _count(row, calls)
    await settle(place, row)
    await read_books(place, row, calls)
    row.problems = problems(case, row)
    return row


def _count(row: Row, calls: Calls) -> None:
    named = {"answered", "dropped", "402"}
    row.answered, row.dropped, row.refused_402 = (calls.ends[name] for name in ("answered", "dropped", "402"))
    row.busy_429 = calls.asked_again["429"]
    row.other = {name: number for name, number in calls.ends.items() if name not in named}
    row.asked_again = dict(calls.asked_again)


async def settle(place: Place, row: Row) -> None:
    """Wait until the vendor generates no answer and the ledger holds no money, then stop the server."""
    until = time.monotonic() + LEASE_ENDS_S
    while True:
        open_ = await asyncio.to_thread(place.ask_vendor, "open")
        row.spent, row.held, row.in_doubt = await asyncio.to_thread(place.balance)
        if (not open_ and not row.held) or time.monotonic() > until:
            break
        await asyncio.sleep(1)
    await asyncio.to_thread(place.server.stop)
    row.spent, row.held, row.in_doubt = await asyncio.to_thread(place.balance)


async def read_books(place: Place, row: Row, calls: Calls) -> None:
    """Read the invoice, the log and `spend`."""
    lines = await asyncio.to_thread(place.ask_vendor, "invoice")
    billed = {line["call"]: line["nusd"] for line in lines}
    row.invoice = sum(line["nusd"] for line in lines)
    shown = await asyncio.to_thread(place.spend)
    row.in_doubt_calls, row.in_doubt = shown["in_doubt"], shown["in_doubt_nusd"]
    row.unmetered_calls, row.unmetered = shown.get("unmetered", 0), shown.get("unmetered_nusd", 0)
    if shown["cost_nusd"] != row.spent:
        row.problems.append(f"spend shows {usd(shown['cost_nusd'])}, budget show {usd(row.spent)}")
    for log in await asyncio.to_thread(logs_at, place.store):
        async with aclosing(records_of(log)) as records, aclosing(records.scan()) as entries:
            async for entry in entries:
                if isinstance(entry.record, LLMInteraction):
                    _take(row, entry.record, billed)
    row.wrong_charges += [
        f"{name}: its client was told {usd(nusd)}, the invoice has {usd(billed.get(name, 0))}"
        for name, nusd in calls.costs.items()
        if nusd < billed.get(name, 0)
    ]


def _take(row: Row, record: LLMInteraction, billed: Mapping[str, int]) -> None:
    """Take in an attempt on record."""
    result = record.result
    if not result.cost_nusd or result.in_doubt or result.unmetered:
        return
    name = json.loads(record.envelope.context["body"])["messages"][-1]["content"]
    row.settled += result.cost_nusd
    if result.cost_nusd != billed.get(name, 0):
        row.wrong_charges.append(
            f"{name}: charged {usd(result.cost_nusd)}, the invoice has {usd(billed.get(name, 0))}"
        )


async def _undisturbed(case: Case, place: Place, _: Calls, row: Row) -> None:
    """Look at the money that is held while long calls run."""
    while case.is_long:
        held = (await asyncio.to_thread(place.balance))[1]
        row.most_held = max(row.most_held, held)


async def _kill(case: Case, place: Place, calls: Calls, row: Row) -> None:
    """Kill the server with 64 calls in flight, and start it again."""
    await _ended(calls, BEFORE_KILL)
    until = time.monotonic() + FLIES_WITHIN_S
    while row.in_flight_at_kill < CALLERS and time.monotonic() < until:
        row.in_flight_at_kill = await asyncio.to_thread(place.ask_vendor, "open")
    await asyncio.to_thread(place.server.kill)
    await asyncio.to_thread(place.ask_vendor, "go")
    await asyncio.sleep(case.wait_s)
    await asyncio.to_thread(place.start)


async def _restart_redis(_: Case, place: Place, calls: Calls, row: Row) -> None:
    """Kill the Redis of the ledger and start it again, three times while there is money left."""
    assert place.redis is not None
    for number in REDIS_KILLS:
        await _ended(calls, number)
        await asyncio.to_thread(place.redis.kill)
        await asyncio.sleep(REDIS_AWAY_S)
        await asyncio.to_thread(place.redis.start)
        row.restarts += 1


_TROUBLES: Mapping[str, Callable[[Case, Place, Calls, Row], Coroutine[None, None, None]]] = {
    "": _undisturbed,
    "kill": _kill,
    "redis": _restart_redis,
}


async def _ended(calls: Calls, number: int) -> None:
    while calls.ends.total() < number:
        calls.answered.clear()
        await calls.answered.wait()


def problems(case: Case, row: Row) -> list[str]:
    """Return which promises a row breaks."""
    most, holds = DOLLARS.most_nusd, row.in_doubt + row.unmetered
    is_refused, is_kill = bool(row.refused_402), case.trouble == "kill"
    broken = {
        f"overspent {usd(row.overspend)}": row.overspend,
        f"the ledger has {usd(row.spent)}, less than the invoice": row.spent < row.invoice,
        f"{usd(row.held)} still held when every lease was over": row.held,
        f"spent {usd(row.spent)}, settled {usd(row.settled)}, in doubt or without usage {usd(holds)}": row.spent
        != row.settled + holds,
        f"refused calls with {usd(row.unusable - holds)} left": is_refused and row.unusable - holds >= most,
        "no call was refused: the load is too small": not (is_refused or case.is_long),
        f"{usd(holds)} in doubt or without usage": case.letter in "abg" and holds,
        f"only {row.in_flight_at_kill} calls were in flight at the kill": is_kill
        and row.in_flight_at_kill != CALLERS,
        f"at most {usd(row.most_held)} were held while {CALLERS} calls ran": case.is_long
        and row.most_held != CALLERS * most,
        f"charges differ from the invoice: {row.wrong_charges[:1]}": row.wrong_charges,
        f"other ends: {row.other}": row.other,
    }
    return [*row.problems, *(text for text, is_broken in broken.items() if is_broken)]


def usd(nusd: int) -> str:
    """Spell an amount in dollars."""
    return f"{nusd / NANO:.4f} USD"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "row": lambda row: f"{row.letter} {row.title}",
    "answered": lambda row: str(row.answered),
    "dropped": lambda row: str(row.dropped),
    "402": lambda row: str(row.refused_402),
    "429": lambda row: str(row.busy_429),
    "invoice": lambda row: _dollars(row.invoice),
    "spent": lambda row: _dollars(row.spent),
    "in doubt": lambda row: _shown(row.in_doubt, row.in_doubt_calls),
    "without usage": lambda row: _shown(row.unmetered, row.unmetered_calls),
    "overspend": lambda row: _dollars(row.overspend),
    "unusable": lambda row: _dollars(row.unusable),
    "seconds": lambda row: f"{row.seconds:.0f}",
}


def _dollars(nusd: int) -> str:
    return f"{nusd / NANO:.2f}"


def _shown(nusd: int, calls: int) -> str:
    return f"{_dollars(nusd)} ({calls})" if calls else "0"


def table_of(rows: Sequence[Row]) -> list[str]:
    """Return the rows as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    return [*lines, *(f"| {' | '.join(cell(row) for cell in COLUMNS.values())} |" for row in rows)]


def run_all(cases: Sequence[Case], count: int, folder: Path) -> list[Row]:
    """Run every case, and print what each promises."""
    rows: list[Row] = []
    for case in cases:
        row = asyncio.run(_run_case(case, count, folder / f"{len(rows)}"))
        rows.append(row)
        verdict = "; ".join(row.problems) + ": DOES NOT HOLD" if row.problems else "all promises hold"
        print(f"{row.letter} {row.title}: {verdict} ({row.asked_again})", flush=True)
    return rows


async def _run_case(case: Case, count: int, folder: Path) -> Row:
    latency, spread = (LONG_S, 0.0) if case.is_long else (LATENCY_S, SPREAD)
    timeout_s = LONG_S + 1 if case.is_long else ATTEMPT_TIMEOUT_S
    opened = placed(
        folder,
        answers=(latency, spread, case.without_usage),
        attempt_timeout_s=timeout_s,
        with_redis=case.with_redis,
    )
    place = await asyncio.to_thread(opened.__enter__)
    try:
        return await run_case(case, place, CALLERS if case.is_long else count)
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)


def main() -> int:
    """Print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer calls, and without the row that waits 62 s"
    )
    parser.add_argument("--rows", default="abcdefg", help="letters of the rows (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures of every row to this file")
    arguments = parser.parse_args()
    cases = [one for one in CASES if one.letter in arguments.rows and not (arguments.quick and one.wait_s)]
    count = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all(cases, count, Path(folder))
    print(
        f"\n{count} calls of up to {usd(DOLLARS.most_nusd)} from {CALLERS} callers, a budget of {usd(BUDGET_NUSD)}:\n"
    )
    print("\n".join(table_of(rows)))
    if arguments.json:
        raw = [{**asdict(row), "overspend": row.overspend, "unusable": row.unusable} for row in rows]
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
