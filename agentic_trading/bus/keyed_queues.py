"""Queues by key, tasks that wait for a delivery, and reply queues, for all brokers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.message import Delivery
from agentic_trading.bus.topic import PartitionProgress


class KeyedQueues:
    """Deliver the positions of many keys, one at a time for each key.

    A key is live from its first position until its last one is finished. The first position of a live key is
    either ready or delivered. Later positions wait for it. Ready keys take turns, so that a busy or failing
    key does not starve the others. Every operation takes constant time.
    """

    __slots__ = ("_behind", "_ready")

    def __init__(self) -> None:
        self._ready: deque[tuple[str, int]] = deque()
        # The deque is made late because most keys never have a second position waiting.
        self._behind: dict[str, deque[int] | None] = {}

    @property
    def has_ready(self) -> bool:
        """Whether `take` can return a position now."""
        return bool(self._ready)

    @property
    def waiting(self) -> int:
        """The number of positions not delivered yet."""
        return len(self._ready) + sum(len(queue) for queue in self._behind.values() if queue)

    def add(self, key: str, position: int) -> bool:
        """Append a position to its key's queue. Return whether it is ready immediately."""
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
        """Return the position that has been ready for longest.

        Raises `IndexError` if no position is ready.
        """
        return self._ready.popleft()[1]

    def finish(self, key: str) -> bool:
        """Remove the delivered position of `key`.

        Return whether the key's next position is now ready.
        """
        queue = self._behind[key]
        if not queue:
            del self._behind[key]
            return False
        self._ready.append((key, queue.popleft()))
        return True

    def put_back(self, key: str, position: int) -> None:
        """Make the delivered position of `key` ready again, after the keys that are ready now."""
        self._ready.append((key, position))


class Takers:
    """Tasks that wait for a delivery. Each wake-up reaches one task that still waits."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a wake-up.

        If the wait is cancelled after its wake-up, another task gets the wake-up.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                # Pass the wake-up on, because a ready delivery would otherwise wait unnoticed.
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake one waiting task. Cancelled waits are skipped."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all waiting tasks."""
        while self._waiters:
            self.wake_one()


class ReplyQueue:
    """The `Subscription` of one reply address: replies that were received and not taken.

    `stop` ends the reader that adds replies. It is called once.
    """

    def __init__(self, stop: Callable[[], Awaitable[None]]) -> None:
        self.is_closed = False
        self.changed = asyncio.Event()  # set when a reply is taken, and by `aclose`
        self._stop = stop
        self._waiting: deque[Delivery] = deque()
        self._takers = Takers()

    def add(self, delivery: Delivery) -> None:
        """Append a reply."""
        self._waiting.append(delivery)
        self._takers.wake_one()

    async def room(self, most: int) -> None:
        """Wait until fewer than `most` replies are queued, or until the queue is closed."""
        self.changed.clear()
        while len(self._waiting) >= most and not self.is_closed:
            await self.changed.wait()
            self.changed.clear()

    async def take(self) -> Delivery:
        """Wait for the next reply.

        Raises `BusClosedError` after the queue or its broker is closed.
        """
        while not self.is_closed:
            if self._waiting:
                self.changed.set()
                return self._waiting.popleft()
            await self._takers.wait()
        raise BusClosedError("the reader of replies")

    async def ack(self, delivery: Delivery) -> None:
        """Do nothing, because replies are not acknowledged."""

    async def give_back(self, delivery: Delivery) -> None:
        """Do nothing, because replies are not delivered again."""

    async def progress(self) -> Sequence[PartitionProgress]:
        """Return an empty sequence, because an address has no partitions."""
        return ()

    async def aclose(self) -> None:
        """Stop reading. Repeated calls have no effect."""
        if not self.is_closed:
            self.is_closed = True
            self.changed.set()
            self._takers.wake_all()
            await self._stop()
