"""A broker within one process: topics that keep their messages, in memory."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.keyed_queues import KeyedQueues, ReplyQueue, Takers
from agentic_trading.bus.message import Delivery, Message


class MemoryBroker:
    """Keep the whole promise of `Broker` for the tasks of one event loop.

    Everything is kept for groups that come later. With `retain_acknowledged=False` a message is dropped as soon
    as at least one group has read it and all groups known by then have acknowledged it: a backtest of months
    stays small, and a later group gets what is left. A group stays known for the broker's life, and a topic that
    no group reads is kept whole: subscribe only to read, publish only what is read.
    """

    def __init__(
        self, *, max_message_bytes: int = topic_api.MAX_MESSAGE_BYTES, retain_acknowledged: bool = True
    ) -> None:
        if max_message_bytes < 1:
            raise ValueError(f"max_message_bytes is {max_message_bytes}; allowed is 1 and more")
        self._max_message_bytes = max_message_bytes
        self._retain_acknowledged = retain_acknowledged
        self._topics: dict[str, _MemoryTopic] = {}
        self._replies: dict[str, list[ReplyQueue]] = {}  # by address
        self._published_replies = 0
        self._closed = False

    @property
    def max_message_bytes(self) -> int:
        """The largest value of a message on a topic with `room` for one."""
        return self._max_message_bytes

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns."""
        self._check(topic, message)
        self._add(topic, message)

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order; they are kept when this returns."""
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
        """Raise what `publish` promises for a message that is not taken."""
        if self._closed:
            raise BusClosedError("the memory broker")
        message.check_size(
            topic.name,
            most=self._max_message_bytes * topic.room,
            most_in_head=topic_api.MAX_HEAD_BYTES * topic.room,
        )

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
        """Read `topics` in turn, each that has something ready, as one of the readers of `group`."""
        if self._closed:
            raise BusClosedError("the memory broker")
        if not topics:
            raise ValueError("a subscription needs at least one topic")
        cursors = [self._topic(topic.name).cursor(group) for topic in topics]
        return _MemorySubscription(f"the subscription of {group}", cursors)

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that come from now on."""
        if self._closed:
            raise BusClosedError("the memory broker")
        readers = self._replies.setdefault(address, [])

        async def leave() -> None:
            readers.remove(reader)

        readers.append(reader := ReplyQueue(leave))
        return reader

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the messages of `topic` that are kept now, oldest first."""
        if self._closed:
            raise BusClosedError("the memory broker")
        for position, kept in self._topic(topic.name).there():
            yield Delivery(topic.name, position, kept.message, 1)

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:  # noqa: ARG002 - every topic is there
        """Raise `BusClosedError` after `aclose`."""
        if self._closed:
            raise BusClosedError("the memory broker")

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete what stands before a position; a group that has yet to finish it may still do so."""
        if self._closed:
            raise BusClosedError("the memory broker")
        self._topic(topic.name).delete_before(positions.get(0, 0))

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        self._closed = True
        for reader in [reader for readers in self._replies.values() for reader in readers]:
            await reader.aclose()
        for topic in self._topics.values():
            for cursor in topic.cursors.values():
                for member in [*cursor.readers]:
                    await member.aclose()

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return what was published, what is kept, and how far each group lags."""
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
    """A message, and how many of the known groups have not acknowledged it."""

    __slots__ = ("message", "unacknowledged")

    def __init__(self, message: Message, unacknowledged: int) -> None:
        self.message = message
        self.unacknowledged = unacknowledged


class _MemoryTopic:
    """One topic: its messages by position, and a cursor for each group."""

    def __init__(self, name: str, *, retain_acknowledged: bool) -> None:
        self.name = name
        self.published = 0
        self.kept: dict[int, _KeptMessage] = {}
        self.cursors: dict[str, _Cursor] = {}
        self._retain_acknowledged = retain_acknowledged
        self._first = 0  # what stands before it is deleted, and kept only for groups that have it to finish

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
        """Return the group's cursor; a new group starts at the oldest message kept."""
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
    """How far one group is in one topic, shared by the group's readers."""

    def __init__(self, topic: _MemoryTopic, group: str) -> None:
        self.topic = topic
        self.queues = KeyedQueues()
        self.readers: list[_MemorySubscription] = []
        self._group = group
        self._in_flight = 0
        self._given_back: dict[int, int] = {}  # by position: how often it was delivered

    def offer(self, position: int, key: str) -> None:
        """Queue a position, and wake a task of each reader if it is ready."""
        if self.queues.add(key, position):
            self._wake_readers()

    def hand_out(self) -> Delivery:
        """Return the next delivery, to be finished or taken back."""
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
        """Everything, or 0 while something is not finished: a position before which all is."""
        return 0 if self.queues.waiting or self._in_flight else self.topic.published

    def lag(self) -> topic_api.ConsumerLag:
        return topic_api.ConsumerLag(self._group, self.topic.name, self.queues.waiting, self._in_flight)

    def _wake_readers(self) -> None:
        for reader in self.readers:
            reader.wake_one()


class _MemorySubscription:
    """One reader of a group: what it holds, and the tasks that wait for more."""

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
            # or a reader that gives back at once would keep the loop from all other tasks
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
        """Let one waiting task look again."""
        self._takers.wake_one()

    def _drop(self, delivery: Delivery) -> bool:
        """Forget a delivery; False if it is not held, or was given back and handed out again since."""
        id_ = (delivery.topic, delivery.position)
        held = self._held.get(id_)
        if held is None or held.deliveries != delivery.deliveries:
            return False
        del self._held[id_]
        return True
