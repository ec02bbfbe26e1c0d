"""Workers and clients over a real Kafka: every call is answered once, also when a pool leaves, and poison is set aside."""

import asyncio
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import LLMInteraction, NoDecision
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.services.local import KafkaService
from tests import kafka_server
from tests.gateway import GOOD, asking, gateway
from tests.worker.running import running

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


async def with_topics(kafka: KafkaService) -> str:
    """Return the address of a server that has the platform's topics."""
    servers = await asyncio.to_thread(lambda: kafka.bootstrap_servers)
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=2))
    return servers


async def test_unreadable_message_does_not_block_calls(
    own_kafka: KafkaService,
) -> None:
    servers = await with_topics(own_kafka)
    async with aclosing(kafka_server.broker(servers)) as broker:
        desk = gateway(lambda _request: GOOD, broker=broker)
        broken = asking(n=99).build()
        message = envelope_message(broken)
        lane = ENVELOPES[broken.workflow]

        async with running(desk) as client, asyncio.TaskGroup() as group:
            poisoned = group.create_task(client.ask(broken))
            await broker.publish(lane, Message(message.key, message.value[:-1], message.headers))
            workflows = ("analysis", "planning", "general") * 6
            asked = [
                group.create_task(client.ask(asking(each, n=n).build())) for n, each in enumerate(workflows)
            ]

    answers = [task.result() for task in asked]
    assert all(isinstance(answer, LLMInteraction) and answer.result.actionable for answer in answers)
    assert isinstance(poisoned.result(), LLMInteraction | NoDecision)
    letters = [lag for lag in broker.statistics().published.items() if lag[0] == "llm.dead-letters"]
    assert letters == [("llm.dead-letters", 1)]


async def test_call_runs_once_when_pool_leaves(
    own_kafka: KafkaService,
) -> None:
    servers = await with_topics(own_kafka)
    sent: list[str] = []

    def answer(request: ModelRequest) -> str:
        sent.append(request.envelope.envelope_id)
        return GOOD

    async with (
        aclosing(kafka_server.broker(servers)) as first,
        aclosing(kafka_server.broker(servers)) as second,
        aclosing(kafka_server.broker(servers)) as third,
        GatewayClient(third, name="asks", reply_timeout_s=30) as client,
        asyncio.TaskGroup() as group,
    ):
        leaving, staying = gateway(answer, broker=first).pool, gateway(answer, broker=second).pool
        pools = [group.create_task(pool.run()) for pool in (leaving, staying)]
        asked = [group.create_task(client.ask(asking(n=n).build())) for n in range(30)]
        await asyncio.wait(asked[:3], return_when=asyncio.FIRST_COMPLETED)
        leaving.stop()
        await pools[0]
        asked += [group.create_task(client.ask(asking(n=n).build())) for n in range(30, 40)]
        await asyncio.wait(asked)
        staying.stop()

    assert all(isinstance(task.result(), LLMInteraction) for task in asked)
    assert len(sent) == len(set(sent)) == 40
    assert client.ignored_replies == {}
