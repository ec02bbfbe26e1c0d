"""The side that is measured: rounds of calls, asked for on standard input, told on standard output.

It needs nothing but the standard library: every contender's environment runs it.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

AT_ONCE = 20
"""Calls between two looks at the answers; a round is made of these."""


@dataclass(frozen=True)
class Round:
    """What one round of calls took: microseconds a call, by stage where that was asked; and wrong answers."""

    cpu_us: float
    wall_us: float
    wrong: int
    stages_us: Mapping[str, float] = field(default_factory=dict)


async def nothing() -> None:
    """Do nothing: a call leaves nothing to be finished."""


async def timed(
    call: Callable[[], Awaitable[Any]],
    is_right: Callable[[Any], bool],
    count: int,
    finish: Callable[[], Awaitable[None]] = nothing,
) -> Round:
    """Make `count` calls, one after the other, and `finish` what they left to be done; the garbage collector is on.

    Answers are looked at between the calls, outside of what is timed, and let go: nobody hoards them in real life.
    The loop gets a turn after every few calls, as it would from any provider.
    """
    cpu_s = wall_s = 0.0
    wrong = 0
    gc.collect()
    for _ in range(count // AT_ONCE):
        answers = []
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(AT_ONCE):
            answers.append(await call())  # noqa: PERF401 - a comprehension would hide what is measured
        await asyncio.sleep(0)
        cpu_s, wall_s = cpu_s + time.process_time() - cpu, wall_s + time.perf_counter() - wall
        wrong += sum(not is_right(answer) for answer in answers)
    cpu, wall = time.process_time(), time.perf_counter()
    await finish()
    cpu_s, wall_s = cpu_s + time.process_time() - cpu, wall_s + time.perf_counter() - wall
    return Round(cpu_s / count * 1e6, wall_s / count * 1e6, wrong)


async def stepped(
    step: Callable[[str], Awaitable[bool]],
    calls: int,
    tasks: int,
    first: int,
    finish: Callable[[], Awaitable[None]] = nothing,
) -> Round:
    """Take `calls` steps, so many at once, and `finish` what they left to be done; return what each took.

    A step that returns False is wrong.
    """
    numbers = iter(range(first, first + calls))
    wrong = 0

    async def work() -> None:
        nonlocal wrong
        for number in numbers:
            wrong += not await step(f"step-{number}")

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())
    await finish()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Round(cpu / calls * 1e6, wall / calls * 1e6, wrong)


async def asked_at_once(
    ask: Callable[[], Awaitable[bool]],
    callers: int,
    count: int,
    finish: Callable[[], Awaitable[None]] = nothing,
) -> Round:
    """Have `ask` called `count` times, `callers` at once, after once for each to open its connection."""

    async def step(_: str) -> bool:
        return await ask()

    await stepped(step, callers, callers, first=0)
    return await stepped(step, count, callers, first=0, finish=finish)


def answer_rounds(ways: Mapping[str, Callable[[int], Awaitable[Round]]]) -> None:
    """Run a round for each line `WAY COUNT` and print what it took as a line of JSON, until the input ends."""

    async def answer() -> None:
        for line in sys.stdin:  # blocks, but between two rounds nothing else is under way
            way, count = line.split()
            print(json.dumps(asdict(await ways[way](int(count)))), flush=True)

    asyncio.run(answer())


def answer_steps(steps: Mapping[str, Callable[..., Any]]) -> None:
    """Take the step that each line names as a JSON object, its arguments beside it, and print the result as JSON."""
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(steps[arguments.pop("step")](**arguments)), flush=True)
