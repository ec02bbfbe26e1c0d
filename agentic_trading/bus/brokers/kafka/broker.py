"""The broker on Apache Kafka: topics with partitions, a consumer for each reader, one idempotent producer."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from aiokafka.partitioner import DefaultPartitioner

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.brokers.kafka import connection
from agentic_trading.bus.brokers.kafka.admin import (
    delete_messages,
    require_topics,
    topic_partitions,
    topic_settings,
)
from agentic_trading.bus.brokers.kafka.consumer import (
    FETCH_WAIT_MS,
    POLL_MS,
    RETRY_S,
    KafkaSubscription,
    message_of,
)
from agentic_trading.bus.errors import BusClosedError, MessageTooLargeError, TopicSetupError
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.cancellation import set_within
from agentic_trading.logger import get_logger

BATCH_BYTES: Final = 262_144
"""How large a batch may get: sixteen times the client's default, and six times its rate for records of 6.6 KB."""

LARGEST_ROOM: Final = 8
RECORD_OVERHEAD: Final = 128
HEADER_OVERHEAD: Final = 10
"""The most that Kafka's format adds to the bytes of a message alone in its batch, and for each of its headers."""


class MessagePublisher:
    """Publish messages, in their order a key, through one producer that is opened when it is needed.

    After an error it is closed, and the next message opens another one: a producer whose batch was given up refuses
    every later one for ever.
    """

    def __init__(self, settings: connection.KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._opening = asyncio.Lock()
        self._limits: dict[str, int] = {}
        self._is_closed = False

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic with one wait for all; they are kept, on all replicas in sync, when this returns.

        Raises `MessageTooLargeError` before any is added, `TopicSetupError`, and `BusUnavailableError` if they are
        not acknowledged within `publish_s`: each of them may then be there or not.
        """
        if self._is_closed:
            raise BusClosedError("the Kafka broker")
        producer: Any = None
        sent: list[asyncio.Future[Any]] = []
        try:
            async with asyncio.timeout(self._settings.publish_s):
                producer = await self._opened(topic.name)
                self._check(topic, messages)
                name = self._settings.full_name(topic.name)
                for message in messages:
                    sent.append(await producer.send(name, **_record_of(message)))  # noqa: PERF401 - in order
                for each in sent:
                    await each
        except (MessageSizeTooLargeError, RecordListTooLargeError) as e:
            limit = self._limits.pop(topic.name)  # it was changed, and is asked for again
            raise MessageTooLargeError(topic.name, max(len(each.value) for each in messages), limit) from e
        except (KafkaError, TimeoutError, OSError) as e:
            await self._drop(producer)
            raise connection.bus_error(e, self._settings, "publishing", topic.name) from e
        finally:
            for each in sent:
                each.add_done_callback(_look_at)

    async def aclose(self) -> None:
        """Close the producer, within a few seconds whatever the servers do; publish nothing more. Harmless twice."""
        self._is_closed = True
        await self._drop(self._producer)

    def _check(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Raise `MessageTooLargeError` for what the bus, or this topic of the server, does not take."""
        limit, allowed_head = self._limits[topic.name], topic_api.MAX_HEAD_BYTES * topic.room
        for message in messages:
            head, size = message.head_size, len(message.value)
            if head > allowed_head:
                raise MessageTooLargeError(topic.name, head, allowed_head, "key and headers")
            left = limit - head - RECORD_OVERHEAD - HEADER_OVERHEAD * len(message.headers)
            allowed = min(self._settings.max_message_bytes * topic.room, left)
            if size > allowed:
                raise MessageTooLargeError(topic.name, size, allowed)

    async def _opened(self, topic: str) -> Any:
        """Return the producer, with the limit of `topic` known."""
        if self._producer is not None and topic in self._limits:
            return self._producer
        async with self._opening:
            if self._is_closed:
                raise BusClosedError("the Kafka broker")
            if topic not in self._limits:
                self._limits[topic] = await self._limit(topic)
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._settings.client_options(),
                    acks="all",
                    enable_idempotence=True,
                    compression_type=connection.installed_codec(),
                    max_batch_size=BATCH_BYTES,
                    max_request_size=LARGEST_ROOM
                    * (self._settings.max_message_bytes + topic_api.MAX_HEAD_BYTES),
                )
                await connection.start_within(producer, self._settings, doing="opening a producer")
                self._producer = producer
            return self._producer

    async def _limit(self, topic: str) -> int:
        """Return how large a batch the topic takes, as its server says."""
        found = (await topic_settings(self._settings, [topic])).get(topic)
        if found is None:
            raise TopicSetupError(topic, "is not there", topic_api.CREATE)
        limit = int(found["max.message.bytes"])
        if limit < BATCH_BYTES + RECORD_OVERHEAD:
            allowed = f"set it to {BATCH_BYTES + RECORD_OVERHEAD} or more"
            raise TopicSetupError(topic, f"has max.message.bytes {limit}, less than a batch", allowed)
        return limit

    async def _drop(self, producer: Any) -> None:
        """Close a producer before the next one is opened: what it has not sent must not come after what that sends."""
        if producer is None:
            return
        async with self._opening:
            if self._producer is producer:
                await connection.close_within(producer)
                self._producer = None


