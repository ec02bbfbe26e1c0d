"""The broker on Apache Kafka: a consumer for each reader, and one idempotent producer."""

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
"""The size limit of a batch: 16 times the client's default, and 6 times as fast with records of 6.6 KB."""

LARGEST_ROOM: Final = 8
RECORD_OVERHEAD: Final = 128
HEADER_OVERHEAD: Final = 10
"""Kafka's overhead in bytes: `RECORD_OVERHEAD` for a message alone in its batch, and this for each of its
headers."""


class MessagePublisher:
    """Publish messages through one producer, in order for each key.

    It is opened when it is needed. After an error, the producer is closed and the next message opens a new
    one, because a producer that has given up a batch rejects all later batches.
    """

    def __init__(self, settings: connection.KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._opening = asyncio.Lock()
        self._limits: dict[str, int] = {}
        self._is_closed = False

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic with one wait for all.

        When this returns, all in-sync replicas have them.

        Raises:
            MessageTooLargeError: If a message is too large. No message was added, unless a server has lowered
                its limit since the last call.
            TopicSetupError: If the topic does not exist, or its size limit is below a batch.
            BusUnavailableError: If the messages are not acknowledged within `publish_s`. Each may have been
                added or not.

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
            limit = self._limits.pop(topic.name)  # read it again, because it was changed on the server
            raise MessageTooLargeError(topic.name, max(len(each.value) for each in messages), limit) from e
        except (KafkaError, TimeoutError, OSError) as e:
            await self._drop(producer)
            raise connection.bus_error(e, self._settings, "publishing", topic.name) from e
        finally:
            for each in sent:
                each.add_done_callback(_look_at)

    async def aclose(self) -> None:
        """Close the producer.

        Nothing is published after this. Repeated calls have no effect. It ends within a few seconds, even if
        the servers do not answer.
        """
        self._is_closed = True
        await self._drop(self._producer)

    def _check(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Raise `MessageTooLargeError` for a message above the limit of the bus or of the topic."""
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
        """Return the producer, after reading the limit of `topic`."""
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
        """Return the largest batch that the topic accepts, from its server."""
        found = (await topic_settings(self._settings, [topic])).get(topic)
        if found is None:
            raise TopicSetupError(topic, "does not exist", topic_api.CREATE)
        limit = int(found["max.message.bytes"])
        if limit < BATCH_BYTES + RECORD_OVERHEAD:
            allowed = f"Set it to {BATCH_BYTES + RECORD_OVERHEAD} or more"
            raise TopicSetupError(topic, f"has max.message.bytes {limit}, less than a batch", allowed)
        return limit

    async def _drop(self, producer: Any) -> None:
        """Close a producer before the next one opens, because its unsent messages must not arrive later."""
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
    """Retrieve the error of a message, because asyncio would log it as never retrieved."""
    if not sent.cancelled():
        sent.exception()


log = get_logger()

_PARTITION_OF: Final = DefaultPartitioner()
"""The partitioner of the producer."""

Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]


class ReplyReader:
    """Read messages of `topic` with the key `address` into `replies`. Start it once.

    It begins at the end of the partition of `address`, joins no group, and commits nothing. Messages with
    other keys are skipped. If partitions are added to the topic, addresses move to other partitions: open
    readers get no more messages, and must be opened again.
    """

    def __init__(self, settings: connection.KafkaSettings, topic: str, address: str) -> None:
        self._settings = settings
        self._topic = topic
        self._key = Message(address, b"", {}).key_bytes
        # Made by `start`, because a consumer that was never started would warn that it was not closed.
        self._consumer: Any = None
        self.replies = ReplyQueue(self._stop)
        self._tasks = AsyncExitStack()

    async def start(self) -> None:
        """Find the end of the partition and start reading.

        Raises `BusUnavailableError`, or `TopicSetupError` if the topic does not exist.
        """
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
        """Stop within a few seconds, even if the servers do not answer."""
        if self._consumer is not None:
            await connection.close_within(self._consumer)
        await connection.ended_within(self._tasks.aclose(), connection.CLOSE_S)

    async def _poll(self) -> None:
        """Fetch until closed, at most `buffer` replies ahead."""
        while not self.replies.is_closed:
            await self.replies.room(self._settings.buffer)
            try:
                fetched = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=self._settings.buffer)
            except ConsumerStoppedError:
                return
            except Exception as e:  # noqa: BLE001 - a reader continues, because the next fetch may succeed
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
    """Yield all stored messages of `topic`, from all partitions as they are fetched.

    Raises `BusUnavailableError` if no message arrives within `connect_s`, or `TopicSetupError` if the topic
    does not exist.
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
    """Seek to the start of each partition that is not empty, and return the ends of these partitions."""
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
    """Wait for records. Return them, and the partitions that are read to the end."""
    try:
        async with asyncio.timeout(settings.connect_s):
            while True:
                fetched: Fetched = await consumer.getmany(*left, timeout_ms=POLL_MS)
                done = {tp for tp, end in left.items() if await consumer.position(tp) >= end}
                # Only the position shows the end, because the last offsets may have no records.
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
    """A `Broker` on a Kafka cluster. Its topics must exist (see `topics create`).

    One reader of a group reads a partition at a time, and delivers its keys independently of each other.
    Partitions move when readers come or go. Messages of a key stay in order, and uncommitted messages are
    delivered again. Connections are opened when they are needed. Use a broker in one event loop only.

    Args:
        settings: The cluster and the limits.

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
        """The size limit of a message value in bytes, on a topic whose `room` is 1, as configured."""
        return self._settings.max_message_bytes

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic. See `publish_all`."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in order. When this returns, they are stored.

        Raises:
            MessageTooLargeError: If a message is too large. No message was added, unless a server has lowered
                its limit since the last call.
            BusClosedError: After `aclose`. No message was added.
            TopicSetupError: If the topic does not exist, or its size limit is below a batch.
            BusUnavailableError: If the messages are not acknowledged in time. Each may have been added or
                not.

        """
        self._check_open()
        if messages:
            await self._publisher.publish_all(topic, messages)
            self._published[topic.name] += len(messages)

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
        """Join `group` as one of its readers, and read `topics` with a separate consumer.

        Raises:
            BusClosedError: After `aclose`.
            BusUnavailableError: If the servers do not answer in time.
            TopicSetupError: If a topic does not exist.
            ValueError: If `topics` is empty.

        """
        self._check_open()
        if not topics:
            raise ValueError("A subscription needs at least one topic.")
        self._members[group] += 1
        member = self._settings.member and f"{self._settings.member}-{group}-{self._members[group]}"
        subscription = KafkaSubscription(
            self._settings, [topic.name for topic in topics], group, member=member
        )
        await subscription.start()
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that are published from now on, with a consumer without a group."""
        self._check_open()
        reader = ReplyReader(self._settings, topic_api.REPLIES.name, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the stored messages of a topic.

        Close the generator if you do not read it to the end.
        """
        self._check_open()
        async with aclosing(scanned(self._settings, topic.name)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:
        """Check that the topics exist. Raises the errors of `Broker.check`."""
        self._check_open()
        await require_topics(self._settings, [topic.name for topic in topics])

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete the messages before an offset in a partition.

        Raises `BusUnavailableError`, or `TopicSetupError` if the topic does not exist.
        """
        self._check_open()
        await delete_messages(self._settings, topic.name, positions)

    async def aclose(self) -> None:
        """Close all subscriptions and stop accepting messages. Repeated calls have no effect."""
        self._is_closed = True
        while self._replies:
            await self._replies.pop().aclose()
        while self._subscriptions:
            await self._subscriptions.pop().aclose()
        await self._publisher.aclose()

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return the counts of messages published through this object, and the lag of its own readers.

        `kept` is empty, because only the cluster has these counts.
        """
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return topic_api.BrokerStatistics(
            published=dict(self._published), kept={}, backlogs=topic_api.summed(lags)
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Kafka broker")
