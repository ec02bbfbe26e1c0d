"""What every broker's readers hand out by: a queue a key, and the tasks that wait for a delivery."""

import asyncio
from collections import deque


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
