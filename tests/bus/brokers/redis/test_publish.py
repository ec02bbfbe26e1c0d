"""Publishing to a real Redis: what a topic has no room for is refused whole, and replies go away by themselves."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from agentic_trading.bus.brokers.redis.stream_reader import REPLIES_KEPT, REPLIES_STAY_S
from agentic_trading.bus.errors import BacklogFullError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import REPLIES, TOPICS, Topic
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.event import Event
from tests import redis_bus, redis_server
from tests.gateway import asking, gateway
from tests.worker.running import running

TOPIC = Topic("events", Event)


@pytest.fixture
def namespace() -> str:
    return redis_server.namespace()


async def test_a_topic_with_too_many_messages_refuses_more_until_some_are_finished(
    redis_url: str, namespace: str
) -> None:
    await redis_bus.make_topics(redis_url, namespace, [TOPIC], partitions=2)
    async with aclosing(redis_bus.broker(redis_url, namespace, partitions=2, max_backlog=3)) as broker:
        await broker.publish_all(TOPIC, [Message("a", b"1", {}), Message("a", b"2", {})])
        batch = [Message("d", b"0", {}), Message("a", b"3", {}), Message("a", b"4", {})]
        with pytest.raises(
            BacklogFullError, match="topic events keeps 2 messages in partition 1, and no more than 3"
        ) as e:
            await broker.publish_all(TOPIC, batch)
        scanned = [each.message.value async for each in broker.scan(TOPIC)]

        reader = await broker.subscribe([TOPIC], "group")
        await reader.ack(await reader.take())
        await reader.aclose()
        await broker.publish_all(TOPIC, batch)

    assert (e.value.topic, e.value.partition, e.value.size, e.value.limit) == ("events", 1, 2, 3)
    assert scanned == [b"1", b"2"]  # none of the batch, though partition 0 had room


async def test_replies_stay_for_an_hour_and_a_client_that_is_gone_leaves_no_more_than_a_few(
    redis_url: str, namespace: str
) -> None:
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
            while await redis.ttl(stream) <= 1:
                pass
        await reader.aclose()

    assert REPLIES_KEPT <= kept < REPLIES_KEPT + 500
    assert 0 < stays_s <= REPLIES_STAY_S


async def test_clients_of_one_name_get_their_own_answers(redis_url: str, namespace: str) -> None:
    def opened() -> Any:
        return redis_bus.broker(redis_url, namespace)

    await redis_bus.make_topics(redis_url, namespace, TOPICS)
    async with aclosing(opened()) as workers, aclosing(opened()) as first, aclosing(opened()) as second:
        desk = gateway(
            lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}', broker=workers
        )
        async with (
            running(desk),
            GatewayClient(first, name="desk", reply_timeout_s=15) as one,
            GatewayClient(second, name="desk", reply_timeout_s=15) as other,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task((one, other)[n % 2].ask(asking(n=n).build())) for n in range(10)]

    answers = [task.result() for task in tasks]
    sizes = [isinstance(each, LLMInteraction) and each.result.parsed_output["size"] for each in answers]
    assert sizes == [*range(10)]
    assert (one.ignored_replies, other.ignored_replies) == ({}, {})
