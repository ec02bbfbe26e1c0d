"""Waits between attempts, which end when the worker does."""

import asyncio
from collections.abc import Awaitable

from agentic_trading.clock import Clock


class StoppableWait:
    """Waits by a clock, until `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopping = False
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def are_over(self) -> bool:
        """Whether nobody may wait any more."""
        return self._stopping

    def stop(self) -> None:
        """End every wait, and let nobody wait any more. Harmless twice."""
        self._stopping = True
        for pause in self._under_way:
            if not pause.expired():
                pause.reschedule(0)

    async def over(self, wait: Awaitable[object]) -> bool:
        """Wait for something; returns False if there is no time for that, because of `stop`: it is then cancelled."""
        pause = asyncio.timeout(0 if self._stopping else None)
        try:
            async with pause:
                self._under_way.add(pause)
                await wait
        except TimeoutError:
            return False
        finally:
            self._under_way.discard(pause)
        return True

    async def passed(self, seconds: float) -> bool:
        """Wait; returns False if there is no time for that, because of `stop`."""
        if seconds <= 0 or self._stopping:
            return seconds <= 0
        return await self.over(self._clock.sleep(seconds))
