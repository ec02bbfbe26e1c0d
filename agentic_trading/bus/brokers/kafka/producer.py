"""Publishing to Kafka: idempotent, acknowledged by all replicas, and bounded in time."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from agentic_trading.bus.brokers.kafka.admin import topic_settings
from agentic_trading.bus.brokers.kafka.connection import (
    KafkaSettings,
    bus_error,
    close_within,
    installed_codec,
    start_within,
)
from agentic_trading.bus.errors import BusClosedError, MessageTooLargeError, TopicSetupError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import CREATE, MAX_HEAD_BYTES, Topic

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

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._opening = asyncio.Lock()
        self._limits: dict[str, int] = {}
        self._is_closed = False

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
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
            raise bus_error(e, self._settings, "publishing", topic.name) from e
        finally:
            for each in sent:
                each.add_done_callback(_look_at)

    async def aclose(self) -> None:
        """Close the producer, within a few seconds whatever the servers do; publish nothing more. Harmless twice."""
        self._is_closed = True
        await self._drop(self._producer)

    def _check(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        """Raise `MessageTooLargeError` for what the bus, or this topic of the server, does not take."""
        limit, allowed_head = self._limits[topic.name], MAX_HEAD_BYTES * topic.room
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
                    compression_type=installed_codec(),
                    max_batch_size=BATCH_BYTES,
                    max_request_size=LARGEST_ROOM * (self._settings.max_message_bytes + MAX_HEAD_BYTES),
                )
                await start_within(producer, self._settings, doing="opening a producer")
                self._producer = producer
            return self._producer

    async def _limit(self, topic: str) -> int:
        """Return how large a batch the topic takes, as its server says."""
        found = (await topic_settings(self._settings, [topic])).get(topic)
        if found is None:
            raise TopicSetupError(topic, "is not there", CREATE)
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
                await close_within(producer)
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
