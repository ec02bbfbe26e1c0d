"""Claims that are away, or lost while a call is under way: the envelope is served all the same."""

from typing import Any

from agentic_trading.llm import LLMInteraction, RetryPolicy
from agentic_trading.worker.claim import Claim, ClaimKey, ClaimLostError, ClaimStoreUnavailableError, Spell
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.pool import CLAIMS_AWAY_S
from tests.gateway import GOOD, START, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import Turning


async def test_claims_that_cannot_be_reached_are_waited_for() -> None:
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
    assert CLAIMS_AWAY_S in clock.slept


async def test_a_claim_that_is_lost_while_the_provider_answers_is_served_again_and_the_late_answer_is_charged() -> (
    None
):
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
