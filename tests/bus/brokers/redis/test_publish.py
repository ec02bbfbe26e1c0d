"""Publishing to a real Redis: what a topic has no room for is refused whole, and replies go away by themselves."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.bus.brokers.redis.broker import REPLIES_KEPT, REPLIES_STAY_S
from agentic_trading.bus.brokers.redis.redis import RedisTopics
from agentic_trading.bus.errors import BacklogFullError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, HEADS, REPLIES, TOPICS, Topic
from agentic_trading.llm.event import Event
from tests import redis_bus, redis_server
from tests.bus_readers import two_clients_of_one_name_ask

TOPIC = Topic("events", Event)


@pytest.fixture
def namespace() -> str:
    return redis_server.namespace()


async def test_full_topic_refuses_batch_until_acknowledged(redis_url: str, namespace: str) -> None:
    await redis_bus.make_topics(redis_url, namespace, [TOPIC], partitions=2)
    async with aclosing(redis_bus.broker(redis_url, namespace, partitions=2, max_backlog=3)) as broker:
        await broker.publish_all(TOPIC, [Message("a", b"1", {}), Message("a", b"2", {})])
        batch = [Message("d", b"0", {}), Message("a", b"3", {}), Message("a", b"4", {})]
        with pytest.raises(
            BacklogFullError,
            match=r"Topic events has 2 messages in partition 1. Allowed: at most 3. Start the reader",
        ) as e:
            await broker.publish_all(TOPIC, batch)
        scanned = [each.message.value async for each in broker.scan(TOPIC)]

        reader = await broker.subscribe([TOPIC], "group")
        await reader.ack(await reader.take())
        await reader.aclose()
        await broker.publish_all(TOPIC, batch)

    assert (e.value.topic, e.value.partition, e.value.size, e.value.limit) == ("events", 1, 2, 3)
    assert scanned == [b"1", b"2"]  # none of the batch, though partition 0 had room


@pytest.mark.parametrize(
    ("topic", "warned"), [(DEAD_LETTERS, [1, 4]), (HEADS, [])], ids=lambda each: getattr(each, "name", "")
)
async def test_unread_topic_keeps_newest_messages(
    redis_url: str, namespace: str, topic: Topic[Any], warned: list[int]
) -> None:
    small = replace(topic, newest=3)
    await redis_bus.make_topics(redis_url, namespace, [small], partitions=2)
    async with aclosing(redis_bus.broker(redis_url, namespace, partitions=2)) as broker:
        with capture_logs() as logs:
            await broker.publish(small, Message("d", b"other partition", {}))
            for n in range(1, 5):
                await broker.publish(small, Message("a", b"%d" % n, {}))
            await broker.publish_all(small, [Message("a", b"%d" % n, {}) for n in range(5, 9)])
        kept = [(each.position, each.message.value) async for each in broker.scan(small)]

        await broker.delete_before(small, {1: 8})
        left = [each.position async for each in broker.scan(small)]
        await broker.delete_before(small, {1: 9})
        await broker.publish(small, Message("a", b"9", {}))
        after = [each.position async for each in broker.scan(small)]

    assert kept == [(1, b"other partition"), (6, b"6"), (7, b"7"), (8, b"8")]
    assert (left, after) == ([1, 8], [1, 9])
    assert [each["count"] for each in logs if each["event"] == "redis_oldest_messages_gone"] == warned


@pytest.mark.parametrize("topic", [DEAD_LETTERS, HEADS], ids=lambda topic: topic.name)
async def test_letters_and_heads_are_trimmed_not_full(
    redis_url: str, namespace: str, topic: Topic[Any]
) -> None:
    settings = redis_bus.settings(redis_url, namespace, partitions=2, max_backlog=2)
    await RedisTopics(settings).create([topic])
    async with aclosing(redis_bus.broker(redis_url, namespace, partitions=2, max_backlog=2)) as broker:
        await broker.publish_all(topic, [Message("a", b"%d" % n, {}) for n in range(3)])
        problems = await RedisTopics(settings).check([topic])

        group = await broker.subscribe([topic], "group")
        first = await group.take()
        await broker.publish_all(topic, [Message("a", b"%d" % n, {}) for n in range(3, 6)])
        await group.ack(first)
        async with asyncio.timeout(5):
            while (later := await group.take()).position < 6:
                await group.ack(later)
        await group.aclose()

    assert problems == []
    # What a group holds may go as well, and it goes on.
    assert (first.position, later.position, later.message.value) == (2, 6, b"5")


async def test_reply_stream_expires_and_is_capped(redis_url: str, namespace: str) -> None:
    await redis_bus.make_topics(redis_url, namespace, [REPLIES])
    async with (
        aclosing(redis_bus.broker(redis_url, namespace)) as broker,
        redis_bus.client(redis_url) as redis,
    ):
        many = [Message("gone", b"", {})] * (REPLIES_KEPT + 500)
        await broker.publish_all(REPLIES, many)
        stream = f"{{{namespace}:bus}}:llm.replies:to:gone"
        kept, stays_s = await redis.xlen(stream), await redis.ttl(stream)
        await redis.expire(stream, 1)

        reader = await broker.replies("gone")
        async with asyncio.timeout(5):
            while await redis.ttl(stream) <= 1:  # noqa: ASYNC110 - the server is asked
                await asyncio.sleep(0.01)
        await reader.aclose()

    assert REPLIES_KEPT <= kept < REPLIES_KEPT + 500
    assert 0 < stays_s <= REPLIES_STAY_S


async def test_same_name_clients_get_own_answers(redis_url: str, namespace: str) -> None:
    await redis_bus.make_topics(redis_url, namespace, TOPICS)

    answers, ignored = await two_clients_of_one_name_ask(
        lambda: redis_bus.broker(redis_url, namespace), reply_timeout_s=15
    )

    assert answers == [*range(10)]
    assert ignored == {}
