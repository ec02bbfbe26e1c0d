"""How many calls are under way at once; who only waits for headroom is not one of them."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from agentic_trading.cancellation import end_wait
from agentic_trading.clock import Clock

T = TypeVar("T")

Parking = Callable[[], AbstractAsyncContextManager[None]]
"""What is entered for as long as a call waits for another one, so that it does not keep that one from its slot."""

SlotQueue = deque[asyncio.Future[None]]


class Slots:
    """So many slots. Who comes back to one goes first, then who came first; who is idle makes room."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._returning: SlotQueue = deque()
        self._coming: SlotQueue = deque()
        self._idle: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator["Slot"]:
        """Hold a slot for as long as the block lasts."""
        await self._take(self._coming)
        slot = Slot(self)
        try:
            yield slot
        finally:
            if slot.is_held:
                self.release()

    async def take_again(self) -> None:
        """Wait for a slot before all who have not had one yet."""
        await self._take(self._returning)

    def release(self) -> None:
        """Give a slot to who is next, or keep it free."""
        for line in (self._returning, self._coming):
            while line:
                waiter = line.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
        self._free += 1

    async def unless_called_away(self, wait: Coroutine[Any, Any, T]) -> T | None:
        """Return what an idle holder waits for, or None when somebody comes back and needs its slot."""
        idle = asyncio.timeout(0 if self._returning else None)
        try:
            async with idle:
                self._idle.add(idle)
                got = await wait
        except TimeoutError:
            return None
        finally:
            self._idle.discard(idle)
        if self._returning:  # it was perhaps this one that was called away for them
            self._call_away()
        return got

    def _call_away(self) -> None:
        """Have one more idle holder give up its slot; who is about to anyway is passed over."""
        while self._idle:
            idle = self._idle.pop()
            if not idle.expired():
                end_wait(idle)
                return

    async def _take(self, line: SlotQueue) -> None:
        if self._free and not self._returning:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(waiter)
        if line is self._returning:
            self._call_away()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it was its turn already
                self.release()
            raise


class Slot:
    """One of a pool's slots, held for as long as a delivery is served."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.is_held = True

    @asynccontextmanager
    async def given_back(self) -> AsyncGenerator[None]:
        """Let another delivery be served for as long as the block lasts; then wait for a slot again."""
        self.is_held = False
        self._slots.release()
        yield
        await self._slots.take_again()
        self.is_held = True


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
            end_wait(pause)

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
