"""Reading partitions without a group: the replies to one address as they come, and a topic from its start to its end."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.partitioner import DefaultPartitioner

from agentic_trading.bus.brokers.kafka.admin import topic_partitions
from agentic_trading.bus.brokers.kafka.connection import (
    CLOSE_S,
    KafkaSettings,
    bus_error,
    close_within,
    ended_within,
    start_within,
)
from agentic_trading.bus.brokers.kafka.consumer import (
    FETCH_WAIT_MS,
    POLL_MS,
    RETRY_S,
    message_of,
)
from agentic_trading.bus.keyed_queues import ReplyQueue
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.cancellation import set_within
from agentic_trading.logger import get_logger

log = get_logger()

_PARTITION_OF: Final = DefaultPartitioner()
"""What the producer chooses partitions by."""

Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]


class ReplyReader:
    """Read the messages of `topic` whose key is `address` into `replies`, from where its partition ends; to be started once.

    It joins no group and commits nothing. Other keys of the partition are passed over by the bytes of their key. Who adds
    partitions to the topic moves addresses: readers that are open then hear nothing more, and have to be opened again.
    """

    def __init__(self, settings: KafkaSettings, topic: str, address: str) -> None:
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
        await start_within(self._consumer, self._settings, doing="opening a reader of replies")
        try:
            async with asyncio.timeout(self._settings.connect_s):
                ends = await self._consumer.end_offsets([tp])
            self._consumer.assign([tp])
            self._consumer.seek(tp, ends[tp])
            group = await self._tasks.enter_async_context(asyncio.TaskGroup())
        except (KafkaError, TimeoutError, OSError) as e:
            await close_within(self._consumer)
            raise bus_error(e, self._settings, "asking for the end of replies", self._topic) from e
        except BaseException:
            await close_within(self._consumer)
            raise
        group.create_task(self._poll(), name="kafka-replies")

    async def _stop(self) -> None:
        """End within a few seconds, whatever the servers do."""
        if self._consumer is not None:
            await close_within(self._consumer)
        await ended_within(self._tasks.aclose(), CLOSE_S)

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


async def scanned(settings: KafkaSettings, topic: str) -> AsyncGenerator[Delivery]:
    """Yield all that `topic` keeps now, partition by partition as they are fetched.

    Raises `BusUnavailableError` where nothing comes within `connect_s`, and `TopicSetupError` for no such topic.
    """
    numbers = await topic_partitions(settings, topic)
    consumer = _consumer_of(settings)
    await start_within(consumer, settings, doing=f"reading {topic}")
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
        await close_within(consumer)


async def _begun(
    consumer: Any, partitions: Sequence[TopicPartition], settings: KafkaSettings
) -> dict[TopicPartition, int]:
    """Go to the start of each partition that has something; return the ends of these."""
    try:
        async with asyncio.timeout(settings.connect_s):
            ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
            firsts = await consumer.beginning_offsets(partitions)
    except (KafkaError, TimeoutError, OSError) as e:
        raise bus_error(e, settings, "asking for the ends of partitions") from e
    left = {tp: end for tp, end in ends.items() if firsts[tp] < end}
    consumer.assign([*left])
    for tp in left:
        consumer.seek(tp, firsts[tp])
    return left


async def _fetched(
    consumer: Any, left: Mapping[TopicPartition, int], settings: KafkaSettings
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
        raise bus_error(e, settings, "reading") from e


def _consumer_of(settings: KafkaSettings) -> Any:
    return AIOKafkaConsumer(
        **settings.client_options(),
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        auto_offset_reset="earliest",
    )


def _delivery_of(record: ConsumerRecord, topic: str) -> Delivery:
    return Delivery(topic, record.offset, message_of(record), 1, record.partition)
