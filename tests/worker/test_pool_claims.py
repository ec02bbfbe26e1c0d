"""Servers that are away, and claims that are lost while a call is under way: the envelope is served all the same."""

import asyncio
from typing import Any

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import read_dead_letter
from agentic_trading.bus.errors import BacklogFullError, BusError, BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, REPLIES, Topic
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Settlement
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import LLMInteraction, NoDecision, RetryPolicy
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.claim import Claim, ClaimKey, ClaimLostError, ClaimStoreUnavailableError, Spell
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.error_boundary import UnstreamedError
from agentic_trading.worker.pool import AWAY_S
from tests.gateway import GOOD, START, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import Turning


async def test_pool_waits_for_unreachable_claims() -> None:
    class AwayOnce(MemoryClaimStore):
        is_away = True

        async def claim(self, key: ClaimKey, content: str) -> Any:
            if self.is_away:
                self.is_away = False
                raise ClaimStoreUnavailableError("connection refused")
            return await super().claim(key, content)

    clock = Turning(START)
    desk = gateway([GOOD], claims=AwayOnce(), clock=clock)

    async with running(desk) as client:
        answer = await client.ask(asking(clock=clock).build())

    assert isinstance(answer, LLMInteraction)
    assert AWAY_S in clock.slept


async def test_claim_lost_during_call_is_retried() -> None:
    class LostOnce(MemoryClaimStore):
        is_lost = True

        async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
            if self.is_lost:
                self.is_lost = False
                raise ClaimLostError(claim.key)
            await super().keep(claim, attempt, spell)

    clock = Turning(START)
    desk = gateway(lambda _request: GOOD, claims=LostOnce(), clock=clock)
    envelope = asking(clock=clock).with_retry_policy(RetryPolicy(max_retries=2)).build()

    async with running(desk) as client:
        answer = await client.ask(envelope)

    assert isinstance(answer, LLMInteraction)
    assert (answer.result.attempt_number, answer.result.actionable) == (2, True)
    kinds = [getattr(entry.record, "kind", "") async for entry in desk.store.scan()]
    assert kinds.count("attempt.answered_late") == 1


NO_BROKER = BusUnavailableError("127.0.0.1:9092", "no broker answers")
FULL = BacklogFullError("any", 0, 1000, 1000)


class Away(MemoryBroker):
    """A bus that takes nothing for `topic` for some time."""

    def __init__(self, topic: Topic[Any], error: BusError = NO_BROKER, times: int = 10) -> None:
        super().__init__()
        self._refused, self._error, self._times = topic, error, times

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if topic is self._refused and self._times > 0:
            self._times -= 1
            raise self._error
        await super().publish(topic, message)


@pytest.mark.parametrize("error", [NO_BROKER, FULL])
async def test_answer_survives_bus_outage(
    error: BusError,
) -> None:
    clock = Turning(START)
    desk = gateway([GOOD], broker=Away(REPLIES, error), clock=clock)

    async with running(desk) as client:
        answer = await client.ask(asking(clock=clock).build())

    assert isinstance(answer, LLMInteraction)
    assert answer.actionable
    assert clock.slept.count(AWAY_S) == 10
    assert desk.pool.statistics().dead_letters == 0


@pytest.mark.timeout(5)
@pytest.mark.parametrize("error", [NO_BROKER, FULL])
async def test_dead_letter_survives_bus_outage(
    error: BusError,
) -> None:
    clock = Turning(START)
    desk = gateway([], broker=Away(DEAD_LETTERS, error), clock=clock)
    letters = await desk.broker.subscribe([DEAD_LETTERS], "test")
    unreadable = next(iter(ENVELOPES.values()))

    async with running(desk):
        await desk.broker.publish(unreadable, Message("k", b"no envelope", {}))
        letter = await letters.take()

    assert letter.topic == DEAD_LETTERS.name
    assert clock.slept.count(AWAY_S) == 10
    assert desk.pool.statistics().dead_letters == 1


async def test_delayed_dead_letter_keeps_original_reason() -> None:
    class Unrecordable(MemoryInteractionStore):
        async def store(self, interaction: LLMInteraction) -> int:
            raise RecordError(interaction.interaction_id, "has no JSON spelling")

    clock = Turning(START)
    desk = gateway([GOOD], store=Unrecordable(), broker=Away(DEAD_LETTERS), clock=clock)
    letters = await desk.broker.subscribe([DEAD_LETTERS], "test")

    async with running(desk) as client:
        answer = await client.ask(asking(clock=clock).build())
        letter = read_dead_letter((await letters.take()).message)

    assert isinstance(answer, NoDecision)
    assert (letter.reason, "has no JSON spelling" in letter.detail) == ("unrecordable", True)


async def test_answer_survives_long_ledger_outage() -> None:
    class AwayForLong(MemoryLedger):
        times = 10

        async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
            if self.times:
                self.times -= 1
                raise LedgerUnavailableError("connection refused")
            return await super().settle(reservation_id, actual)

    clock = Turning(START)
    desk = gateway([GOOD], ledger=AwayForLong(), clock=clock)

    async with running(desk) as client:
        answer = await client.ask(asking(clock=clock).build())

    assert isinstance(answer, LLMInteraction)
    assert desk.pool.statistics().dead_letters == 0


AWAY_OR_LOST = [
    ClaimStoreUnavailableError("connection refused"),
    LedgerUnavailableError("connection refused"),
    NO_BROKER,
    FULL,
    ClaimLostError(ClaimKey("default", "e-1")),
    UnstreamedError(1, "no answer"),
]


@pytest.mark.parametrize("error", AWAY_OR_LOST, ids=lambda error: type(error).__name__)
async def test_outages_do_not_count_as_failures(
    error: Exception,
) -> None:
    class Failing(MemoryClaimStore):
        raised = [error] * 5 + [RuntimeError("a bug in an adapter")] * 2

        async def claim(self, key: ClaimKey, content: str) -> Any:
            if self.raised:
                raise self.raised.pop(0)
            return await super().claim(key, content)

    clock = Turning(START)
    desk = gateway([GOOD], claims=Failing(), clock=clock)

    async with running(desk) as client:
        answer = await client.ask(asking(clock=clock).build())

    assert isinstance(answer, LLMInteraction)
    assert (desk.pool.statistics().given_back, desk.pool.statistics().dead_letters) == (2, 0)


async def test_unreadable_end_releases_the_claim() -> None:
    class Unreadable(MemoryInteractionStore):
        async def get_by_envelope_id(self, envelope_id: str, *, tenant: str | None = None) -> Any:
            raise RecordError(envelope_id, "has no JSON spelling")

    desk = gateway(lambda _request: GOOD, store=Unreadable())
    await desk.runner.run(envelope := asking().build())

    async with running(desk) as client, asyncio.timeout(2):
        answers = [await client.ask(envelope) for _ in range(2)]

    assert ["unrecordable" in each.reason.description for each in answers if isinstance(each, NoDecision)] == [
        True, True,
    ]  # fmt: skip
