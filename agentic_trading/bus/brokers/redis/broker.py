"""The broker on Redis Streams: a topic is a number of streams, a group has one reader a stream at a time."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentic_trading.bus.brokers.redis.connection import RedisBusSettings
from agentic_trading.bus.brokers.redis.consumer import RedisSubscription
from agentic_trading.bus.brokers.redis.lease import PartitionLease
from agentic_trading.bus.brokers.redis.redis import StreamServer, done_or_raise, made_or_raise
from agentic_trading.bus.brokers.redis.stream_reader import (
    REPLIES_KEPT,
    REPLIES_STAY_S,
    RedisReplyReader,
    fields_of,
    scanned_streams,
)
from agentic_trading.bus.errors import BacklogFullError, BusClosedError
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import (
    HEADS,
    MAX_HEAD_BYTES,
    REPLIES,
    BrokerStatistics,
    Subscription,
    Topic,
    summed,
)
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.logger import get_logger

log = get_logger()


class RedisBroker:
    """Keep the promise of `Broker` on one server; topics must be there (`topics create`).

    A partition is read by one reader of a group at a time, which hands out its keys independently of each other. What
    every group has finished is dropped, so a group that comes later gets what is left; a topic that no group reads is kept
    whole, until `max_backlog`. Of a topic with `newest` the oldest ones go instead. Nothing is connected before it is
    needed. For one event loop.
    """

    def __init__(self, settings: RedisBusSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._server = StreamServer(settings)
        self._subscriptions: list[RedisSubscription] = []
        self._replies: list[ReplyQueue] = []
        self._published: Counter[str] = Counter()
        self._is_closed = False

    @property
    def max_message_bytes(self) -> int:
        """The largest value of a message on a topic with `room` for one, as it is configured."""
        return self._settings.max_message_bytes

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns. Raises as `publish_all` does."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order, all of them or none; they are kept when this returns.

        Beside what the port says, raises `BacklogFullError` where a partition would keep more than `max_backlog` and the
        topic has no `newest`, `TopicSetupError`, `BusSettingsError`, and `BusUnavailableError` without an answer in time:
        they may then be there or not.
        """
        self._check_open()
        most, most_in_head = self._settings.max_message_bytes * topic.room, MAX_HEAD_BYTES * topic.room
        for message in messages:
            message.check_size(topic.name, most=most, most_in_head=most_in_head)
        if messages:
            await self._server.open()
            await self._add(topic, messages)
            self._published[topic.name] += len(messages)

    async def _add(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        keys, settings = self._settings.keys_of(topic.name), self._settings
        is_reply = topic.name == REPLIES.name
        streams: dict[str | bytes, int] = {}  # in the order in which the script is given them, from 1 on
        given: list[int | bytes] = [
            settings.partitions,
            settings.max_backlog,
            REPLIES_STAY_S if is_reply else 0,
            REPLIES_KEPT if is_reply else min(topic.newest or 0, settings.max_backlog),
        ]
        for message in messages:
            key = message.key_bytes
            stream = keys.reply_stream(key) if is_reply else keys.stream(keys.partition_of(key))
            given += (streams.setdefault(stream, len(streams) + 1), *fields_of(message))
        answer = await self._server.run(
            "publish", [keys.meta, *streams], given, doing="publishing", within_s=settings.publish_s
        )
        done_or_raise(answer, topic.name, keys.partitions)
        if answer[0] == b"full":
            full = str([*streams][int(answer[1]) - 1])
            partition = int(full.rpartition(":")[2])
            raise BacklogFullError(topic.name, partition, int(answer[2]), settings.max_backlog)
        if int(answer[1]) and topic.name != HEADS.name:  # an old head says nothing that the next one does not
            log.warning("redis_oldest_messages_gone", topic=topic.name, count=int(answer[1]))

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        """Read `topics` as one of the readers of `group`; raises as `publish_all` does, but for sizes."""
        self._check_open()
        if not topics:
            raise ValueError("a subscription needs at least one topic")
        await self._server.open()
        names = [topic.name for topic in topics]
        lease = PartitionLease(self._server, self._settings, names, group, clock=self._clock)
        subscription = RedisSubscription(self._server, self._settings, lease)
        await subscription.start()
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    async def replies(self, address: str) -> Subscription:
        """Read the replies to `address` that come from now on, in a stream of its own."""
        self._check_open()
        await self._server.open()
        reader = RedisReplyReader(self._server, self._settings, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield what is kept of a topic now; close it if it is not read to its end."""
        self._check_open()
        await self._server.open()
        async with aclosing(scanned_streams(self._server, self._settings, topic)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete what stands before a position in a partition; raises `BusUnavailableError`."""
        self._check_open()
        keys = self._settings.keys_of(topic.name)
        await self._server.open()
        await self._server.trim({
            keys.stream(partition): f"0-{first}" for partition, first in positions.items()
        })

    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        """Ask the server for topics; raises as the port says, and `BusSettingsError`."""
        self._check_open()
        await self._server.open()
        made = await self._server.partitions([self._settings.keys_of(topic.name) for topic in topics])
        for topic, partitions in zip(topics, made, strict=True):
            made_or_raise(topic.name, partitions, self._settings.partitions)

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        self._is_closed = True
        readers: list[Subscription] = [*self._replies, *self._subscriptions]
        async with asyncio.TaskGroup() as group:
            for each in readers:
                group.create_task(each.aclose(), name="redis-close")
        await self._server.aclose()

    def statistics(self) -> BrokerStatistics:
        """Return what was published through this object, and how far its own readers lag; what is kept, the server knows."""
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return BrokerStatistics(published=dict(self._published), kept={}, backlogs=summed(lags))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Redis broker")
