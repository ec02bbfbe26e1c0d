"""What every broker's readers hand out by: a queue a key, the tasks that wait for a delivery, and replies in their order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import PartitionProgress


class KeyedQueues:
    """Hand out the positions of many keys, one at a time per key.

    A key is live from its first position until the last one is finished. The position at the head of a live key's
    queue is ready or handed out, never both; the others wait behind it. Heads become ready in turn, so that a busy
    key or one that fails again and again does not starve the others. Every operation takes constant time.
    """

    __slots__ = ("_behind", "_ready")

    def __init__(self) -> None:
        self._ready: deque[tuple[str, int]] = deque()
        self._behind: dict[str, deque[int] | None] = {}  # most keys never have a second position waiting

    @property
    def has_ready(self) -> bool:
        """Whether `take` has something to hand out."""
        return bool(self._ready)

    @property
    def waiting(self) -> int:
        """How many positions are not handed out."""
        return len(self._ready) + sum(len(queue) for queue in self._behind.values() if queue)

    def add(self, key: str, position: int) -> bool:
        """Append a position to its key's queue; returns whether it is ready at once."""
        if key not in self._behind:
            self._behind[key] = None
            self._ready.append((key, position))
            return True
        queue = self._behind[key]
        if queue is None:
            queue = self._behind[key] = deque()
        queue.append(position)
        return False

    def take(self) -> int:
        """Return the position that has been ready for longest; raises `IndexError` if none is."""
        return self._ready.popleft()[1]

    def finish(self, key: str) -> bool:
        """Forget the position handed out for `key`; returns whether the next one of the key is now ready."""
        queue = self._behind[key]
        if not queue:
            del self._behind[key]
            return False
        self._ready.append((key, queue.popleft()))
        return True

    def put_back(self, key: str, position: int) -> None:
        """Make the position that was handed out for `key` ready again, after the keys that are ready now."""
        self._ready.append((key, position))


class Takers:
    """Tasks that wait until there is something to take; each wake-up reaches one that still waits."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait to be woken; a wake-up that a cancelled wait got is handed on."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():  # woken and cancelled at once: the wake-up is for another task
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Let one waiting task look again; one whose wait was cancelled is skipped."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Let every waiting task look again."""
        while self._waiters:
            self.wake_one()


class ReplyQueue:
    """The `Subscription` to one address: what came and was not taken; `stop` ends what adds to it, once."""

    def __init__(self, stop: Callable[[], Awaitable[None]]) -> None:
        self.is_closed = False
        self.changed = asyncio.Event()  # since `room`: something was taken, or this was closed
        self._stop = stop
        self._waiting: deque[Delivery] = deque()
        self._takers = Takers()

    def add(self, delivery: Delivery) -> None:
        """Append a reply."""
        self._waiting.append(delivery)
        self._takers.wake_one()

    async def room(self, most: int) -> None:
        """Wait until fewer than `most` replies are here, or until this is closed."""
        self.changed.clear()
        while len(self._waiting) >= most and not self.is_closed:
            await self.changed.wait()
            self.changed.clear()

    async def take(self) -> Delivery:
        """Wait for the next reply; raises `BusClosedError` once this or its broker is closed."""
        while not self.is_closed:
            if self._waiting:
                self.changed.set()
                return self._waiting.popleft()
            await self._takers.wait()
        raise BusClosedError("the reader of replies")

    async def ack(self, delivery: Delivery) -> None:
        """Change nothing."""

    async def give_back(self, delivery: Delivery) -> None:
        """Change nothing."""

    async def progress(self) -> Sequence[PartitionProgress]:
        """Return nothing: an address is no partition."""
        return ()

    async def aclose(self) -> None:
        """Stop reading. Harmless twice."""
        if not self.is_closed:
            self.is_closed = True
            self.changed.set()
            self._takers.wake_all()
            await self._stop()
