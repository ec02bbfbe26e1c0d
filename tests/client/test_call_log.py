"""A client with a log of its own: what an earlier client of the log has asked is not paid again, whenever that was killed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.topic import Broker
from agentic_trading.client.call_log import (
    PUBLISHED_AGAIN_WITHIN,
    AnswerNotKeptError,
    CallLog,
    EarlierCalls,
)
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SimClock
from agentic_trading.llm import FailureKind, LLMEnvelope, LLMInteraction, NoDecision
from agentic_trading.llm.event import CallRequested, CallUnanswered, Event
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.claims.memory import MemoryClaimStore
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway
from tests.worker.test_crashes import SharedClaims

NO_SECRETS = Redaction()
LATER = START + timedelta(minutes=20)


def built(at: datetime = START, **more: Any) -> LLMEnvelope:
    """Return an envelope as an agent builds it at a moment: under the same id each time."""
    builder = asking(clock=SimClock(at), **more).with_trace("trace-1").with_as_of(START)
    return builder.with_deadline(at + timedelta(hours=1)).build().model_copy(update={"envelope_id": "call-1"})


async def left_in(store: MemoryInteractionStore, **more: Any) -> EarlierCalls:
    """Return what a client of this log has left."""
    earlier = EarlierCalls(**more)
    async for entry in store.scan():
        earlier.read(entry.record)
    return earlier


def call_log(
    store: MemoryInteractionStore, earlier: EarlierCalls | None = None, *, clock: SimClock | None = None
) -> CallLog:
    return CallLog(store, clock or SimClock(START), NO_SECRETS, earlier or EarlierCalls())


@asynccontextmanager
async def serving(desk: MemoryGateway) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        yield
        desk.pool.stop()


async def asked(broker: Broker, log: CallLog, envelope: LLMEnvelope) -> LLMInteraction | NoDecision:
    async with asyncio.timeout(5), GatewayClient(broker, call_log=log) as client:
        return await client.ask(envelope)


async def killed_in_a_call(
    broker: Broker, store: MemoryInteractionStore, redaction: Redaction = NO_SECRETS, **more: Any
) -> None:
    """Ask, and be gone before there is an answer."""
    log = replace(call_log(store), redaction=redaction)
    async with GatewayClient(broker, call_log=log) as client:
        task = asyncio.get_running_loop().create_task(client.ask(built(**more)))
        while not broker.statistics().published:  # noqa: ASYNC110 - a turn of the loop at a time
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


def kinds(store_records: list[Any]) -> list[str]:
    return [one.kind if isinstance(one, Event) else "attempt" for one in store_records]


async def records(store: MemoryInteractionStore) -> list[Any]:
    return [entry.record async for entry in store.scan()]


async def test_call_is_recorded_before_attempts() -> None:
    desk, store = gateway(["no json", GOOD]), MemoryInteractionStore()

    async with serving(desk):
        await asked(desk.broker, call_log(store), built())

    assert kinds(await records(store)) == [CallRequested.KIND, "attempt", "attempt"]


async def test_answered_call_is_not_published_again() -> None:
    desk, store = gateway(["no json", GOOD]), MemoryInteractionStore()
    async with serving(desk):
        first = await asked(desk.broker, call_log(store), built())
    nowhere = MemoryBroker()

    async with GatewayClient(nowhere, call_log=call_log(store, await left_in(store))) as client:
        again = await client.ask_structured(built(LATER))

    assert isinstance(first, LLMInteraction)
    assert again.json == first.result.parsed_output
    assert [attempt.number for attempt in again.attempts] == [1, 2]
    assert not nowhere.statistics().published


@pytest.mark.parametrize("name", ["agent_id", "step"])
async def test_recorded_call_matches_agent_and_step(name: str) -> None:
    desk, store = gateway([GOOD]), MemoryInteractionStore()
    async with serving(desk):
        await asked(desk.broker, call_log(store), built())

    earlier = await left_in(store)

    assert earlier.of(built()).is_ended
    assert not earlier.of(built().model_copy(update={name: "other"})).is_ended


async def test_open_call_is_republished_and_paid_once() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    broker, claims, store = MemoryBroker(), MemoryClaimStore(), MemoryInteractionStore()
    await killed_in_a_call(broker, store)
    desk = gateway(provider, broker=broker, claims=claims)

    async with serving(desk):
        answer = await asked(broker, call_log(store, await left_in(store)), built(LATER))

    assert isinstance(answer, LLMInteraction)
    assert (answer.envelope.created_at, answer.result.actionable) == (START, True)
    assert len(provider.requests) == 1
    assert kinds(await records(store)) == [CallRequested.KIND, "attempt"]


async def test_open_call_is_awaited_past_deadline() -> None:
    broker, claims, store = MemoryBroker(), MemoryClaimStore(), MemoryInteractionStore()
    await killed_in_a_call(broker, store)
    desk, clock = (
        gateway(lambda _request: GOOD, broker=broker, claims=claims),
        SimClock(START + timedelta(hours=3)),
    )
    log = call_log(store, await left_in(store), clock=clock)

    async with (
        serving(desk),
        asyncio.timeout(5),
        GatewayClient(broker, call_log=log, clock=clock) as client,
    ):
        answer = await client.ask(built(LATER))

    assert isinstance(answer, LLMInteraction)


async def test_unanswered_call_is_asked_again_if_allowed() -> None:
    store = MemoryInteractionStore()
    async with GatewayClient(MemoryBroker(), call_log=call_log(store), reply_timeout_s=0.01) as client:
        none = await client.ask(built())
    desk = gateway(lambda _request: GOOD)

    async with serving(desk):
        answer = await asked(
            desk.broker, call_log(store, await left_in(store, asks_again=True)), built(LATER)
        )

    assert isinstance(none, NoDecision)
    assert isinstance(answer, LLMInteraction)


async def test_earlier_attempts_reach_the_resumed_client() -> None:
    broker, store = MemoryBroker(), MemoryInteractionStore()
    await killed_in_a_call(broker, store)
    desk = gateway(["no json", GOOD], broker=broker)

    async with serving(desk):
        while await desk.store.get_by_envelope_id("call-1") is None:  # noqa: ASYNC110 - the reply goes nowhere
            await asyncio.sleep(0)
        await asked(broker, call_log(store, await left_in(store)), built(LATER))

    attempts = [one.result.attempt_number for one in await records(store) if isinstance(one, LLMInteraction)]
    assert attempts == [1, 2]


async def test_claim_restores_attempts_missing_from_log() -> None:
    broker, claims = MemoryBroker(), SharedClaims()
    async with serving(gateway(["no json", GOOD], broker=broker, claims=claims)):
        await asked(broker, call_log(MemoryInteractionStore()), built())

    async with serving(gateway([], broker=broker, claims=claims)), GatewayClient(broker) as client:
        again = await client.ask_structured(built())

    assert (again.ok, [attempt.number for attempt in again.attempts]) == (True, [1, 2])


async def test_unanswered_call_returns_recorded_no_decision() -> None:
    store = MemoryInteractionStore()
    async with GatewayClient(MemoryBroker(), call_log=call_log(store), reply_timeout_s=0.01) as client:
        first = await client.ask(built())
    desk = gateway([GOOD])

    async with serving(desk):
        again = await asked(desk.broker, call_log(store, await left_in(store)), built(LATER))

    assert isinstance(first, NoDecision)
    assert again == first
    assert kinds(await records(store)) == [CallRequested.KIND, CallUnanswered.KIND]


async def test_call_of_closed_client_stays_open() -> None:
    store = MemoryInteractionStore()
    async with (
        asyncio.TaskGroup() as group,
        GatewayClient(MemoryBroker(), call_log=call_log(store)) as client,
    ):
        waiting = group.create_task(client.ask(built()))
        await asyncio.sleep(0)

    assert isinstance(waiting.result(), NoDecision)
    assert kinds(await records(store)) == [CallRequested.KIND]


async def lost_answer(**more: Any) -> tuple[MemoryGateway, MemoryInteractionStore, EarlierCalls]:
    """Return workers who know that a call was sent, and none of whom has its answer; and what its client has left."""
    store = MemoryInteractionStore()
    first = gateway([GOOD])
    await killed_in_a_call(first.broker, store)
    async with serving(first):
        while await first.store.get_by_envelope_id("call-1") is None:  # noqa: ASYNC110 - the reply goes nowhere
            await asyncio.sleep(0)
    return gateway([GOOD], ledger=first.ledger), store, await left_in(store, **more)


async def test_lost_answer_raises_and_call_stays_open() -> None:
    desk, store, earlier = await lost_answer()

    with pytest.raises(ExceptionGroup) as refused:
        async with serving(desk):
            await asked(desk.broker, call_log(store, earlier), built(LATER))

    assert refused.group_contains(AnswerNotKeptError, match="taken_elsewhere.*--answers-from")
    assert kinds(await records(store)) == [CallRequested.KIND]


async def test_lost_answer_with_all_logs_is_undeliverable() -> None:
    desk, store, earlier = await lost_answer(are_all_read=True)

    async with serving(desk):
        answer = await asked(desk.broker, call_log(store, earlier), built(LATER))
    again = await asked(MemoryBroker(), call_log(store, await left_in(store)), built(LATER))

    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "it is not paid again" in answer.reason.description
    assert again == answer


async def test_answer_in_worker_log_is_reused() -> None:
    desk, store = gateway([GOOD]), MemoryInteractionStore()
    await killed_in_a_call(desk.broker, store)
    async with serving(desk):
        while await desk.store.get_by_envelope_id("call-1") is None:  # noqa: ASYNC110 - the reply goes nowhere
            await asyncio.sleep(0)
    earlier = await left_in(store)
    for record in await records(desk.store):
        earlier.read_elsewhere(record)

    answer = await asked(MemoryBroker(), call_log(store, earlier), built(LATER))

    assert isinstance(answer, LLMInteraction)
    assert kinds(await records(store)) == [CallRequested.KIND, "attempt"]


async def test_old_open_call_is_not_republished() -> None:
    desk, store = gateway([GOOD]), MemoryInteractionStore()
    await killed_in_a_call(MemoryBroker(), store)
    late = SimClock(START + PUBLISHED_AGAIN_WITHIN + timedelta(seconds=1))

    with pytest.raises(AnswerNotKeptError, match="after 20 hours"):
        await asked(desk.broker, call_log(store, await left_in(store), clock=late), built(LATER))

    assert not desk.broker.statistics().published


@pytest.mark.parametrize("at", [START, LATER])
async def test_secret_of_envelope_is_not_logged(at: datetime) -> None:
    store, secret = MemoryInteractionStore(), "sk-of-a-customer-17"
    await killed_in_a_call(MemoryBroker(), store, redaction=Redaction(secret), note=f"use {secret}")
    desk = gateway([GOOD])

    async with serving(desk):
        again = asked(desk.broker, call_log(store, await left_in(store)), built(at, note=f"use {secret}"))
        if at == START:  # as in a backtest: it is the same envelope
            assert isinstance(await again, LLMInteraction)
        else:
            with pytest.raises(AnswerNotKeptError, match="had a secret in it"):
                await again

    assert secret.encode() not in (await records(store))[0].wire
