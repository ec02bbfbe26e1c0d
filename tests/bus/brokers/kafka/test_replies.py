"""Replies over a real Kafka go to the address of the client that asked."""

import asyncio
import gc
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import LLMInteraction
from agentic_trading.services.kafka import KafkaService
from tests import kafka_server
from tests.gateway import asking, gateway
from tests.worker.running import running

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


async def with_topics(kafka: KafkaService) -> str:
    servers = await asyncio.to_thread(lambda: kafka.bootstrap_servers)
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=3))
    return servers


async def test_clients_of_one_name_in_two_processes_get_their_own_answers(own_kafka: KafkaService) -> None:
    servers = await with_topics(own_kafka)
    async with (
        aclosing(kafka_server.broker(servers)) as workers,
        aclosing(kafka_server.broker(servers)) as first,
        aclosing(kafka_server.broker(servers)) as second,
    ):
        desk = gateway(
            lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}', broker=workers
        )
        async with (
            running(desk),
            GatewayClient(first, name="desk", reply_timeout_s=30) as one,
            GatewayClient(second, name="desk", reply_timeout_s=30) as other,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task((one, other)[n % 2].ask(asking(n=n).build())) for n in range(10)]

    answers = [task.result() for task in tasks]
    sizes = [isinstance(each, LLMInteraction) and each.result.parsed_output["size"] for each in answers]
    assert sizes == [*range(10)]
    assert (one.ignored_replies, other.ignored_replies) == ({}, {})


async def test_a_reader_of_replies_that_finds_no_server_leaves_no_consumer_unclosed() -> None:
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))

    async with aclosing(kafka_server.broker("127.0.0.1:1")) as broker:
        with pytest.raises(BusUnavailableError):
            await broker.replies("address")
    gc.collect()

    assert said == []
