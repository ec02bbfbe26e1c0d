"""The side that is measured: rounds of calls, asked for on standard input, answered on standard output.

Nothing but the standard library: every contender's environment runs it.
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
"""Calls between two looks at the answers; rounds are made of these."""

Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Round:
    """What one round of calls took: microseconds a call, and how many answers were wrong."""

    cpu_us: float
    wall_us: float
    wrong: int
    stages_us: Mapping[str, float] = field(default_factory=dict)


async def timed(call: Call, is_right: Callable[[Any], bool], count: int) -> Round:
    """Make `count` calls, one after the other, with the garbage collector on.

    Answers are looked at between the calls and let go, outside of what is timed: nobody hoards them in real life.
    """
    cpu_s = wall_s = 0.0
    wrong = 0
    gc.collect()
    for _ in range(count // AT_ONCE):
        answers = []
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(AT_ONCE):
            answers.append(await call())  # noqa: PERF401 - a comprehension would hide what is measured
        cpu_s, wall_s = cpu_s + time.process_time() - cpu, wall_s + time.perf_counter() - wall
        wrong += sum(not is_right(answer) for answer in answers)
    return Round(cpu_s / count * 1e6, wall_s / count * 1e6, wrong)


def answer_rounds(ways: Mapping[str, Callable[[int], Awaitable[Round]]]) -> None:
    """Run a round for each line `WAY COUNT`, and print what it took as a line of JSON, until the input ends."""

    async def answer() -> None:
        for line in sys.stdin:  # nothing else is under way in this process between two rounds
            way, count = line.split()
            print(json.dumps(asdict(await ways[way](int(count)))), flush=True)

    asyncio.run(answer())
