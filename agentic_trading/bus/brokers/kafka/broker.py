"""The broker on Apache Kafka: topics with partitions, a consumer a reader, one producer."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentic_trading.bus.brokers.kafka.admin import delete_messages, require_topics
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.brokers.kafka.consumer import KafkaSubscription
from agentic_trading.bus.brokers.kafka.partition_reader import ReplyReader, scanned
from agentic_trading.bus.brokers.kafka.producer import MessagePublisher
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import REPLIES, BrokerStatistics, Subscription, Topic, summed


class KafkaBroker:
    """Keep the promise of `Broker` on a cluster; topics must be there (`topics create`).

    A partition is read by one reader of a group at a time, which hands out its keys independently of each other.
    When readers come or go, partitions move: order is kept per key, and what is not committed comes again. Nothing is
    connected before it is needed. For one event loop.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._publisher = MessagePublisher(settings)
        self._subscriptions: list[KafkaSubscription] = []
        self._replies: list[ReplyQueue] = []
        self._published: Counter[str] = Counter()
        self._members: Counter[str] = Counter()
        self._is_closed = False

    @property
    def max_message_bytes(self) -> int:
        """The largest value of a message on a topic with `room` for one, as it is configured."""
        return self._settings.max_message_bytes

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns. Raises as `publish_all` does."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order; they are kept when this returns.

        Beside what the port says, raises `TopicSetupError`, and `BusUnavailableError` if they are not acknowledged in
        time: they may then be there or not.
        """
        self._check_open()
        if messages:
            await self._publisher.publish_all(topic, messages)
            self._published[topic.name] += len(messages)

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        """Read `topics` as one of the readers of `group`, in a consumer of its own."""
        self._check_open()
        if not topics:
            raise ValueError("a subscription needs at least one topic")
        self._members[group] += 1
        member = self._settings.member and f"{self._settings.member}-{group}-{self._members[group]}"
        subscription = KafkaSubscription(
            self._settings, [topic.name for topic in topics], group, member=member
        )
        await subscription.start()
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    async def replies(self, address: str) -> Subscription:
        """Read the replies to `address` that come from now on, in a consumer without a group."""
        self._check_open()
        reader = ReplyReader(self._settings, REPLIES.name, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield what is kept of a topic now, in a consumer without a group; close it if it is not read to its end."""
        self._check_open()
        async with aclosing(scanned(self._settings, topic.name)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        """Ask the servers for topics; raises as the port says."""
        self._check_open()
        await require_topics(self._settings, [topic.name for topic in topics])

    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete what stands before an offset in a partition; raises `TopicSetupError`, and `BusUnavailableError`."""
        self._check_open()
        await delete_messages(self._settings, topic.name, positions)

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        self._is_closed = True
        while self._replies:
            await self._replies.pop().aclose()
        while self._subscriptions:
            await self._subscriptions.pop().aclose()
        await self._publisher.aclose()

    def statistics(self) -> BrokerStatistics:
        """Return what was published through this object, and how far its own readers lag; what is kept, Kafka knows."""
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return BrokerStatistics(published=dict(self._published), kept={}, backlogs=summed(lags))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Kafka broker")
