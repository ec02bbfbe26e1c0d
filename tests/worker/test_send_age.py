"""The age limit of envelopes: the send time, the refusal, and the memories that prevent a second payment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import SENT_HEADER, envelope_message, read_dead_letter
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES
from agentic_trading.canonical import utc_text
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledger import CALL_KEEP, CLOCKS_DIFFER, SENT_WITHIN
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, NoDecision
from agentic_trading.llm.event import KINDS, EnvelopeRefused, Event
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.claims.redis import DONE_S, LAST_S, RedisClaimStore
from agentic_trading.worker.delivery import SEND_TIME, TOO_OLD, EnvelopeHandler, ProducerAcl, SendAge
from agentic_trading.worker.error_boundary import UndeliverableError
from agentic_trading.worker.slots import Slots, StoppableWait
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway
from tests.redis_server import namespace
from tests.worker.running import running
from tests.worker.ticking import with_pool

SECOND = timedelta(seconds=1)
WALL = SimClock(START)


def envelope_created(at: datetime) -> LLMEnvelope:
    return asking().build().model_copy(update={"created_at": at})


def reason_of(message: Message, envelope: LLMEnvelope, *, is_simulated: bool = False) -> str:
    refusal = SendAge(WALL, is_simulated).refusal(message, envelope.created_at)
    return "" if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("age", "reason"),
    [
        (SENT_WITHIN, ""),
        (SENT_WITHIN + SECOND, TOO_OLD),
        (-CLOCKS_DIFFER, ""),
        (-CLOCKS_DIFFER - SECOND, SEND_TIME),
    ],
)
def test_send_time_header_overrides_created_at(age: timedelta, reason: str) -> None:
    for created_at in (START, START - timedelta(days=400)):
        envelope = envelope_created(created_at)
        message = envelope_message(envelope, sent_at=START - age)

        assert reason_of(message, envelope) == reason
        assert reason_of(message, envelope, is_simulated=True) == reason


@pytest.mark.parametrize(
    ("age", "reason"),
    [
        (SENT_WITHIN, ""),
        (SENT_WITHIN + SECOND, TOO_OLD),
        (-CLOCKS_DIFFER - SECOND, SEND_TIME),
    ],
)
def test_missing_send_time_uses_created_at(age: timedelta, reason: str) -> None:
    envelope = envelope_created(START - age)
    message = envelope_message(envelope)

    assert reason_of(message, envelope) == reason
    assert reason_of(message, envelope, is_simulated=True) == ""


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02T00:00:00", "2026-01-02", "1767312000"])
def test_invalid_send_time_is_refused(text: str) -> None:
    envelope = envelope_created(START)
    message = envelope_message(envelope)
    message = Message(message.key, message.value, {**message.headers, SENT_HEADER: text})

    assert reason_of(message, envelope) == SEND_TIME
    assert reason_of(message, envelope, is_simulated=True) == SEND_TIME


class Noted(MemoryBroker):
    """A bus that keeps the messages that were published on it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    async def publish(self, topic: Any, message: Message) -> None:
        self.messages.append(message)
        await super().publish(topic, message)


async def test_gateway_sends_wall_clock_time() -> None:
    broker, wall = Noted(), SimClock(START)
    async with GatewayClient(broker, clock=SimClock(START - timedelta(days=900)), wall=wall) as client:
        await client.submit(asking(n=1).build())
        wall.advance_to(START + timedelta(days=3))
        await client.submit(asking(n=2).build())

    sent = [message.headers[SENT_HEADER] for message in broker.messages]
    assert sent == [utc_text(START), utc_text(START + timedelta(days=3))]


async def refusals(desk: MemoryGateway) -> list[tuple[Event, EnvelopeRefused]]:
    records = [entry.record async for entry in desk.store.scan()]
    found = [(one, KINDS.of(one)) for one in records if isinstance(one, Event)]
    return [(event, body) for event, body in found if isinstance(body, EnvelopeRefused)]


