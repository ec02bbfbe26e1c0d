"""The first envelope of an `Idempotency-Key`, by agreement of servers: taken over, or refused if it cannot be the same."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.outcome import StructuredOutcome, outcome_without_answer
from agentic_trading.clock import SimClock
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.server.api_keys import ApiKey
from agentic_trading.server.errors import RequestError
from agentic_trading.server.joins import CallEnd, JoinedCall, Joins
from agentic_trading.server.shared_calls import SharedCalls
from agentic_trading.worker.claim import ClaimStoreUnavailableError
from agentic_trading.worker.claims.memory import MemoryClaimStore
from tests.build import NOW, envelope
from tests.server.test_replies import attempt

LATER = NOW + timedelta(seconds=9)
FIRST = envelope(envelope_id="call", created_at=NOW, occurrence=2)
AGAIN = envelope(envelope_id="call", created_at=LATER, deadline=LATER + timedelta(hours=1))


class AwayClaims(MemoryClaimStore):
    """Claims whose server does not answer."""

    async def freeze(self, *_: Any) -> bytes:
        raise ClaimStoreUnavailableError("it is away")


async def second(again: LLMEnvelope, *, clock: SimClock | None = None) -> LLMEnvelope:
    """Let a server publish `FIRST`, and return the envelope that another one publishes for a repetition."""
    claims, clock, made = MemoryClaimStore(), clock or SimClock(NOW), again
    for shared, asked in ((SharedCalls(claims, clock), FIRST), (SharedCalls(claims, clock), again)):
        with shared.sharing(asked.envelope_id):
            made = await shared.agreed(asked)
            assert shared.published(asked) is made
    return made


async def test_repetition_is_published_as_the_first_request() -> None:
    assert AGAIN.envelope_hash != FIRST.envelope_hash

    made = await second(AGAIN)

    assert made.wire == FIRST.wire


async def test_first_request_is_published_as_it_is() -> None:
    assert await second(FIRST) is FIRST


async def test_call_that_is_not_shared_is_published_as_it_is() -> None:
    shared = SharedCalls(AwayClaims(), SimClock(NOW))

    assert await shared.agreed(AGAIN) is AGAIN
    assert shared.published(AGAIN) is AGAIN


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"instructions": "Another question."}, "was used for another request"),
        ({"agent_id": "another"}, "the rights of its API key, or the version of a server, have changed"),
    ],
)
async def test_repetition_with_another_content_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        await second(AGAIN.model_copy(update=change))

    assert refused.value.failure.status == 422


@pytest.mark.parametrize(("hours", "is_refused"), [(20, False), (21, True)])
async def test_call_that_claims_may_have_forgotten_is_refused(hours: int, *, is_refused: bool) -> None:
    clock = SimClock(NOW + timedelta(hours=hours))
    if not is_refused:
        assert (await second(AGAIN, clock=clock)).wire == FIRST.wire
        return

    with pytest.raises(RequestError, match="was used 21 hours ago") as refused:
        await second(AGAIN, clock=clock)
    assert refused.value.failure.status == 422


async def test_unreachable_store_refuses_the_call_before_it_is_published() -> None:
    shared = SharedCalls(AwayClaims(), SimClock(NOW))

    with (
        shared.sharing("call"),
        pytest.raises(RequestError, match=r"it is away\. The request was not sent") as e,
    ):
        await shared.agreed(AGAIN)

    assert (e.value.failure.status, e.value.failure.code) == (503, "ledger_unavailable")


# --- joins of two servers --------------------------------------------------------------------------------


LOST = outcome_without_answer(
    NoDecision(reason=FailureReason(category=FailureKind.UNDELIVERABLE, description="x"), envelope_id="e"), ()
)
UNSENT = replace(LOST, attempts=(replace(attempt(1, None), sent=False),))
PAID = replace(LOST, attempts=(attempt(1, None),))


class Server:
    """Joins over a log without records. Its calls end as the test wants."""

    def __init__(self, claims: MemoryClaimStore, *ends: StructuredOutcome) -> None:
        self.clock = SimClock(NOW)
        self.shared = SharedCalls(claims, self.clock)
        self.joins = Joins(self.clock, self, OwnedTasks(), self.shared)
        self.ends = list(ends)
        self.ran: list[LLMEnvelope] = []

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> Sequence[LLMInteraction]:
        return ()

    async def run(self, asked: LLMEnvelope) -> CallEnd:
        self.ran.append(await self.shared.agreed(asked))
        return self.ends.pop(0)

    async def ask(self, created_at: Any) -> tuple[CallEnd, JoinedCall]:
        key = ApiKey(name="desk", sha256="0" * 64, tenant="acme", agent="a", created=NOW)
        run: Callable[[LLMEnvelope], Awaitable[CallEnd]] = self.run
        call = self.joins.call(key, envelope(created_at=created_at), {"idempotency-key": "a"}, run)
        return await call.task, call


async def test_other_server_replies_about_the_first_call() -> None:
    claims = MemoryClaimStore()
    one, other = Server(claims, PAID), Server(claims, PAID)

    (_, first), (end, again) = await one.ask(NOW), await other.ask(LATER)

    assert end is PAID
    assert again.envelope.wire == first.envelope.wire == other.ran[0].wire


async def test_refusal_of_an_earlier_request_is_asked_again_with_a_new_id() -> None:
    claims = MemoryClaimStore()
    one, other = Server(claims, UNSENT), Server(claims, UNSENT, PAID)

    (refused, _), (end, _) = await one.ask(NOW), await other.ask(LATER)

    assert (refused, end) == (UNSENT, PAID)
    assert other.ran[0].wire == one.ran[0].wire
    assert other.ran[1].envelope_id != other.ran[0].envelope_id


async def test_lost_answer_of_an_earlier_request_is_not_asked_again() -> None:
    claims = MemoryClaimStore()
    one, other = Server(claims, PAID), Server(claims, LOST)

    _, (end, _) = await one.ask(NOW), await other.ask(LATER)

    assert end is LOST
    assert len(other.ran) == 1
