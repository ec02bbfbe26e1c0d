"""Publishing to a real Kafka: batches in order, limits known before sending, and errors that say what to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.kafka.admin import TopicPlan, create_topics
from agentic_trading.bus.brokers.kafka.broker import HEADER_OVERHEAD, RECORD_OVERHEAD, KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings, installed_codec
from agentic_trading.bus.errors import (
    BusClosedError,
    BusUnavailableError,
    MessageTooLargeError,
    TopicSetupError,
)
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import Topic
from agentic_trading.ids import fraction, random_id
from agentic_trading.llm.event import Event
from tests import kafka_server

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


@pytest.fixture
async def broker(kafka_servers: str) -> AsyncIterator[KafkaBroker]:
    async with aclosing(kafka_server.broker(kafka_servers)) as made:
        yield made


async def topic_of_at_most(servers: str, size: int) -> Topic[Event]:
    """Return a topic of the test's own whose batches the server limits to `size` bytes."""
    made = Topic(f"topic-{random_id()}", Event)
    plan = TopicPlan(
        made.name, 1, {"max.message.bytes": str(size), "cleanup.policy": "delete", "retention.ms": "1000000"}
    )
    await create_topics(kafka_server.settings(servers), [plan])
    return made


def noise(size: int) -> bytes:
    """Return bytes that no compression makes smaller, the same in every run."""
    return bytes(int(256 * fraction("noise", n)) for n in range(size))


async def test_large_batch_arrives_in_order(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic_of_at_most(kafka_servers, 1 << 20)
    messages = [Message("a", str(n).encode().rjust(2400), {}) for n in range(2000)]

    await broker.publish_all(where, messages)
    reader = await broker.subscribe([where], "group")

    for message in messages:
        delivery = await reader.take()
        assert delivery.message == message
        await reader.ack(delivery)
    assert broker.statistics().published == {where.name: 2000}


async def test_topic_limit_is_exact_to_the_byte(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic_of_at_most(kafka_servers, 300_000)
    allowed = 300_000 - len("a") - len("name") - len("value") - RECORD_OVERHEAD - HEADER_OVERHEAD
    largest = noise(allowed)

    await broker.publish(where, Message("a", largest, {"name": "value"}))
    with pytest.raises(MessageTooLargeError) as refused:
        await broker.publish(where, Message("a", largest + b"x", {"name": "value"}))

    assert (refused.value.size, refused.value.allowed) == (allowed + 1, allowed)


async def test_topic_limit_below_batch_is_refused(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic_of_at_most(kafka_servers, 100_000)

    with pytest.raises(
        TopicSetupError, match=r"has max\.message\.bytes 100000, less than a batch\. Set it to 262272 or more"
    ):
        await broker.publish(where, Message("a", b"1", {}))


async def test_publish_to_missing_topic_names_remedy(broker: KafkaBroker) -> None:
    with pytest.raises(
        TopicSetupError, match=r"Topic acme does not exist. Run agentic-trading topics create"
    ):
        await broker.publish(Topic("acme", Event), Message("a", b"1", {}))


async def test_publish_names_unreachable_servers() -> None:
    async with aclosing(kafka_server.broker("127.0.0.1:1", connect_s=2.0)) as broker:
        with pytest.raises(
            BusUnavailableError, match=r"Servers: 127\.0\.0\.1:1\. Check that they are running"
        ):
            await broker.publish(Topic("acme", Event), Message("a", b"1", {}))


async def test_concurrent_publishes_share_the_timeout() -> None:
    refused: list[str] = []
    async with (
        asyncio.timeout(5),
        aclosing(kafka_server.broker("127.0.0.1:1", publish_s=1.0)) as broker,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(50):
            group.create_task(_is_refused(broker, refused))

    assert len(refused) == 50


async def _is_refused(broker: KafkaBroker, refused: list[str]) -> None:
    with pytest.raises(BusUnavailableError) as e:
        await broker.publish(Topic("acme", Event), Message("a", b"1", {}))
    refused.append(str(e.value))


async def test_closed_broker_refuses_to_publish(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic_of_at_most(kafka_servers, 1 << 20)
    await broker.publish(where, Message("a", b"1", {}))

    await broker.aclose()

    with pytest.raises(BusClosedError):
        await broker.publish(where, Message("a", b"2", {}))


def test_installed_codec_is_zstd() -> None:
    assert installed_codec() == "zstd"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers is empty. Allowed: HOST:PORT"),
        ({"buffer": 0}, "buffer is 0. Allowed: 1 or more"),
        ({"drain_s": 0}, "drain_s is 0. Allowed: more than 0"),
        ({"session_s": float("nan")}, "session_s is nan. Allowed: more than 0"),
    ],
)
def test_invalid_kafka_setting_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaSettings(**{"bootstrap_servers": "127.0.0.1:9092", **changes})  # type: ignore[arg-type]  # on purpose
