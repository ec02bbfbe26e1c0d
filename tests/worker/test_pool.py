"""The pool: one delivery is one boundary, nothing unkept is acknowledged, and stopping loses nothing."""

import asyncio
from pathlib import Path

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, event_message, read_dead_letter
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm import Event, LLMEnvelope, LLMInteraction, NoDecision, StoreError
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.build import event
from tests.gateway import GOOD, MemoryGateway, asking, attempts, gateway
from tests.worker.running import running


async def publish(desk: MemoryGateway, envelope: LLMEnvelope, value: bytes | None = None) -> None:
    """Put an envelope on its lane, with other bytes if given."""
    message = envelope_message(envelope)
    changed = Message(message.key, value or message.value, message.headers)
    await desk.broker.publish(ENVELOPES[envelope.workflow], changed)


class Raising(MemoryInteractionStore):
    """Raises what no log should for the context `{"n": 7}`."""

    async def store(self, interaction: LLMInteraction) -> int:
        if interaction.envelope.context.get("n") == 7:
            raise RuntimeError("a bug in an adapter")
        return await super().store(interaction)


async def test_raising_handler_does_not_disturb_neighbours() -> None:
    desk = gateway(lambda _request: GOOD, store=Raising(), workers=16)

    async with running(desk) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask(asking(n=number).build())) for number in range(16)]

    answers = [task.result() for task in asked]
    good = [answer for answer in answers if isinstance(answer, LLMInteraction)]
    assert len(good) == 15
    assert all(answer.result.actionable for answer in good)
    bad = answers[7]
    assert isinstance(bad, NoDecision)
    assert "a bug in an adapter" in bad.reason.description


class Broken(RecordedAnswers):
    """Raises what nobody expects."""

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        raise RuntimeError("a bug in an adapter")


async def test_repeated_failure_becomes_dead_letter() -> None:
    desk = gateway(lambda _request: GOOD, recorded=Broken([]))
    envelope = asking(n=7).build()

    async with running(desk) as client:
        await client.ask(envelope)

    letters = await desk.broker.subscribe([DEAD_LETTERS], "test")
    letter = read_dead_letter((await letters.take()).message)
    assert (letter.reason, letter.raw, letter.deliveries) == ("crash_loop", envelope.wire, 3)
    assert "RuntimeError: a bug in an adapter" in letter.detail
    assert desk.pool.statistics().given_back == 2


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"Advise.", b"Advice.", "checksum"),
        (b'{"agent_id"', b"", "decode"),
        (b'"schema_version":"1.0"', b'"schema_version":"2.0"', "schema_version"),
        (b'"budget":{', b'"budget":{"max_lots":1,', "unknown_restriction"),
    ],
)
async def test_unreadable_message_is_dead_lettered_and_reported(old: bytes, new: bytes, reason: str) -> None:
    desk = gateway([])
    envelope = asking().build()

    async with running(desk) as client, asyncio.TaskGroup() as group:
        waiting = group.create_task(_ask_with(client, desk, envelope, envelope.wire.replace(old, new)))

    answer = waiting.result()
    assert isinstance(answer, NoDecision)
    assert f"dead letter: {reason}" in answer.reason.description
    assert desk.pool.statistics().dead_letters == 1
    assert [entry async for entry in desk.store.scan()] == []


async def _ask_with(
    client: GatewayClient, desk: MemoryGateway, envelope: LLMEnvelope, value: bytes
) -> object:
    """Wait for an answer to `envelope`, of which other bytes were published."""
    spoilt = _Spoilt(desk, value)
    async with GatewayClient(spoilt, name="spoilt") as other:  # type: ignore[arg-type]  # publishes something else
        return await other.ask(envelope)


class _Spoilt:
    """A broker that publishes other bytes than it was given."""

    def __init__(self, desk: MemoryGateway, value: bytes) -> None:
        self._broker = desk.broker
        self._value = value
        self.replies = desk.broker.replies

    async def publish(self, topic: object, message: Message) -> None:
        spoilt = Message(message.key, self._value, message.headers)
        await self._broker.publish(topic, spoilt)  # type: ignore[arg-type]  # a topic


async def test_oversized_envelope_is_rejected() -> None:
    desk = gateway([])
    envelope = asking(text="x" * (1 << 20)).build()

    async with running(desk) as client:
        with pytest.raises(ValueError, match="too large"):
            await client.ask(envelope)


