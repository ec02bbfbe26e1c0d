"""The side that spends: calls are handed out on standard input, what came of them is told on standard output.

It needs nothing but the standard library: every contender's environment runs it. The first line that is told says that
the process is ready. Requests are lines of JSON: `{"way", "load", "budget_nusd", "run"}` opens a purse, `{"call": N}`
spends from it. Each call is answered with `{"call", "outcome", "nusd", …}`, in no order.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Literal, Protocol

from benchmarks.peers.load import LOADS, NANO, NUSD_PER_TOKEN, Load
from benchmarks.peers.paid import Provider
from benchmarks.peers.rounds import stepped

WORKERS = 16
"""Calls at once in a process."""
TASKS = 64
"""Steps at once where throughput is measured."""

Outcome = Literal["paid", "refused", "taken", "in_doubt", "broke"]


@dataclass(frozen=True)
class Told:
    """What came of a call; times in milliseconds. `asked` counts how often it was asked for until it was answered.

    `nusd` is the cost of the last of its `attempts`, at the provider.
    """

    call: int
    outcome: Outcome
    nusd: int = 0
    reserved_nusd: int = 0
    waited_ms: float = 0.0
    asked: int = 1
    attempts: int = 1
    why: str = ""


@dataclass(frozen=True)
class Opening:
    """A purse to be opened: `run` is a name that no other run has."""

    way: str
    load: str
    budget_nusd: int
    run: str


class Purse(Protocol):
    """A budget that many processes share."""

    async def take(self, call: str) -> Any:
        """Return leave to make a call, whatever that is; None if there is none."""
        ...

    async def book(self, leave: Any, call: str, nusd: int) -> None:
        """Book what the call has cost."""
        ...


Spender = Callable[[int], Awaitable[Told]]
Open = Callable[[Opening], Awaitable[Purse]]


def spender(purse: Purse, load: Load, provider: Provider) -> Spender:
    """Return what makes one call: ask for leave, call, book."""

    async def spend(number: int) -> Told:
        call = f"call-{number}"
        leave = await purse.take(call)
        if leave is None:
            return Told(number, "refused")
        nusd = await provider.call(load.name, call) * NUSD_PER_TOKEN
        await purse.book(leave, call, nusd)
        return Told(number, "paid", nusd)

    return spend


async def answer_calls(opened: Callable[[Opening], Awaitable[Spender]]) -> None:
    """Make the calls that are asked for, `WORKERS` at once, until the input ends."""
    reader = asyncio.StreamReader(limit=2**20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tell({"ready": True})
    spend: Spender | None = None
    calls: asyncio.Queue[int] = asyncio.Queue()

    async def work() -> None:
        while True:
            number = await calls.get()
            assert spend is not None
            try:
                told = await spend(number)
            except Exception as e:  # noqa: BLE001 - whatever a library raises, the call is answered
                told = Told(number, "broke", why=f"{type(e).__name__}: {e}"[:200])
            tell(asdict(told))

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(WORKERS)]
        while line := await reader.readline():
            asked = json.loads(line)
            if "call" in asked:
                calls.put_nowait(asked["call"])
            else:
                spend = await opened(Opening(**asked))
                tell({"ready": True})
        for worker in workers:
            worker.cancel()


def tell(what: Mapping[str, Any]) -> None:
    """Write a line."""
    print(json.dumps(what), flush=True)


async def answer_steps(way: str, open_purse: Open) -> None:
    """Run a round for each line `TASKS COUNT`: leave, and what was used booked, without a call between them."""
    load = LOADS["cents"]
    purse = await open_purse(Opening(way, load.name, 10**6 * NANO, f"steps-{time.time_ns()}"))
    numbers = count()

    async def step(call: str) -> bool:
        leave = await purse.take(call)
        if leave is None:
            return False
        await purse.book(leave, call, load.used(call) * NUSD_PER_TOKEN)
        return True

    for line in sys.stdin:  # blocks, but between two rounds nothing else is under way
        tasks, calls = map(int, line.split())
        first = next(numbers) * 10**7
        tell(asdict(await stepped(step, calls, tasks, first)))


def run_peer(open_purse: Callable[[str], Open]) -> None:
    """Be a contender: `spend URL PORT`, or `steps URL WAY`."""
    mode, url, third = sys.argv[1:4]
    opener = open_purse(url)
    if mode == "steps":
        asyncio.run(answer_steps(third, opener))
        return
    provider = Provider(int(third))

    async def opened(opening: Opening) -> Spender:
        return spender(await opener(opening), LOADS[opening.load], provider)

    asyncio.run(answer_calls(opened))