async def test_too_old_envelope_is_refused_unpaid() -> None:
    provider = ScriptedProvider([GOOD])
    desk = with_pool(gateway(provider), age=SendAge(SimClock(START + SENT_WITHIN + SECOND)))
    envelope = asking().build()

    async with running(desk, wall=SimClock(START)) as client:
        answer = await client.ask(envelope)

    assert isinstance(answer, NoDecision)
    assert answer.reason.category is FailureKind.UNDELIVERABLE
    assert "too_old: its at_sent 2026-01-02 00:00 UTC is more than 8 days ago" in answer.reason.description
    assert provider.requests == []
    assert desk.ledger.statistics().reserved == 0
    ((event, refused),) = await refusals(desk)
    assert (event.trace_id, event.tenant_id) == (envelope.trace_id, envelope.tenant_id)
    assert (refused.envelope_id, refused.reason, refused.sent_at) == (envelope.envelope_id, TOO_OLD, START)
    (letter,) = [read_dead_letter(each.message) async for each in desk.broker.scan(DEAD_LETTERS)]
    assert (letter.reason, letter.detail) == (TOO_OLD, refused.detail)


# --- the memories -------------------------------------------------------------------------------------------


class Server:
    """A Redis with ledger and claims, and workers without a log of earlier ones."""

    def __init__(self, url: str, opened: AsyncExitStack) -> None:
        self._url, self._opened, self._namespace = url, opened, namespace()
        self.provider = ScriptedProvider([GOOD, GOOD])

    async def serve(self, envelope: LLMEnvelope) -> None:
        """Deliver an envelope to a new worker, whose log is empty."""
        ledger: Any = await asyncio.to_thread(RedisLedger, self._url, namespace=self._namespace)
        claims = await asyncio.to_thread(RedisClaimStore, self._url, namespace=self._namespace)
        self._opened.push_async_callback(ledger.aclose)
        await claims.begin()
        desk = gateway(self.provider, ledger=ledger)
        waits = StoppableWait(SimClock(START))
        handler = EnvelopeHandler(desk.runner, desk.recorder, claims, ProducerAcl(), waits, age=SendAge(WALL))
        topic = ENVELOPES[envelope.workflow]
        reader = await desk.broker.subscribe([topic], "workers")
        await desk.broker.publish(topic, envelope_message(envelope, sent_at=START))
        async with Slots(1).taken() as slot:
            with suppress(UndeliverableError):  # `taken_elsewhere`: paid, and the answer is not kept
                await handler.serve(await reader.take(), slot=slot)
        await claims.aclose()

    async def memories(self, envelope: LLMEnvelope) -> dict[str, tuple[bytes, float]]:
        """Return the key of each memory of a call, and for how many seconds it is kept."""
        prefix = f"{self._namespace}:{{{envelope.tenant_id}}}"
        async with Redis.from_url(self._url) as client:
            keys = {
                "answer": f"{prefix}:last:{envelope.envelope_id}".encode(),
                "claim": f"{prefix}:claim:{envelope.envelope_id}".encode(),
                "call": f"{prefix}:ledger:call:{envelope.tenant_id}:{envelope.idempotency_key}:1".encode(),
            }
            return {name: (key, await client.pttl(key) / 1000) for name, key in keys.items()}

    async def forget_all_but(self, name: str, envelope: LLMEnvelope) -> None:
        """Delete the memories of a call but one."""
        found = await self.memories(envelope)
        async with Redis.from_url(self._url) as client:
            assert await client.delete(*(key for each, (key, _) in found.items() if each != name))


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(redis_url, opened)


PREVENTS = {"answer": False, "claim": True, "call": True}
"""Whether a memory alone prevents a second payment."""


@pytest.mark.parametrize("name", PREVENTS)
async def test_stored_claim_or_call_prevents_repayment(server: Server, name: str) -> None:
    envelope = asking().build()
    await server.serve(envelope)
    await server.forget_all_but(name, envelope)

    await server.serve(envelope)

    assert len(server.provider.requests) == (1 if PREVENTS[name] else 2)


async def test_age_limit_is_within_payment_memory(server: Server) -> None:
    envelope = asking().build()
    await server.serve(envelope)

    kept = {name: kept_s for name, (_, kept_s) in (await server.memories(envelope)).items()}

    expected = {"answer": LAST_S, "claim": DONE_S, "call": CALL_KEEP.total_seconds()}
    assert kept == pytest.approx(expected, abs=60)
    longest_s = max(kept_s for name, kept_s in expected.items() if PREVENTS[name])
    assert (SENT_WITHIN + CLOCKS_DIFFER).total_seconds() <= longest_s
