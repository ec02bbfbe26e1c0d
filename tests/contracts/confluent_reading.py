"""What the adapter of the second client reads with, and reads without a group: replies, and a topic to its end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import Consumer, KafkaException, TopicPartition

from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import REPLIES
from agentic_trading.cancellation import OwnedTasks
from agentic_trading.clock import SystemClock

CLOCK: Final = SystemClock()
POLL_S: Final = 0.1
STEP_S: Final = 5.0

_PARTITION_OF: Final = DefaultPartitioner()
"""The same as the producer's `murmur2_random`, for messages with a key."""


class ConfluentReplyReader:
    """Read the messages of one key from now on into `replies`, without a group."""

    def __init__(self, settings: KafkaSettings, key: bytes) -> None:
        self._key = key
        self._consumer = consumer_of(settings, "none")
        self.replies = ReplyQueue(self._stop)
        self._tasks = OwnedTasks()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._assign)
        self._reading = self._tasks.start(self._poll(), name="confluent-replies")

    def _assign(self) -> None:
        numbers = partitions_of(self._consumer, REPLIES.name)
        tp = TopicPartition(REPLIES.name, _PARTITION_OF(self._key, numbers, numbers))
        _, tp.offset = bounds_of(self._consumer, tp)
        self._consumer.assign([tp])

    async def _stop(self) -> None:
        assert self._reading is not None
        await asyncio.wait([self._reading])
        await asyncio.to_thread(self._consumer.close)
        await self._tasks.aclose()

    async def _poll(self) -> None:
        while not self.replies.is_closed:
            record = await asyncio.to_thread(self._consumer.poll, POLL_S)
            if record is not None and record.error() is None and record.key() == self._key:
                self.replies.add(delivery_of(record))


async def scanned(settings: KafkaSettings, topic: str) -> AsyncGenerator[Delivery]:
    """Yield all that a topic keeps now."""
    consumer = consumer_of(settings, "none")
    try:
        ends = await asyncio.to_thread(_begun, consumer, topic)
        while ends:
            record = await asyncio.to_thread(consumer.poll, POLL_S)
            is_whole = record is not None and record.error() is None
            if is_whole and record.offset() < ends.get(record.partition(), 0):
                yield delivery_of(record)
            positions = consumer.position([TopicPartition(topic, number) for number in ends])
            ends = {tp.partition: ends[tp.partition] for tp in positions if tp.offset < ends[tp.partition]}
    finally:
        await asyncio.to_thread(consumer.close)


def consumer_of(settings: KafkaSettings, group: str) -> Any:
    """Return a consumer that commits nothing by itself."""
    session_ms = round(1000 * settings.session_s)
    return Consumer({
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "roundrobin",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(100, session_ms // 10),
        "fetch.wait.max.ms": 50,
        "log_level": 2,
    })


def partitions_of(consumer: Any, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions, in order."""
    return sorted(consumer.list_topics(topic, timeout=STEP_S).topics[topic].partitions)


def bounds_of(consumer: Any, tp: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and its end; one that was just made may be without a leader for a moment."""
    until = CLOCK.monotonic() + STEP_S
    while CLOCK.monotonic() < until:
        with suppress(KafkaException):
            first, end = consumer.get_watermark_offsets(tp, timeout=STEP_S)
            return first, end
        consumer.list_topics(tp.topic, timeout=STEP_S)
    raise BusUnavailableError(str(tp.topic), "asking for the ends of partitions failed")


def _begun(consumer: Any, topic: str) -> dict[int, int]:
    """Go to the start of each partition that has something; return the ends of these."""
    partitions = [TopicPartition(topic, number) for number in partitions_of(consumer, topic)]
    ends = {}
    for tp in partitions:
        tp.offset, end = bounds_of(consumer, tp)
        if tp.offset < end:
            ends[tp.partition] = end
    consumer.assign([tp for tp in partitions if tp.partition in ends])
    return ends


def message_of(record: Any) -> Message:
    """Return a record as a message."""
    key = (record.key() or b"").decode("utf-8", "surrogateescape")
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers() or ()}
    return Message(key, record.value() or b"", headers)


def delivery_of(record: Any) -> Delivery:
    """Return a record as a delivery that nobody holds."""
    return Delivery(record.topic(), record.offset(), message_of(record), 1, record.partition())
