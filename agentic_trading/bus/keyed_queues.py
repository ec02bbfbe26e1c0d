"""Order per key, none between keys: a lane for each live key."""

from collections import deque


class KeyedQueues:
    """Hand out the positions of many keys, one at a time per key.

    A key is live from its first position until the last one is finished. The position at the head of a live lane
    is ready or handed out, never both; the others wait behind it. Heads become ready in turn, so that a busy key
    or one that fails again and again does not starve the others. Every operation takes constant time.
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
        return len(self._ready) + sum(len(lane) for lane in self._behind.values() if lane)

    def add(self, key: str, position: int) -> bool:
        """Append a position to its key's lane; returns whether it is ready at once."""
        if key not in self._behind:
            self._behind[key] = None
            self._ready.append((key, position))
            return True
        lane = self._behind[key]
        if lane is None:
            lane = self._behind[key] = deque()
        lane.append(position)
        return False

    def take(self) -> int:
        """Return the position that has been ready for longest; raises `IndexError` if none is."""
        return self._ready.popleft()[1]

    def finish(self, key: str) -> bool:
        """Forget the position handed out for `key`; returns whether the next one of the key is now ready."""
        lane = self._behind[key]
        if not lane:
            del self._behind[key]
            return False
        self._ready.append((key, lane.popleft()))
        return True

    def put_back(self, key: str, position: int) -> None:
        """Make the position that was handed out for `key` ready again, after the keys that are ready now."""
        self._ready.append((key, position))
