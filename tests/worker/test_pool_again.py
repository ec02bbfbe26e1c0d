"""What was run is not run again: who asks once more is told what is on record."""

import asyncio
from typing import Any

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, event_message, read_dead_letter, reply_head
from agentic_trading.bus.errors import BusError, MessageTooLargeError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES, Topic
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.llm import (
    Event,
    FailureKind,
    LLMEnvelope,
    LLMInteraction,
    NoDecision,
    RetryPolicy,
)
from agentic_trading.llm.errors import ProviderError, RecordError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.active_claim import key_of
from agentic_trading.worker.claim import ClaimKey
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.pool import WorkerPool
from tests.build import event
from tests.gateway import GOOD, START, MemoryGateway, asking, attempts, gateway
from tests.worker.running import running


class Holding(ScriptedProvider):
    """Answers when it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda _request: GOOD)
        self.started, self.release = asyncio.Event(), asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.started.set()
        await self.release.wait()
        return await super().complete(request)


async def letters(desk: MemoryGateway) -> list[Any]:
    published = desk.broker.statistics().published.get(DEAD_LETTERS.name, 0)
    reader = await desk.broker.subscribe([DEAD_LETTERS], "test")
    found = []
    for _ in range(published):
        delivery = await reader.take()
        found.append(read_dead_letter(delivery.message))
        await reader.ack(delivery)
    return found


async def test_repeated_ask_returns_same_answer() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)
    envelope = asking().build()

    async with running(desk) as client:
        first = await client.ask(envelope)
        second = await client.ask(envelope)

    assert isinstance(first, LLMInteraction)
    assert second == first
    assert len(provider.requests) == 1


async def test_concurrent_duplicate_asks_are_both_answered() -> None:
    desk = gateway(lambda _request: GOOD)
    envelope = asking().build()

    async with running(desk) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask(envelope)) for _ in range(2)]

    first, second = (task.result() for task in asked)
    assert isinstance(first, LLMInteraction)
    assert first == second


class BreaksOnce(MemoryBroker):
    """Loses the connection once, between the log and the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = 1

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if topic is REPLIES and self.breaks:
            self.breaks -= 1
            raise BusError("connection lost")
        await super().publish(topic, message)


async def test_unsent_answer_is_sent_from_log() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider, broker=BreaksOnce())
    envelope = asking().build()

    async with running(desk) as client:
        answer = await client.ask(envelope)

    assert isinstance(answer, LLMInteraction)
    assert answer.result.actionable
    assert [answer] == await attempts(desk, envelope)
    assert len(provider.requests) == 1


async def test_large_answer_reaches_the_caller() -> None:
    text = '{"action":"buy","size":1,"why":"' + "x" * (1 << 20) + '"}'
    desk = gateway(lambda _request: text)
    envelope = asking(text="x" * 1_000_000).build()

    async with running(desk) as client:
        answer = await client.ask(envelope)

    assert isinstance(answer, LLMInteraction)


async def test_attempt_sent_elsewhere_is_not_settled() -> None:
    provider = Holding()
    desk = gateway(provider)
    envelope = asking().build()
    other = WorkerPool(
        broker=desk.broker, runner=desk.runner, recorder=desk.recorder, claims=MemoryClaimStore(), clock=desk.clock
    )  # fmt: skip

    async with asyncio.TaskGroup() as group:
        first = group.create_task(desk.runner.run(envelope))
        await provider.started.wait()
        running_other = group.create_task(other.run())
        async with GatewayClient(desk.broker) as client:
            answer = await client.ask(envelope)
        provider.release.set()
        other.stop()
        await running_other

    assert isinstance(answer, NoDecision)
    assert "taken_elsewhere" in answer.reason.description
    kept = await attempts(desk, envelope)
    assert kept == [first.result()]
    assert kept[0].result.cost_nusd == desk.ledger.statistics().charged_nusd > 0


async def test_conflicting_envelope_id_is_refused() -> None:
    provider = Holding()
    desk = gateway(provider)
    one = asking(n=1).build()
    other = one.model_copy(update={"context": {"n": 2}, "trace_id": "another"})

    async with running(desk) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.ask(one))
        await provider.started.wait()
        second = await client.ask(other)
        provider.release.set()

    assert isinstance(second, NoDecision)
    assert "id_conflict" in second.reason.description
    assert isinstance(first.result(), LLMInteraction)
    assert len(provider.requests) == 1


async def test_tenants_have_separate_envelope_ids() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)
    one = asking().build()
    other = one.model_copy(update={"tenant_id": "other"})

    async with running(desk) as client:
        answers = [await client.ask(one), await client.ask(other), await client.ask(other)]

    assert [request.envelope.tenant_id for request in provider.requests] == ["default", "other"]
    assert [answer.envelope.tenant_id for answer in answers if isinstance(answer, LLMInteraction)] == [
        "default", "other", "other",
    ]  # fmt: skip
    assert answers[1] == answers[2] == await desk.store.get_by_envelope_id(one.envelope_id, tenant="other")


@pytest.mark.parametrize("is_another", [False, True])
async def test_recorded_envelope_is_never_paid_again(*, is_another: bool) -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    before = gateway(provider)
    asked = asking(n=1).build()
    async with running(before) as client:
        first = await client.ask(asked)
    again = asked.model_copy(update={"context": {"n": 2}}) if is_another else asked

    after = gateway(provider, store=before.store)  # neither its claims nor its ledger know of the first
    async with running(after) as client:
        second = await client.ask(again)

    assert len(provider.requests) == 1
    assert after.ledger.statistics().reserved == 0
    if is_another:
        assert isinstance(second, NoDecision)
        assert "id_conflict" in second.reason.description
    else:
        assert second == first


