"""A Redis that does not answer, is killed, comes back, or may forget: every wait has an end, and nothing is lost."""

import asyncio
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.errors import BusClosedError, BusSettingsError, BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import REPLIES, Subscription, Topic
from agentic_trading.llm.event import Event
from tests import redis_bus
from tests.redis_bus import equals, is_so
from tests.redis_server import SAFE, RealServer, own_server

TOPIC = Topic("events", Event)


async def opened(server: RealServer) -> RedisBroker:
    """Return a broker on a topic that is there and was used."""
    await redis_bus.make_topics(server.url, "test", [TOPIC, REPLIES])
    broker = redis_bus.broker(server.url, "test", publish_s=0.5)
    await broker.publish(TOPIC, Message("a", b"before", {}))
    return broker


async def kept(broker: RedisBroker) -> list[bytes]:
    return [each.message.value async for each in broker.scan(TOPIC)]


async def says_until(last: bytes, reader: Subscription) -> list[bytes]:
    """Take, acknowledge and name values until `last` comes."""
    said: list[bytes] = []
    async with asyncio.timeout(10):
        while last not in said:
            delivery = await reader.take()
            said.append(delivery.message.value)
            await reader.ack(delivery)
    return said


async def test_publish_timeout_raises_then_recovers(
    own_redis: RealServer,
) -> None:
    async with aclosing(await opened(own_redis)) as broker:
        with own_redis.held_up():
            async with asyncio.timeout(2):
                with pytest.raises(
                    BusUnavailableError, match=r"publishing took too long\. Servers: 127\.0\.0\.1"
                ):
                    await broker.publish(TOPIC, Message("a", b"lost or not", {}))

        await broker.publish(TOPIC, Message("a", b"after", {}))
        said = await says_until(b"after", await broker.subscribe([TOPIC], "group"))

    assert said in ([b"before", b"after"], [b"before", b"lost or not", b"after"])


async def test_readers_resume_after_server_restart(own_redis: RealServer) -> None:
    async with aclosing(await opened(own_redis)) as broker:
        reader, replies = await broker.subscribe([TOPIC], "group"), await broker.replies("address")
        await broker.publish(TOPIC, Message("b", b"held", {}))
        held = [await reader.take() for _ in range(2)]

        await asyncio.to_thread(own_redis.kill)
        for delivery in held:
            await reader.ack(delivery)  # which the server hears when it is back
        with pytest.raises(BusUnavailableError):
            await broker.publish(TOPIC, Message("a", b"away", {}))
        await asyncio.to_thread(own_redis.start)
        await is_so(lambda: equals(kept(broker), []))
        await broker.publish(TOPIC, Message("a", b"after", {}))
        await broker.publish(REPLIES, Message("address", b"reply", {}))

        said = await says_until(b"after", reader)
        async with asyncio.timeout(5):
            reply = await replies.take()

    assert (said, reply.message.value) == ([b"after"], b"reply")


async def test_reader_resumes_on_restored_older_snapshot(own_redis: RealServer) -> None:
    async with aclosing(await opened(own_redis)) as broker:
        first = await broker.subscribe([TOPIC], "group")
        await says_until(b"before", first)
        await asyncio.to_thread(own_redis.stop)
        kept = {each.name: each.read_bytes() for each in own_redis.append_only_files.iterdir()}
        await asyncio.to_thread(own_redis.start)
        await broker.publish(TOPIC, Message("a", b"forgotten", {}))
        await says_until(b"forgotten", first)
        async with redis_bus.client(own_redis.url) as redis:
            place = redis_bus.Place(own_redis.url, "test", redis)
            await is_so(lambda: equals(place.pending(), 0))  # the server has every acknowledgement
        await asyncio.to_thread(own_redis.stop)
        for name, content in kept.items():
            (own_redis.append_only_files / name).write_bytes(content)
        await asyncio.to_thread(own_redis.start)

        await broker.publish(TOPIC, Message("a", b"again", {}))  # in the place of what was forgotten

        assert (await says_until(b"again", first))[-1] == b"again"


async def test_close_ends_while_server_is_silent(own_redis: RealServer) -> None:
    broker = await opened(own_redis)
    reader = await broker.subscribe([TOPIC], "group")
    await broker.replies("address")
    delivery = await reader.take()

    with own_redis.held_up():
        await reader.ack(delivery)
        async with asyncio.timeout(6):
            await broker.aclose()

    with pytest.raises(BusClosedError):
        await reader.take()
    with pytest.raises(BusClosedError):
        await broker.publish(TOPIC, Message("a", b"late", {}))


async def test_subscribe_names_unreachable_server() -> None:
    async with aclosing(redis_bus.broker("redis://127.0.0.1:1/0", "test")) as broker:
        with pytest.raises(
            BusUnavailableError, match=r"Servers: 127\.0\.0\.1:1/0\. Check that they are running"
        ):
            await broker.subscribe([TOPIC], "group")


@pytest.mark.parametrize(
    ("setting", "found", "safe"),
    [("appendfsync", "everysec", "always"), ("maxmemory-policy", "allkeys-lru", "noeviction")],
)
async def test_unsafe_server_setting_is_refused(setting: str, found: str, safe: str) -> None:
    options = (*SAFE, f"--{setting}", found)
    with own_server("valkey", options=options) as server:
        async with aclosing(redis_bus.broker(server.url, "test")) as broker:
            for _ in range(2):
                with pytest.raises(BusSettingsError, match=f"has {setting} = '{found}'. Allowed: {safe}"):
                    await broker.publish(TOPIC, Message("a", b"", {}))
