"""Claims or a ledger that are away while a worker runs a call, and what the next owner finds then."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agentic_trading.governance.ledger import Settlement
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import LLMInteraction, ProviderError
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.claim import Claim, ClaimLostError, ClaimStoreUnavailableError, Spell
from tests.gateway import GOOD, held
from tests.worker.test_crashes import Fleet, Killed, Moment, Process, SharedClaims, answering, envelope_of


class Unreachable(SharedClaims):
    """Claims that cannot be reached once `is_away`; no lease is sure by then."""

    is_away = False

    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        if self.is_away:
            raise ClaimStoreUnavailableError("connection closed by server")
        await super().keep(claim, attempt, spell)

    def holds(self, claim: Claim) -> bool:
        return not self.is_away and super().holds(claim)


@dataclass
class Unkept(Process):
    """Its claims cannot be reached after an attempt, while its lease lasts; its ledger is told of no charge. It ends at its second reservation."""

    reserves: int = 0

    async def reached(self, step: str, moment: Moment, given: Sequence[Any] = ()) -> None:
        if (step, moment) == ("claims.keep", "before"):
            raise ClaimStoreUnavailableError("away")
        self.reserves += (step, moment) == ("ledger.reserve", "before")
        if self.reserves == 2:
            self.is_dead = True
        await super().reached(step, moment, given)


@pytest.mark.parametrize("kind", [FailureKind.SERVER_ERROR, FailureKind.TIMEOUT])
async def test_attempt_missing_from_claim_is_continued(
    kind: FailureKind,
) -> None:
    def script(request: Any) -> ScriptedReply:
        return (
            ProviderError(kind, "later", sent=kind is FailureKind.TIMEOUT) if request.attempt == 1 else GOOD
        )

    fleet, log = Fleet(script), MemoryInteractionStore()
    delivery = await fleet.delivery(envelope_of("analysis"))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Unkept(), log)
    fleet.claims.end_owner()
    assert await fleet.serve(delivery, Process(), log)

    assert [request.attempt for request in fleet.provider.requests] == [1, 2]
    steps = [each.result.next_step for each in await fleet.records() if isinstance(each, LLMInteraction)]
    assert steps == ["retry", "final"]
    (final,) = await fleet.told()
    assert final.result.actionable
    assert held(await fleet.ledger.balances("default"))["nusd"] == 0


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_recorded_charge_is_settled_after_crash(workflow: str) -> None:
    class Pending(MemoryLedger):
        is_away = True

        async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
            if self.is_away:  # as `DegradedModeLedger` answers for a server that is away
                return Settlement(reservation_id, actual, actual, Amount(0, 0, 0))
            return await super().settle(reservation_id, actual)

    ledger, log = Pending(), MemoryInteractionStore()
    fleet = Fleet(ledger=ledger)
    delivery = await fleet.delivery(envelope_of(workflow))
    process = Unkept("claims.finish", "before")
    with pytest.raises(Killed):
        await fleet.serve(delivery, process, log)
    fleet.claims.end_owner()
    ledger.is_away = False
    assert await fleet.serve(delivery, Process(), log)

    (final,) = await fleet.told()
    assert len(fleet.provider.requests) == 1
    assert held(await ledger.balances("default"))["nusd"] == 0
    assert ledger.statistics().charged_nusd == final.result.cost_nusd > 0


@pytest.mark.parametrize("fails", [False, True])
async def test_answer_after_uncertain_lease_is_discarded(*, fails: bool) -> None:
    claims = Unreachable()
    fleet = Fleet(claims=claims)
    delivery = await fleet.delivery(envelope_of("execution"))

    class Woken(ScriptedProvider):
        async def complete(self, request: Any) -> Any:
            claims.end_owner()
            fleet.provider = ScriptedProvider(answering)
            await fleet.serve(delivery, Process())
            claims.is_away = True
            if fails:
                raise ProviderError(FailureKind.TIMEOUT, "no answer", sent=True)
            return await super().complete(request)

    fleet.provider = Woken(answering)
    with pytest.raises(ClaimLostError):
        await fleet.serve(delivery, Process())

    ends = {each.wire for each in await fleet.records() if isinstance(each, LLMInteraction)}
    assert len(ends) == 1, "two logs have an end of the same attempt, and they differ"
    (final,) = await fleet.told()
    assert {final.wire} == ends
    assert held(await fleet.ledger.balances("default"))["nusd"] == 0