async def test_worker_waits_for_claim_without_spinning() -> None:
    class Counting(MemoryClaimStore):
        claims = 0

        async def claim(self, key: ClaimKey, content: str) -> Any:
            self.claims += 1
            return await super().claim(key, content)

    provider, claims = Holding(), Counting()
    desk = gateway(provider, claims=claims)
    envelope = asking().build()
    message = envelope_message(envelope)

    async with running(desk) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask(envelope))
        await provider.started.wait()
        again = Message("another key", message.value, message.headers)
        await desk.broker.publish(ENVELOPES[envelope.workflow], again)
        for _ in range(100):
            await asyncio.sleep(0)
        assert claims.claims == 2
        provider.release.set()

    assert isinstance(asked.result(), LLMInteraction)
    assert len(provider.requests) == 1


async def test_stop_does_not_wait_for_claim() -> None:
    provider, claims = Holding(), MemoryClaimStore()
    desk = gateway(provider, claims=claims)
    envelope = asking().build()
    await claims.claim(key_of(envelope), envelope.envelope_hash)
    await desk.broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope))

    async with running(desk):
        for _ in range(10):
            await asyncio.sleep(0)

    lane = ENVELOPES[envelope.workflow].name
    (backlog,) = (each for each in desk.broker.statistics().backlogs if each.topic == lane)
    assert (backlog.waiting, backlog.in_flight) == (1, 0)


async def test_stop_ends_wait_for_retry() -> None:
    asked = asyncio.Event()

    def busy(_request: ModelRequest) -> ProviderError:
        asked.set()
        return ProviderError(FailureKind.RATE_LIMIT, "later", sent=False, retry_after_s=600)

    desk = gateway(busy, clock=SystemClock())
    envelope = asking(clock=SystemClock()).with_retry_policy(RetryPolicy(max_retries=3)).build()

    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with GatewayClient(desk.broker) as client:
            waiting = group.create_task(client.ask(envelope))
            await asked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            desk.pool.stop()
            answer = await waiting

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.SHUTDOWN
    assert [(one.result.attempt_number, one.result.next_step) for one in await attempts(desk, envelope)] == [
        (1, "retry"),
        (2, "final"),
    ]


class Particular(MemoryInteractionStore):
    """Cannot spell one record, and goes on."""

    async def store(self, interaction: LLMInteraction) -> int:
        if interaction.envelope.context.get("n") == 7:
            raise RecordError(interaction.interaction_id, "has no JSON spelling")
        return await super().store(interaction)

    async def record(self, event: Event) -> int:
        if event.kind == "odd":
            raise RecordError(event.id, "has no JSON spelling")
        return await super().record(event)


async def test_unrecordable_record_is_dead_lettered() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider, store=Particular())
    good = event()

    async with running(desk) as client:
        answer = await client.ask(asking(n=7).build())
        await client.record(event("odd"))
        await client.record(good)
        other = await client.ask(asking(n=8).build())

    assert isinstance(answer, NoDecision)
    assert "unrecordable" in answer.reason.description
    assert isinstance(other, LLMInteraction)
    assert len(provider.requests) == 2
    assert {letter.reason for letter in await letters(desk)} == {"unrecordable"}
    assert good in [entry.record async for entry in desk.store.scan()]


@pytest.mark.parametrize("number", [b"NaN", b"12345678901234567890123456"])
async def test_unencodable_event_is_dead_lettered(number: bytes) -> None:
    desk = gateway([])
    odd, good = event(body={"close": 42}), event()
    message = event_message(odd)
    spoilt = Message(message.key, message.value.replace(b"42", number), message.headers)
    await desk.broker.publish(EVENTS, spoilt)

    async with running(desk) as client:
        await client.record(good)

    assert [entry.record async for entry in desk.store.scan()] == [good]
    assert [letter.reason for letter in await letters(desk)] == ["decode"]


class Narrow(MemoryBroker):
    """Takes small dead letters only."""

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if topic is DEAD_LETTERS and len(message.value) > 10_000:
            raise MessageTooLargeError(topic.name, len(message.value), 10_000)
        await super().publish(topic, message)


async def test_oversized_dead_letter_is_shortened() -> None:
    desk = gateway([], broker=Narrow())
    envelope: LLMEnvelope = asking(text="x" * 50_000).build()
    message = envelope_message(envelope)
    broken = Message(message.key, message.value[:-1], message.headers)
    await desk.broker.publish(ENVELOPES[envelope.workflow], broken)

    async with running(desk) as client:
        await client.ask(asking(clock=SimClock(START), last=True).build())

    (letter,) = (each for each in await letters(desk) if each.envelope_id == envelope.envelope_id)
    assert (letter.reason, letter.raw_size, letter.is_replayable) == ("decode", len(broken.value), False)


async def test_failed_dead_letter_blocks_no_call() -> None:
    class Deaf(MemoryBroker):
        async def publish(self, topic: Topic[Any], message: Message) -> None:
            if topic is DEAD_LETTERS:
                raise BusError("no such topic")
            await super().publish(topic, message)

    desk = gateway(lambda _request: GOOD, broker=Deaf())
    await desk.broker.publish(EVENTS, Message("k", b"{}", {}))

    async with running(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)


async def test_repeated_reply_is_marked_final() -> None:
    desk = gateway(lambda _request: GOOD)
    envelope = asking().build()
    async with running(desk) as client:
        heard = await desk.broker.replies(client.address)
        await client.ask(envelope)
        await client.ask(envelope)

    for _ in range(2):
        assert reply_head((await heard.take()).message).is_final
