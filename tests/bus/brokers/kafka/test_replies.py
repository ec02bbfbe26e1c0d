"""Replies over a real Kafka go to the address of the client that asked."""

import asyncio
import gc
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.services.local import KafkaService
from tests import kafka_server
from tests.bus_readers import two_clients_of_one_name_ask

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


async def test_same_name_clients_get_own_answers(own_kafka: KafkaService) -> None:
    servers = await asyncio.to_thread(lambda: own_kafka.bootstrap_servers)
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=3))

    answers, ignored = await two_clients_of_one_name_ask(
        lambda: kafka_server.broker(servers), reply_timeout_s=30
    )

    assert answers == [*range(10)]
    assert ignored == {}


async def test_failed_reply_reader_closes_the_consumer() -> None:
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))

    async with aclosing(kafka_server.broker("127.0.0.1:1")) as broker:
        with pytest.raises(BusUnavailableError):
            await broker.replies("address")
    gc.collect()

    assert said == []