def _record_of(message: Message) -> dict[str, Any]:
    return {
        "key": message.key_bytes,
        "value": message.value,
        "headers": [(name, value.encode()) for name, value in message.headers.items()],
    }


def _look_at(sent: "asyncio.Future[Any]") -> None:
    """See how a message ended that nothing waits for any more: its error was raised for the batch."""
    if not sent.cancelled():
        sent.exception()


log = get_logger()

_PARTITION_OF: Final = DefaultPartitioner()
"""What the producer chooses partitions by."""

Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]


class ReplyReader:
    """Read the messages of `topic` whose key is `address` into `replies`, from where its partition ends; to be started once.

    It joins no group and commits nothing. Other keys of the partition are passed over by the bytes of their key. Who adds
    partitions to the topic moves addresses: readers that are open then hear nothing more, and have to be opened again.
    """

    def __init__(self, settings: connection.KafkaSettings, topic: str, address: str) -> None:
        self._settings = settings
        self._topic = topic
        self._key = Message(address, b"", {}).key_bytes
        self._consumer: Any = (
            None  # made at the start: one that is never started would say that it was not closed
        )
        self.replies = ReplyQueue(self._stop)
        self._tasks = AsyncExitStack()

    async def start(self) -> None:
        """Find the end of the partition; raises `BusUnavailableError`, and `TopicSetupError` for no such topic."""
        numbers = await topic_partitions(self._settings, self._topic)
        tp = TopicPartition(self._settings.full_name(self._topic), _PARTITION_OF(self._key, numbers, numbers))
        self._consumer = _consumer_of(self._settings)
        await connection.start_within(self._consumer, self._settings, doing="opening a reader of replies")
        try:
            async with asyncio.timeout(self._settings.connect_s):
                ends = await self._consumer.end_offsets([tp])
            self._consumer.assign([tp])
            self._consumer.seek(tp, ends[tp])
            group = await self._tasks.enter_async_context(asyncio.TaskGroup())
        except (KafkaError, TimeoutError, OSError) as e:
            await connection.close_within(self._consumer)
            raise connection.bus_error(e, self._settings, "asking for the end of replies", self._topic) from e
        except BaseException:
            await connection.close_within(self._consumer)
            raise
        group.create_task(self._poll(), name="kafka-replies")

    async def _stop(self) -> None:
        """End within a few seconds, whatever the servers do."""
        if self._consumer is not None:
            await connection.close_within(self._consumer)
        await connection.ended_within(self._tasks.aclose(), connection.CLOSE_S)

    async def _poll(self) -> None:
        """Fetch until closed, but no more than `buffer` ahead."""
        while not self.replies.is_closed:
            await self.replies.room(self._settings.buffer)
            try:
                fetched = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=self._settings.buffer)
            except ConsumerStoppedError:
                return
            except Exception as e:  # noqa: BLE001 - a reader goes on: the next fetch may be right
                log.warning("kafka_replies_failed", error=f"{type(e).__name__}: {e}")
                await set_within(RETRY_S, self.replies.changed)
                continue
            self._keep(fetched)

    def _keep(self, fetched: Fetched) -> None:
        for records in fetched.values():
            for record in records:
                if record.key == self._key:
                    self.replies.add(_delivery_of(record, self._topic))


