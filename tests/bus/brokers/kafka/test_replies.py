"""Replies over a real Kafka: to the address of the client that asked, and believed as they are signed."""

import asyncio
from contextlib import aclosing

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.codec import reply_message
from agentic_trading.bus.signing import Signer, Verifier
from agentic_trading.bus.topic import REPLIES
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.services.kafka import KafkaService
from tests import kafka_server
from tests.build import interaction
from tests.gateway import GOOD, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import with_pool

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)

SIGNER, FORGER = Signer("desk-a", b"k" * 32), Signer("desk-b", b"o" * 32)
VERIFIER = Verifier({"desk-a": (b"k" * 32,), "desk-b": (b"o" * 32,)})


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


async def test_a_forged_reply_is_ignored_and_the_real_one_is_taken(own_kafka: KafkaService) -> None:
    servers = await with_topics(own_kafka)
    started, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await go.wait()
            return await super().complete(request)

    async with aclosing(kafka_server.broker(servers)) as broker:
        desk = with_pool(gateway(Slow([GOOD]), broker=broker), verifier=VERIFIER)
        envelope = asking().build()
        async with (
            running(desk),
            GatewayClient(broker, name="signs", signer=SIGNER, reply_timeout_s=30) as client,
            asyncio.TaskGroup() as group,
        ):
            asked = group.create_task(client.ask(envelope))
            await started.wait()
            heard = await broker.replies(client.address)
            lie = interaction(envelope=envelope, raw_output='{"action":"sell","size":9}')
            forged = reply_message(lie, client.address, final=True)
            await broker.publish_all(REPLIES, [forged, FORGER.sign(forged)])
            for _ in range(2):
                await heard.take()
            go.set()

    answer = asked.result()
    assert isinstance(answer, LLMInteraction)
    assert answer.result.raw_output == GOOD
    assert client.ignored_replies == {"signature": 2}
