"""Slots that limit the calls of a pool, and waits that end when the worker stops."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from agentic_trading.cancellation import end_wait
from agentic_trading.clock import Clock

T = TypeVar("T")

Parking = Callable[[], AbstractAsyncContextManager[None]]
"""A context that a call enters while it waits for another call, which may need its slot."""

SlotQueue = deque[asyncio.Future[None]]


class Slots:
    """A fixed number of slots.

    They are given out in order of arrival, but to returning holders first. A holder returns at the end of
    `Slot.given_back`. Inside `unless_needed` it is idle, and gives up its slot to a returning holder. It
    starts other work only while `Slot.may_be_kept`.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._returning: SlotQueue = deque()
        self._arriving: SlotQueue = deque()
        self._idle: set[asyncio.Timeout] = set()
        self._is_stopped = False

    @property
    def are_needed(self) -> bool:
        """Whether a returning holder waits for a slot, or the slots are stopped."""
        return bool(self._returning) or self._is_stopped

    def stop(self) -> None:
        """End the wait of every idle holder, now and later. Repeated calls have no effect."""
        self._is_stopped = True
        for idle in self._idle:
            end_wait(idle)

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator["Slot"]:
        """Hold a slot while the block runs."""
        await self._take(self._arriving)
        slot = Slot(self)
        try:
            yield slot
        finally:
            if slot.is_held:
                self.release()

    async def take_again(self) -> None:
        """Wait for a slot as a returning holder."""
        await self._take(self._returning)

    def release(self) -> None:
        """Give a slot to the next waiting holder, or mark it as free."""
        for queue in (self._returning, self._arriving):
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
        self._free += 1

    async def unless_needed(self, wait: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of an idle holder's `wait`, or None if its slot is needed or after `stop`."""
        idle = asyncio.timeout(0 if self.are_needed else None)
        try:
            async with idle:
                self._idle.add(idle)
                got = await wait
        except TimeoutError:
            return None
        finally:
            self._idle.discard(idle)
        if self._returning:
            # Ask another idle holder, because this one may have been asked for its slot and keeps it.
            self._reclaim_one()
        return got

    def _reclaim_one(self) -> None:
        """Make one idle holder give up its slot, skipping those that already do."""
        while self._idle:
            idle = self._idle.pop()
            if not idle.expired():
                end_wait(idle)
                return

    async def _take(self, queue: SlotQueue) -> None:
        if self._free and not self._returning:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        if queue is self._returning:
            self._reclaim_one()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # release it, otherwise the slot would be lost
                self.release()
            raise


class Slot:
    """One slot of a pool, held while a delivery is served."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.is_held = True

    @property
    def may_be_kept(self) -> bool:
        """Whether its holder may start other work.

        After an error in `given_back`, the slot belongs to another holder.
        """
        return self.is_held and not self._slots.are_needed

    @asynccontextmanager
    async def given_back(self) -> AsyncGenerator[None]:
        """Let another delivery use the slot while the block runs, then wait for a slot again."""
        self.is_held = False
        self._slots.release()
        yield
        await self._slots.take_again()
        self.is_held = True


class StoppableWait:
    """Waits by a clock that end at `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_stopped = False
        self._limits: set[asyncio.Timeout] = set()

    @property
    def is_stopped(self) -> bool:
        """Whether every wait ends immediately."""
        return self._is_stopped

    def stop(self) -> None:
        """End every wait, now and later. Repeated calls have no effect."""
        self._is_stopped = True
        for limit in self._limits:
            end_wait(limit)

    async def result_of(self, wait: Awaitable[T]) -> T | None:
        """Return the result of `wait`, or None if `stop` or a time limit inside it has cancelled it."""
        limit = asyncio.timeout(0 if self._is_stopped else None)
        try:
            async with limit:
                self._limits.add(limit)
                return await wait
        except TimeoutError:
            return None
        finally:
            self._limits.discard(limit)

    async def wait_for(self, wait: Awaitable[object]) -> bool:
        """Wait for an awaitable. Return False if it was cancelled, as in `result_of`."""
        return await self.result_of(_true_after(wait)) is not None

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `stop`."""
        if seconds > 0 and not self._is_stopped:
            await self.wait_for(self._clock.sleep(seconds))


async def _true_after(wait: Awaitable[object]) -> bool:
    await wait
    return True