async def scanned(settings: connection.KafkaSettings, topic: str) -> AsyncGenerator[Delivery]:
    """Yield all that `topic` keeps now, partition by partition as they are fetched.

    Raises `BusUnavailableError` where nothing comes within `connect_s`, and `TopicSetupError` for no such topic.
    """
    numbers = await topic_partitions(settings, topic)
    consumer = _consumer_of(settings)
    await connection.start_within(consumer, settings, doing=f"reading {topic}")
    try:
        left = await _begun(
            consumer, [TopicPartition(settings.full_name(topic), number) for number in numbers], settings
        )
        while left:
            fetched, done = await _fetched(consumer, left, settings)
            for tp, records in fetched.items():
                for record in records:
                    if record.offset < left[tp]:
                        yield _delivery_of(record, topic)
            left = {tp: end for tp, end in left.items() if tp not in done}
    finally:
        await connection.close_within(consumer)


async def _begun(
    consumer: Any, partitions: Sequence[TopicPartition], settings: connection.KafkaSettings
) -> dict[TopicPartition, int]:
    """Go to the start of each partition that has something; return the ends of these."""
    try:
        async with asyncio.timeout(settings.connect_s):
            ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
            firsts = await consumer.beginning_offsets(partitions)
    except (KafkaError, TimeoutError, OSError) as e:
        raise connection.bus_error(e, settings, "asking for the ends of partitions") from e
    left = {tp: end for tp, end in ends.items() if firsts[tp] < end}
    consumer.assign([*left])
    for tp in left:
        consumer.seek(tp, firsts[tp])
    return left


async def _fetched(
    consumer: Any, left: Mapping[TopicPartition, int], settings: connection.KafkaSettings
) -> tuple[Fetched, set[TopicPartition]]:
    """Wait for records; return them, and the partitions that are read to the end: its last offsets may hold none."""
    try:
        async with asyncio.timeout(settings.connect_s):
            while True:
                fetched: Fetched = await consumer.getmany(*left, timeout_ms=POLL_MS)
                done = {tp for tp, end in left.items() if await consumer.position(tp) >= end}
                if fetched or done:
                    return fetched, done
    except (KafkaError, TimeoutError, OSError) as e:
        raise connection.bus_error(e, settings, "reading") from e


def _consumer_of(settings: connection.KafkaSettings) -> Any:
    return AIOKafkaConsumer(
        **settings.client_options(),
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        auto_offset_reset="earliest",
    )


def _delivery_of(record: ConsumerRecord, topic: str) -> Delivery:
    return Delivery(topic, record.offset, message_of(record), 1, record.partition)


class KafkaBroker:
    """Keep the promise of `Broker` on a cluster; topics must be there (`topics create`).

    A partition is read by one reader of a group at a time, which hands out its keys independently of each other.
    When readers come or go, partitions move: order is kept per key, and what is not committed comes again. Nothing is
    connected before it is needed. For one event loop.
    """

    def __init__(self, settings: connection.KafkaSettings) -> None:
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

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns. Raises as `publish_all` does."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order; they are kept when this returns.

        Beside what the port says, raises `TopicSetupError`, and `BusUnavailableError` if they are not acknowledged in
        time: they may then be there or not.
        """
        self._check_open()
        if messages:
            await self._publisher.publish_all(topic, messages)
            self._published[topic.name] += len(messages)

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
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

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that come from now on, in a consumer without a group."""
        self._check_open()
        reader = ReplyReader(self._settings, topic_api.REPLIES.name, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield what is kept of a topic now, in a consumer without a group; close it if it is not read to its end."""
        self._check_open()
        async with aclosing(scanned(self._settings, topic.name)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:
        """Ask the servers for topics; raises as the port says."""
        self._check_open()
        await require_topics(self._settings, [topic.name for topic in topics])

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
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

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return what was published through this object, and how far its own readers lag; what is kept, Kafka knows."""
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return topic_api.BrokerStatistics(
            published=dict(self._published), kept={}, backlogs=topic_api.summed(lags)
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Kafka broker")
