"""Waits end when the worker does."""

import asyncio

from agentic_trading.clock import SystemClock
from agentic_trading.worker.slots import StoppableWait


class SlowToEnd(SystemClock):
    """A clock whose sleeps never end by themselves, and take a while to be ended."""

    def __init__(self) -> None:
        self.is_ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await self.may_end.wait()


async def test_stopping_twice_is_harmless() -> None:
    clock = SlowToEnd()
    pauses = StoppableWait(clock)

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        waits = group.create_task(pauses.wait_for(clock.sleep(10)))
        await asyncio.sleep(0)
        pauses.stop()
        await clock.is_ending.wait()
        pauses.stop()
        clock.may_end.set()

    assert not waits.result()


async def test_stopped_wait_returns_immediately() -> None:
    clock = SlowToEnd()
    clock.may_end.set()
    pauses = StoppableWait(clock)
    pauses.stop()

    async with asyncio.timeout(2):
        await pauses.sleep(10)
        assert not await pauses.wait_for(clock.sleep(10))
