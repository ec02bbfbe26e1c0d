"""Topics of a bus on a real Redis are made, checked, and what groups have not done is counted."""

from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.redis.redis import RedisTopics
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import ConsumerLag, Topic, TopicProblem
from agentic_trading.llm.event import Event
from tests import redis_bus, redis_server
from tests.redis_server import SAFE, own_server

FIRST, SECOND = Topic("first", Event), Topic("second", Event)


@pytest.fixture
def namespace() -> str:
    return redis_server.namespace()


async def test_topics_are_created_once_and_pass_check(redis_url: str, namespace: str) -> None:
    topics = RedisTopics(redis_bus.settings(redis_url, namespace))

    assert await topics.check([FIRST]) == [TopicProblem("first", "topic", "missing", "16 partitions")]
    assert await topics.create([FIRST]) == ["first"]
    assert await topics.create([FIRST, SECOND]) == ["second"]
    assert await topics.check([FIRST, SECOND]) == []


async def test_check_reports_full_and_mismatched_partitions(redis_url: str, namespace: str) -> None:
    await redis_bus.make_topics(redis_url, namespace, [FIRST], partitions=2)
    async with aclosing(redis_bus.broker(redis_url, namespace, partitions=2, max_backlog=2)) as broker:
        await broker.publish_all(FIRST, [Message("a", b"", {}), Message("a", b"", {})])

    full = RedisTopics(redis_bus.settings(redis_url, namespace, partitions=2, max_backlog=2))
    other = RedisTopics(redis_bus.settings(redis_url, namespace, partitions=4))

    assert await full.check([FIRST]) == [
        TopicProblem("first", "messages in partition 1", "2", "fewer than 2")
    ]
    assert await other.check([FIRST]) == [TopicProblem("first", "partitions", "2", "4")]


async def test_check_reports_unsafe_fsync_setting() -> None:
    with own_server("valkey", options=(*SAFE, "--appendfsync", "everysec")) as server:
        problems = await RedisTopics(redis_bus.settings(server.url, "test")).check([])

    assert problems == [TopicProblem("-", "appendfsync", "everysec", "always")]


async def test_lag_counts_by_group_and_topic(redis_url: str, namespace: str) -> None:
    settings = redis_bus.settings(redis_url, namespace, buffer=1)
    await RedisTopics(settings).create([FIRST, SECOND])
    async with aclosing(redis_bus.broker(redis_url, namespace, buffer=1)) as broker:
        for topic in (FIRST, SECOND):
            await broker.publish_all(topic, [Message("a", b"", {})] * 3)
        one = await broker.subscribe([FIRST], "one")
        await one.take()
        other = await broker.subscribe([FIRST, SECOND], "other")
        await other.ack(await other.take())
        await one.aclose()
        await other.aclose()

        lags = await RedisTopics(settings).lag([FIRST, SECOND])
        of_one = await RedisTopics(settings).lag([FIRST, SECOND], ["one"])

    assert of_one == [ConsumerLag("one", "first", waiting=2, in_flight=1)]
    assert [(lag.group, lag.topic) for lag in lags] == [
        ("one", "first"),
        ("other", "first"),
        ("other", "second"),
    ]
    assert sum(lag.waiting + lag.in_flight for lag in lags[1:]) == 5
