"""The client: what goes out comes back, and a request asked twice is told apart."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import interaction_message
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, INTERACTIONS, Topic
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import FailureKind, LLMInteraction, NoDecision
from agentic_trading.llm.providers.scripted import ScriptedProvider
from tests.build import event, interaction
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway


@asynccontextmanager
async def client_of(desk: MemoryGateway) -> AsyncGenerator[GatewayClient]:
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with GatewayClient(desk.broker) as client:
            yield client
        desk.pool.stop()


async def test_an_answer_is_the_last_attempt() -> None:
    desk = gateway(["no json", GOOD])

    async with client_of(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert (answer.result.attempt_number, answer.result.actionable) == (2, True)
    assert str(answer.result.parsed_output["size"]) == "1.50"


async def test_answers_find_who_asked_however_they_are_ordered() -> None:
    desk = gateway(lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}', workers=8)

    async with client_of(desk) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask(asking(n=number).build())) for number in range(10)]

    sizes = [
        answer.result.parsed_output["size"]
        for task in asked
        if isinstance(answer := task.result(), LLMInteraction)
    ]
    assert sizes == list(range(10))


async def test_the_same_request_in_the_same_step_gets_the_next_occurrence() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)

    async with client_of(desk) as client:
        for moment in (START, START, START - timedelta(minutes=5)):
            await client.ask(asking().with_as_of(moment).with_subject("BTCUSDT", step="cmt").build())
        await client.ask(asking().with_as_of(START).with_subject("BTCUSDT", step="other").build())

    asked = [request.envelope for request in provider.requests]
    assert [envelope.occurrence for envelope in asked] == [0, 1, 0, 0]
    assert asked[0].request_hash == asked[1].request_hash
    assert all(envelope.is_intact for envelope in asked)


async def test_a_call_that_no_worker_takes_is_no_decision() -> None:
    async with GatewayClient(MemoryBroker(), reply_timeout_s=0.01) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "within 0.01 s" in answer.reason.description


async def test_closing_the_client_answers_who_still_waits() -> None:
    broker = MemoryBroker()
    client = GatewayClient(broker)

    async with asyncio.TaskGroup() as group, client:
        waiting = group.create_task(client.ask(asking().build()))
        await asyncio.sleep(0)

    answer = waiting.result()
    assert isinstance(answer, NoDecision)
    assert "closed" in answer.reason.description


async def test_what_is_submitted_is_not_waited_for() -> None:
    desk = gateway([GOOD])

    async with client_of(desk) as client:
        envelope = await client.submit(asking().build())

    assert await desk.store.get_by_envelope_id(envelope.envelope_id) is not None


async def test_a_recorded_event_is_in_the_log() -> None:
    desk = gateway([])
    fact = event()

    async with client_of(desk) as client:
        await client.record(fact)

    assert [entry.record async for entry in desk.store.scan()] == [fact]


async def test_two_clients_hear_their_own_answers() -> None:
    desk = gateway(lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}')

    async with client_of(desk) as one, GatewayClient(desk.broker, name="other") as other:
        first, second = await one.ask(asking(n=1).build()), await other.ask(asking(n=2).build())

    assert isinstance(first, LLMInteraction)
    assert isinstance(second, LLMInteraction)
    assert (first.result.parsed_output["size"], second.result.parsed_output["size"]) == (1, 2)


async def test_a_closed_bus_is_an_error_to_who_asks() -> None:
    broker = MemoryBroker()
    async with GatewayClient(broker) as client:
        envelope = asking().build()
        with pytest.raises(ValueError, match="too large"):
            await client.ask(asking(text="x" * (1 << 20)).build())
        assert envelope.is_intact


@pytest.mark.parametrize("topic", [INTERACTIONS, DEAD_LETTERS], ids=["interaction", "dead letter"])
async def test_an_answer_that_cannot_be_read_is_no_decision_and_disturbs_no_other_call(
    topic: Topic[Any],
) -> None:
    broken, sound = asking(n=1).build(), asking(n=2).build()
    headers = interaction_message(interaction(envelope=broken), final=True).headers
    broker = MemoryBroker()

    async with GatewayClient(broker) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.ask(broken))
        second = group.create_task(client.ask(sound))
        await asyncio.sleep(0)
        await broker.publish(topic, Message("k", b"no answer at all", headers))
        good = interaction_message(interaction(envelope=sound), final=True)
        await broker.publish(INTERACTIONS, good)

    answer = first.result()
    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "cannot be read" in answer.reason.description
    assert isinstance(second.result(), LLMInteraction)
