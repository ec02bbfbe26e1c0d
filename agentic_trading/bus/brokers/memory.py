"""An in-memory broker for one process."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.keyed_queues import KeyedQueues, ReplyQueue, Takers
from agentic_trading.bus.message import Delivery, Message


class MemoryBroker:
    """An in-memory `Broker` for the tasks of one event loop.

    By default, all messages are kept for later groups. With `retain_acknowledged=False`, a message is dropped
    after at least one group has read it and all groups known at that time have acknowledged it. This keeps
    long backtests small, and a later group gets only the remaining messages. A group stays known until the
    broker is closed. A topic that no group reads keeps all its messages, so publish only to topics that are
    read.

    Args:
        max_message_bytes: The size limit of a message value, on a topic whose `room` is 1.
        retain_acknowledged: Whether acknowledged messages are kept.

    Raises:
        ValueError: If `max_message_bytes` is less than 1.

    """

    def __init__(
        self, *, max_message_bytes: int = topic_api.MAX_MESSAGE_BYTES, retain_acknowledged: bool = True
    ) -> None:
        if max_message_bytes < 1:
            raise ValueError(f"max_message_bytes is {max_message_bytes}. Allowed: 1 or more.")
        self._max_message_bytes = max_message_bytes
        self._retain_acknowledged = retain_acknowledged
        self._topics: dict[str, _MemoryTopic] = {}
        self._replies: dict[str, list[ReplyQueue]] = {}  # by address
        self._published_replies = 0
        self._closed = False

    @property
    def max_message_bytes(self) -> int:
        """The size limit of a message value in bytes, on a topic whose `room` is 1."""
        return self._max_message_bytes

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic. See `Broker.publish`."""
        self._check(topic, message)
        self._add(topic, message)

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in order. See `Broker.publish_all`."""
        for message in messages:
            self._check(topic, message)
        for message in messages:
            self._add(topic, message)

    def _add(self, topic: topic_api.Topic[Any], message: Message) -> None:
        if topic.name != topic_api.REPLIES.name:
            self._topic(topic.name).append(message)
            return
        for reader in self._replies.get(message.key, ()):
            reader.add(Delivery(topic.name, self._published_replies, message, 1))
        self._published_replies += 1

    def _check(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Raise the errors of `publish` for an invalid message."""
        if self._closed:
            raise BusClosedError("the memory broker")
        message.check_size(
            topic.name,
            most=self._max_message_bytes * topic.room,
            most_in_head=topic_api.MAX_HEAD_BYTES * topic.room,
        )

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
        """Join `group` and read `topics`. See `Broker.subscribe`."""
        if self._closed:
            raise BusClosedError("the memory broker")
        if not topics:
            raise ValueError("A subscription needs at least one topic.")
        cursors = [self._topic(topic.name).cursor(group) for topic in topics]
        return _MemorySubscription(f"the subscription of {group}", cursors)

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that are published from now on. See `Broker.replies`."""
        if self._closed:
            raise BusClosedError("the memory broker")
        readers = self._replies.setdefault(address, [])

        async def leave() -> None:
            readers.remove(reader)

        readers.append(reader := ReplyQueue(leave))
        return reader

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the stored messages of `topic`, oldest first. See `Broker.scan`."""
        if self._closed:
            raise BusClosedError("the memory broker")
        for position, kept in self._topic(topic.name).there():
            yield Delivery(topic.name, position, kept.message, 1)

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:  # noqa: ARG002 - every topic exists
        """Raise `BusClosedError` after `aclose`. Every topic exists."""
        if self._closed:
            raise BusClosedError("the memory broker")

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete the messages before a position.

        A group that has not finished them may still do so.
        """
        if self._closed:
            raise BusClosedError("the memory broker")
        self._topic(topic.name).delete_before(positions.get(0, 0))

    async def aclose(self) -> None:
        """Close all subscriptions and stop accepting messages. Repeated calls have no effect."""
        self._closed = True
        for reader in [reader for readers in self._replies.values() for reader in readers]:
            await reader.aclose()
        for topic in self._topics.values():
            for cursor in topic.cursors.values():
                for member in [*cursor.readers]:
                    await member.aclose()

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return the counts of published and stored messages, and the lag of each group."""
        published = {name: topic.published for name, topic in self._topics.items()}
        if self._published_replies:
            published[topic_api.REPLIES.name] = self._published_replies
        return topic_api.BrokerStatistics(
            published=published,
            kept={name: len(topic.there()) for name, topic in self._topics.items()},
            backlogs=tuple(
                cursor.lag() for topic in self._topics.values() for cursor in topic.cursors.values()
            ),
        )

    def _topic(self, name: str) -> "_MemoryTopic":
        if name not in self._topics:
            self._topics[name] = _MemoryTopic(name, retain_acknowledged=self._retain_acknowledged)
        return self._topics[name]


class _KeptMessage:
    """A message, and the number of known groups that have not acknowledged it."""

    __slots__ = ("message", "unacknowledged")

    def __init__(self, message: Message, unacknowledged: int) -> None:
        self.message = message
        self.unacknowledged = unacknowledged