async def test_redelivered_envelope_is_paid_once() -> None:
    provider = ScriptedProvider(lambda _request: GOOD)
    desk = gateway(provider)
    envelope = asking().build()

    async with running(desk) as client:
        await client.ask(envelope)
        await publish(desk, envelope)
        await publish(desk, envelope)

    assert len(provider.requests) == 1
    assert len(await attempts(desk, envelope)) == 1


class Held(MemoryInteractionStore):
    """A log that takes no event before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_take = asyncio.Event(), asyncio.Event()

    async def record(self, event: Event) -> int:
        self.is_asked.set()
        await self.may_take.wait()
        return await super().record(event)


async def test_stopped_pool_leaves_events_to_another() -> None:
    broker, store = MemoryBroker(), Held()
    goes_on, stops = (gateway([], broker=broker, store=store).pool for _ in range(2))
    for number in range(6):
        await broker.publish(EVENTS, event_message(event(id=f"e-{number}", trace_id="t")))

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(goes_on.run())
        await store.is_asked.wait()
        stopping = group.create_task(stops.run())
        await asyncio.sleep(0)
        stops.stop()
        await stopping
        store.may_take.set()
        goes_on.stop()

    assert (goes_on.statistics().events, stops.statistics().events) == (6, 0)


async def test_events_published_before_stop_are_kept() -> None:
    desk = gateway([])
    events = [event(id=f"e-{number}", trace_id="t") for number in range(50)]

    async with running(desk) as client:
        for one in events:
            await client.record(one)

    kept = [entry.record async for entry in desk.store.scan()]
    assert kept == events
    assert desk.pool.statistics().events == 50


async def test_unreadable_event_is_dead_lettered() -> None:
    desk = gateway([])
    good = event()
    message = event_message(good)
    await desk.broker.publish(EVENTS, Message("k", b"{}", message.headers))
    await desk.broker.publish(EVENTS, message)

    async with running(desk):
        pass

    assert [entry.record async for entry in desk.store.scan()] == [good]
    assert desk.pool.statistics().dead_letters == 1


class FullAfter(MemoryInteractionStore):
    """A log whose disk is full after a number of interactions."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    async def store(self, interaction: LLMInteraction) -> int:
        if self._room == 0:
            raise StoreError(Path("log.jsonl"), "no space left on the device")
        self._room -= 1
        return await super().store(interaction)

    async def record(self, event: Event) -> int:
        if self._room == 0:
            raise StoreError(Path("log.jsonl"), "no space left on the device")
        return await super().record(event)


async def test_unwritable_log_stops_the_pool() -> None:
    desk = gateway(lambda _request: GOOD, store=FullAfter(2), workers=1)
    for number in range(5):
        await publish(desk, asking(n=number).build())

    with pytest.raises(StoreError, match="no space left"):
        await desk.pool.run()

    statistics = desk.broker.statistics()
    lane = ENVELOPES[EnvelopeWorkflow.ANALYSIS].name
    records = [entry.record async for entry in desk.store.scan()]
    assert len([one for one in records if isinstance(one, LLMInteraction)]) == 2
    assert sum(each.waiting + each.in_flight for each in statistics.backlogs if each.topic == lane) == 3


async def test_unwritable_event_stops_the_pool() -> None:
    desk = gateway([], store=FullAfter(0))
    await desk.broker.publish(EVENTS, event_message(event()))

    with pytest.raises(StoreError, match="no space left"):
        await desk.pool.run()


async def test_stop_finishes_only_running_calls() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await release.wait()
            return await super().complete(request)

    desk = gateway(Slow(lambda _request: GOOD), workers=1)
    first, second = asking(n=1).build(), asking(n=2).build()
    await publish(desk, first)
    await publish(desk, second)

    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        await started.wait()
        desk.pool.stop()
        desk.pool.stop()
        release.set()

    assert await desk.store.get_by_envelope_id(first.envelope_id) is not None
    assert await desk.store.get_by_envelope_id(second.envelope_id) is None
    assert desk.pool.statistics().finished == 1


async def test_early_stop_takes_no_delivery() -> None:
    desk = gateway([GOOD])
    await publish(desk, asking().build())
    desk.pool.stop()

    await desk.pool.run()

    assert desk.pool.statistics().finished == 0


@pytest.mark.parametrize("workers", [0, -1])
async def test_pool_requires_a_worker(workers: int) -> None:
    with pytest.raises(ValueError, match="Allowed: 1 or more"):
        gateway([], workers=workers)
