"""Work that must be done however often its task is cancelled: money settled, a paid answer kept."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_S = 30.0
"""What takes longer than this is given up: a process must be able to end."""


async def run_shielded(work: Coroutine[Any, Any, T], *, longest_s: float = LONGEST_S) -> T:
    """Return what `work` gives, even if the caller is cancelled meanwhile, once or again and again.

    The cancellation comes to the caller at its next wait. Nothing is left behind: `work` is over when this returns
    or raises. Raises `TimeoutError` if it takes longer than `longest_s` seconds after the last cancellation.
    """
    task = asyncio.Task(work)  # outside any group, which would cancel it together with the caller
    was_cancelled = False
    while not task.done():
        try:
            done, _ = await asyncio.wait([task], timeout=longest_s)
        except asyncio.CancelledError:
            was_cancelled = True
            continue
        if not done:
            task.cancel()
            await asyncio.wait([task])
            raise TimeoutError(f"not done within {longest_s:g} s; allowed is less")
    caller = asyncio.current_task()
    if was_cancelled and caller is not None:
        caller.uncancel()
        caller.cancel()
    return task.result()