class _MemoryTopic:
    """The messages of one topic by position, and a cursor for each group."""

    def __init__(self, name: str, *, retain_acknowledged: bool) -> None:
        self.name = name
        self.published = 0
        self.kept: dict[int, _KeptMessage] = {}
        self.cursors: dict[str, _Cursor] = {}
        self._retain_acknowledged = retain_acknowledged
        self._first = 0  # messages before it are deleted, unless a group has to finish them

    def there(self) -> "list[tuple[int, _KeptMessage]]":
        """Return the messages that are not deleted, by position."""
        return [(position, kept) for position, kept in self.kept.items() if position >= self._first]

    def delete_before(self, position: int) -> None:
        self._first = max(self._first, min(position, self.published))
        for place in [
            place for place, kept in self.kept.items() if place < self._first and not kept.unacknowledged
        ]:
            del self.kept[place]

    def append(self, message: Message) -> None:
        position = self.published
        self.published += 1
        self.kept[position] = _KeptMessage(message, len(self.cursors))
        for cursor in self.cursors.values():
            cursor.offer(position, message.key)

    def cursor(self, group: str) -> "_Cursor":
        """Return the group's cursor. A new group starts at the oldest stored message."""
        if group not in self.cursors:
            cursor = self.cursors[group] = _Cursor(self, group)
            for position, kept in self.there():
                kept.unacknowledged += 1
                cursor.offer(position, kept.message.key)
        return self.cursors[group]

    def acknowledge(self, position: int) -> None:
        kept = self.kept[position]
        kept.unacknowledged -= 1
        if kept.unacknowledged == 0 and not (self._retain_acknowledged and position >= self._first):
            del self.kept[position]


class _Cursor:
    """The progress of one group in one topic, shared by the group's readers."""

    def __init__(self, topic: _MemoryTopic, group: str) -> None:
        self.topic = topic
        self.queues = KeyedQueues()
        self.readers: list[_MemorySubscription] = []
        self._group = group
        self._in_flight = 0
        self._given_back: dict[int, int] = {}  # by position: how often it was delivered

    def offer(self, position: int, key: str) -> None:
        """Queue a position. If it is ready, wake a task of each reader."""
        if self.queues.add(key, position):
            self._wake_readers()

    def hand_out(self) -> Delivery:
        """Return the next delivery. It must be finished or taken back."""
        position = self.queues.take()
        self._in_flight += 1
        deliveries = self._given_back.pop(position, 0) + 1 if self._given_back else 1
        return Delivery(self.topic.name, position, self.topic.kept[position].message, deliveries)

    def finish(self, delivery: Delivery) -> None:
        self._in_flight -= 1
        self.topic.acknowledge(delivery.position)
        if self.queues.finish(delivery.message.key):
            self._wake_readers()

    def take_back(self, delivery: Delivery) -> None:
        self._in_flight -= 1
        self._given_back[delivery.position] = delivery.deliveries
        self.queues.put_back(delivery.message.key, delivery.position)
        self._wake_readers()

    @property
    def done(self) -> int:
        """A position before which all messages are finished: the end, or 0 if any is not."""
        return 0 if self.queues.waiting or self._in_flight else self.topic.published

    def lag(self) -> topic_api.ConsumerLag:
        return topic_api.ConsumerLag(self._group, self.topic.name, self.queues.waiting, self._in_flight)

    def _wake_readers(self) -> None:
        for reader in self.readers:
            reader.wake_one()


class _MemorySubscription:
    """One reader of a group: its held deliveries, and the tasks that wait for more."""

    def __init__(self, name: str, cursors: Iterable[_Cursor]) -> None:
        self._is_closed = False
        self._name = name
        self._cursors = {cursor.topic.name: cursor for cursor in cursors}  # the next in turn first
        self._held: dict[tuple[str, int], Delivery] = {}
        self._takers = Takers()
        for cursor in self._cursors.values():
            cursor.readers.append(self)

    async def take(self) -> Delivery:
        while not self._is_closed:
            for name, cursor in self._cursors.items():
                if cursor.queues.has_ready:
                    delivery = cursor.hand_out()
                    self._cursors[name] = self._cursors.pop(name)
                    self._held[delivery.topic, delivery.position] = delivery
                    return delivery
            await self._takers.wait()
        raise BusClosedError(self._name)

    async def ack(self, delivery: Delivery) -> None:
        if self._drop(delivery):
            self._cursors[delivery.topic].finish(delivery)

    async def give_back(self, delivery: Delivery) -> None:
        if self._drop(delivery):
            self._cursors[delivery.topic].take_back(delivery)
            # Otherwise a reader that gives back immediately would block all other tasks of the loop.
            await asyncio.sleep(0)

    async def progress(self) -> Sequence[topic_api.PartitionProgress]:
        return [
            topic_api.PartitionProgress(name, 0, cursor.topic.published, cursor.done)
            for name, cursor in sorted(self._cursors.items())
        ]

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for cursor in self._cursors.values():
            cursor.readers.remove(self)
        for delivery in self._held.values():
            self._cursors[delivery.topic].take_back(delivery)
        self._held.clear()
        self._takers.wake_all()

    def wake_one(self) -> None:
        """Wake one waiting task."""
        self._takers.wake_one()

    def _drop(self, delivery: Delivery) -> bool:
        """Remove a held delivery. Return False if it is not held, or was delivered again since."""
        id_ = (delivery.topic, delivery.position)
        held = self._held.get(id_)
        if held is None or held.deliveries != delivery.deliveries:
            return False
        del self._held[id_]
        return True
