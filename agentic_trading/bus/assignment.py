"""A partition for as long as a reader has it: what is queued, held and done, and how far that may be committed."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

from agentic_trading.bus.keyed_queues import KeyedQueues
from agentic_trading.bus.message import Delivery, Message


class Watermark:
    """How far a partition is done: up to the lowest offset in flight, else behind the highest seen.

    It never passes what is in flight, never goes back, and no gap stops it: an offset that does not exist (compacted,
    a transaction's marker) is never in flight.
    """

    __slots__ = ("_done", "_highest", "_in_flight")

    def __init__(self, start: int) -> None:
        self._in_flight: deque[int] = deque()
        self._done: set[int] = set()
        self._highest = start - 1

    @property
    def position(self) -> int:
        """The offset to commit: a reader that begins there misses nothing that is not done."""
        return self._in_flight[0] if self._in_flight else self._highest + 1

    @property
    def next_offset(self) -> int:
        """The offset behind the highest one seen."""
        return self._highest + 1

    def track(self, offset: int) -> bool:
        """Note that `offset` is in flight; False for one that was seen, which is then to be passed over."""
        if offset <= self._highest:
            return False
        self._in_flight.append(offset)
        self._highest = offset
        return True

    def finish(self, offset: int) -> None:
        """Note that `offset`, which is in flight, is done."""
        self._done.add(offset)
        while self._in_flight and self._in_flight[0] in self._done:
            self._done.remove(self._in_flight.popleft())


class Assignment:
    """One partition from its assignment to its revocation; a late call for it touches no later assignment.

    `start` is the offset from which it is read, `end` where it ended then, and `committed` what the group knows to be done.
    """

    __slots__ = (
        "_deliveries", "_end", "_held", "_messages", "_queues", "_watermark", "committed", "is_revoked",
        "partition", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, start: int, end: int = 0) -> None:
        self._end = end
        self.topic = topic
        self.partition = partition
        self.committed = start
        self.is_revoked = False
        self._watermark = Watermark(start)
        self._queues = KeyedQueues()
        self._messages: dict[int, Message] = {}
        self._held: dict[int, Delivery] = {}
        self._deliveries: dict[int, int] = {}  # of what was given back

    @property
    def has_ready(self) -> bool:
        """Whether `take` has something to hand out."""
        return not self.is_revoked and self._queues.has_ready

    @property
    def unfinished(self) -> int:
        """How many messages are here and not done, queued or held."""
        return len(self._messages)

    @property
    def in_flight(self) -> int:
        """How many deliveries are held."""
        return len(self._held)

    @property
    def position(self) -> int:
        """The offset that may be committed."""
        return self._watermark.position

    def waiting(self, end: int | None) -> int:
        """Return how many messages are not handed out, with those up to offset `end` that were not fetched yet."""
        return self._queues.waiting + max(0, max(end or 0, self._end) - self._watermark.next_offset)

    def add(self, offset: int, message: Message) -> bool:
        """Queue a message; returns whether it is ready. One whose offset was seen is passed over."""
        if self.is_revoked or not self._watermark.track(offset):
            return False
        self._messages[offset] = message
        return self._queues.add(message.key, offset)

    def take(self) -> Delivery:
        """Hand out the message that has been ready for longest."""
        offset = self._queues.take()
        count = self._deliveries.pop(offset, 0) + 1
        delivery = Delivery(self.topic, offset, self._messages[offset], count, self.partition)
        self._held[offset] = delivery
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        """Whether this very delivery is held, and not another one of the same message."""
        return self._held.get(delivery.position) is delivery

    def finish(self, delivery: Delivery) -> bool:
        """Note that a delivery that is held is done; returns whether the next one of its key is now ready."""
        self._let_go(delivery)
        del self._messages[delivery.position]
        self._watermark.finish(delivery.position)
        return not self.is_revoked and self._queues.finish(delivery.message.key)

    def give_back(self, delivery: Delivery) -> None:
        """Make what is held ready again, in its place; after the revocation it is the next reader's."""
        self._let_go(delivery)
        if not self.is_revoked:
            self._deliveries[delivery.position] = delivery.deliveries
            self._queues.put_back(delivery.message.key, delivery.position)

    def revoke(self) -> None:
        """Hand out nothing more and drop what is queued; what is held may still be finished."""
        self.is_revoked = True
        self._queues = KeyedQueues()

    def _let_go(self, delivery: Delivery) -> None:
        del self._held[delivery.position]


A = TypeVar("A", bound=Assignment)


class AssignedPartitions(Generic[A]):
    """The partitions that a reader has, by topic and by number; topics take turns, and so do partitions of a topic.

    A topic is full with `buffer` messages that are here and not done, until half of them are done. A partition of it that has
    less than half of an equal share has room all the same: a key with much to do would keep all others of the topic from this reader.
    """

    def __init__(self, topics: Sequence[str], buffer: int) -> None:
        self._topics: dict[str, dict[int, A]] = {topic: {} for topic in topics}  # next in turn first
        self._buffer = buffer
        self._full: set[str] = set()

    def __iter__(self) -> Iterator[A]:
        for partitions in self._topics.values():
            yield from partitions.values()

    @property
    def topics(self) -> Sequence[str]:
        """The topics that are read, the next in turn first."""
        return list(self._topics)

    def of(self, topic: str) -> Collection[A]:
        """Return the partitions of a topic."""
        return self._topics[topic].values()

    def get(self, topic: str, partition: int) -> A | None:
        """Return a partition, or None if this reader does not have it, or does not read it yet."""
        return self._topics.get(topic, {}).get(partition)

    def begin(self, assignment: A) -> None:
        """Add a partition."""
        self._topics[assignment.topic][assignment.partition] = assignment

    def end(self, assignment: A) -> None:
        """Revoke and forget a partition, unless another assignment of it has begun since."""
        assignment.revoke()
        if self.get(assignment.topic, assignment.partition) is assignment:
            del self._topics[assignment.topic][assignment.partition]

    @property
    def most(self) -> int:
        """How many messages are to be fetched at once: as many as a partition with room has, once `with_room` has found a full topic."""
        among = max((len(self._topics[topic]) for topic in self._full), default=1)
        return max(1, self._buffer // (2 * among))

    @property
    def is_any_full(self) -> bool:
        """Whether a topic was full when `with_room` was last asked."""
        return bool(self._full)

    def with_room(self) -> list[A]:
        """Return the partitions that have room."""
        found: list[A] = []
        for topic, partitions in self._topics.items():
            unfinished = sum(each.unfinished for each in partitions.values())
            if unfinished >= self._buffer:
                self._full.add(topic)
            elif unfinished <= self._buffer // 2:
                self._full.discard(topic)
            if topic not in self._full:
                found.extend(partitions.values())
            else:
                least = max(1, self._buffer // (2 * len(partitions)))
                found.extend(each for each in partitions.values() if each.unfinished < least)
        return found

    def next_ready(self) -> A | None:
        """Return the partition in turn that has something ready, or None."""
        for topic, partitions in self._topics.items():
            for number, assignment in partitions.items():
                if assignment.has_ready:
                    partitions[number] = partitions.pop(number)
                    self._topics[topic] = self._topics.pop(topic)
                    return assignment
        return None

    def holder(self, delivery: Delivery) -> A | None:
        """Return the partition of which `delivery` is held, or None if it is not held here any more."""
        assignment = self.get(delivery.topic, delivery.partition)
        return assignment if assignment is not None and assignment.holds(delivery) else None

    def uncommitted(self) -> dict[A, int]:
        """Return the positions that the group does not know yet."""
        return {each: each.position for each in self if each.position != each.committed}

    def forget(self) -> None:
        """Have no partition any more."""
        for partitions in self._topics.values():
            partitions.clear()
