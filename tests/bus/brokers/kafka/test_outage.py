"""A Kafka that does not answer, is killed, and comes back: every wait has an end, and nothing is lost."""

import asyncio
import signal
from contextlib import aclosing, suppress

import pytest

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.errors import BusClosedError, BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.llm.event import Event
from agentic_trading.services.local import KafkaService
from tests import kafka_server

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
TOPIC = Topic("events", Event)


async def opened(kafka: KafkaService) -> KafkaBroker:
    """Return a broker on a topic that is there and was used."""
    servers = await asyncio.to_thread(lambda: kafka.bootstrap_servers)
    await kafka_server.make_topics(servers, [TOPIC], partitions=1)
    broker = kafka_server.broker(servers, publish_s=1.0, connect_s=5.0)
    await broker.publish(TOPIC, Message("a", b"before", {}))
    return broker


async def test_publish_timeout_raises_then_recovers(
    own_kafka: KafkaService,
) -> None:
    async with aclosing(await opened(own_kafka)) as broker:
        own_kafka.daemon.send(signal.SIGSTOP)
        async with asyncio.timeout(5):
            with pytest.raises(BusUnavailableError, match="publishing took too long"):
                await broker.publish(TOPIC, Message("a", b"lost or not", {}))
        own_kafka.daemon.send(signal.SIGCONT)

        await publish_again(broker, Message("a", b"after", {}))
        said = await says_until(b"after", await broker.subscribe([TOPIC], "group"))

    assert said in ([b"before", b"after"], [b"before", b"lost or not", b"after"])


@pytest.mark.soak
async def test_reader_resumes_after_server_restart(own_kafka: KafkaService) -> None:
    async with aclosing(await opened(own_kafka)) as broker:
        reader = await broker.subscribe([TOPIC], "group")
        await says_until(b"before", reader)

        await asyncio.to_thread(own_kafka.kill)
        await asyncio.to_thread(own_kafka.start)
        await broker.publish(TOPIC, Message("a", b"after", {}))

        assert (await says_until(b"after", reader))[-1] == b"after"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
async def test_close_ends_while_server_is_silent(own_kafka: KafkaService, number: signal.Signals) -> None:
    broker = await opened(own_kafka)
    reader = await broker.subscribe([TOPIC], "group")
    await broker.publish(TOPIC, Message("b", b"held", {}))
    deliveries = [await reader.take() for _ in range(2)]

    own_kafka.daemon.send(number)
    await reader.ack(deliveries[0])

    async with asyncio.timeout(12):
        await broker.aclose()

    with pytest.raises(BusClosedError):
        await reader.take()
    with pytest.raises(BusClosedError):
        await broker.publish(TOPIC, Message("b", b"late", {}))


async def publish_again(broker: KafkaBroker, message: Message) -> None:
    """Publish until it succeeds, because a server that slept may need longer than the timeout of one publish."""
    async with asyncio.timeout(30):
        while True:
            with suppress(BusUnavailableError):
                return await broker.publish(TOPIC, message)


async def says_until(last: bytes, reader: Subscription) -> list[bytes]:
    """Take, acknowledge and name values until `last` comes."""
    said: list[bytes] = []
    async with asyncio.timeout(30):
        while last not in said:
            delivery = await reader.take()
            said.append(delivery.message.value)
            await reader.ack(delivery)
    return said
