"""The messages of a partition while one reader has it, and the offset to commit."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

from agentic_trading.bus.keyed_queues import KeyedQueues
from agentic_trading.bus.message import Delivery, Message


class Watermark:
    """The offset up to which a partition is finished.

    It is the lowest offset in flight, or the offset after the highest one seen. It never passes an offset in
    flight and never moves back. Gaps do not stop it: an offset that does not exist (compaction, transaction
    markers) is never in flight.
    """

    __slots__ = ("_done", "_highest", "_in_flight")

    def __init__(self, start: int) -> None:
        self._in_flight: deque[int] = deque()
        self._done: set[int] = set()
        self._highest = start - 1

    @property
    def position(self) -> int:
        """The offset to commit. A reader that starts there gets every unfinished message."""
        return self._in_flight[0] if self._in_flight else self._highest + 1

    @property
    def next_offset(self) -> int:
        """The offset after the highest one seen."""
        return self._highest + 1

    def track(self, offset: int) -> bool:
        """Mark `offset` as in flight.

        Return False if it was seen before, so that the caller skips it.
        """
        if offset <= self._highest:
            return False
        self._in_flight.append(offset)
        self._highest = offset
        return True

    def finish(self, offset: int) -> None:
        """Mark an offset in flight as finished."""
        self._done.add(offset)
        while self._in_flight and self._in_flight[0] in self._done:
            self._done.remove(self._in_flight.popleft())


class Assignment:
    """One partition, from its assignment to its revocation.

    A late call for this assignment does not affect a later assignment of the same partition. `start` is the
    first offset to read. `end` is the partition's end offset at that time. `committed` is the position that
    the group has stored.
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
        self._deliveries: dict[int, int] = {}  # delivery counts of messages that were given back

    @property
    def has_ready(self) -> bool:
        """Whether `take` can return a delivery now."""
        return not self.is_revoked and self._queues.has_ready

    @property
    def unfinished(self) -> int:
        """The number of messages that are queued or held."""
        return len(self._messages)

    @property
    def in_flight(self) -> int:
        """The number of deliveries that are held."""
        return len(self._held)

    @property
    def position(self) -> int:
        """The offset that may be committed."""
        return self._watermark.position

    def waiting(self, end: int | None) -> int:
        """Return the number of messages not delivered yet.

        This includes the messages up to offset `end` that were not fetched.
        """
        return self._queues.waiting + max(0, max(end or 0, self._end) - self._watermark.next_offset)

    def add(self, offset: int, message: Message) -> bool:
        """Queue a message.

        Return whether it is ready. A message whose offset was seen before is skipped.
        """
        if self.is_revoked or not self._watermark.track(offset):
            return False
        self._messages[offset] = message
        return self._queues.add(message.key, offset)

    def take(self) -> Delivery:
        """Return the message that has been ready for longest, as a held delivery."""
        offset = self._queues.take()
        count = self._deliveries.pop(offset, 0) + 1
        delivery = Delivery(self.topic, offset, self._messages[offset], count, self.partition)
        self._held[offset] = delivery
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        """Whether exactly this delivery is held, rather than another delivery of the same message."""
        return self._held.get(delivery.position) is delivery

    def finish(self, delivery: Delivery) -> bool:
        """Finish a held delivery. Return whether the next message of its key is now ready."""
        self._let_go(delivery)
        del self._messages[delivery.position]
        self._watermark.finish(delivery.position)
        return not self.is_revoked and self._queues.finish(delivery.message.key)

    def give_back(self, delivery: Delivery) -> None:
        """Make a held delivery ready again, before later messages of its key.

        After the revocation, the next reader of the partition gets it.
        """
        self._let_go(delivery)
        if not self.is_revoked:
            self._deliveries[delivery.position] = delivery.deliveries
            self._queues.put_back(delivery.message.key, delivery.position)

    def revoke(self) -> None:
        """Stop delivering and drop the queued messages. Held deliveries may still be finished."""
        self.is_revoked = True
        self._queues = KeyedQueues()

    def _let_go(self, delivery: Delivery) -> None:
        del self._held[delivery.position]


A = TypeVar("A", bound=Assignment)


class AssignedPartitions(Generic[A]):
    """The partitions of one reader.

    Topics take turns, and so do the partitions of a topic. A topic is full when `buffer` of its messages are
    unfinished. It stays full until half of them are finished. Even then, a partition that has less than half
    of an equal share accepts messages.
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
        """The topics of this reader, the next in turn first."""
        return list(self._topics)

    def of(self, topic: str) -> Collection[A]:
        """Return the partitions of a topic."""
        return self._topics[topic].values()

    def get(self, topic: str, partition: int) -> A | None:
        """Return a partition, or None if this reader does not have it or has not begun it."""
        return self._topics.get(topic, {}).get(partition)

    def begin(self, assignment: A) -> None:
        """Add a partition."""
        self._topics[assignment.topic][assignment.partition] = assignment

    def end(self, assignment: A) -> None:
        """Revoke and remove a partition, unless another assignment of it has begun since."""
        assignment.revoke()
        if self.get(assignment.topic, assignment.partition) is assignment:
            del self._topics[assignment.topic][assignment.partition]

    @property
    def most(self) -> int:
        """The number of messages to fetch at once.

        While a topic is full, it is the number that one partition with room may take.
        """
        among = max((len(self._topics[topic]) for topic in self._full), default=1)
        return max(1, self._buffer // (2 * among))

    @property
    def is_any_full(self) -> bool:
        """Whether the last call of `with_room` found a full topic."""
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
                # Otherwise one key with many messages would keep this reader from all other keys.
                least = max(1, self._buffer // (2 * len(partitions)))
                found.extend(each for each in partitions.values() if each.unfinished < least)
        return found

    def next_ready(self) -> A | None:
        """Return the next partition in turn that has a ready message, or None."""
        for topic, partitions in self._topics.items():
            for number, assignment in partitions.items():
                if assignment.has_ready:
                    partitions[number] = partitions.pop(number)
                    self._topics[topic] = self._topics.pop(topic)
                    return assignment
        return None

    def holder(self, delivery: Delivery) -> A | None:
        """Return the partition that holds `delivery`, or None if this reader no longer holds it."""
        assignment = self.get(delivery.topic, delivery.partition)
        return assignment if assignment is not None and assignment.holds(delivery) else None

    def uncommitted(self) -> dict[A, int]:
        """Return the positions that are not committed yet."""
        return {each: each.position for each in self if each.position != each.committed}

    def forget(self) -> None:
        """Remove all partitions."""
        for partitions in self._topics.values():
            partitions.clear()
