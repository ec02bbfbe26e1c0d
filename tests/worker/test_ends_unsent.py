"""A call that ends unsent, or whose claim was forgotten: the next owner neither sends what was ended nor ends what goes on."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.llm import LLMInteraction, ProviderError
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.offline import ScriptedReply
from agentic_trading.worker.claim import ClaimStoreUnavailableError
from tests.gateway import GOOD
from tests.worker.test_crashes import Fleet, Killed, Moment, Process, SharedClaims, envelope_of


class Cut(Process):
    """From a step on, the server of ledger and claims answers this process no more."""

    async def reached(self, step: str, moment: Moment, given: Sequence[Any] = ()) -> None:
        if step == self.step:
            self.is_dead = True
        if self.is_dead and step.startswith(("ledger", "claims")):
            raise (LedgerUnavailableError if step.startswith("ledger") else ClaimStoreUnavailableError)(
                "away"
            )


@pytest.mark.parametrize("same_log", [True, False])
@pytest.mark.parametrize("workflow", ["analysis", "execution"])
@pytest.mark.parametrize("step", ["ledger.reserve", "ledger.dispatch"])
async def test_unsent_call_continues_if_claim_unavailable(
    step: str, workflow: str, *, same_log: bool
) -> None:
    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of(workflow))
    with pytest.raises(ClaimStoreUnavailableError):
        await fleet.serve(delivery, Cut(step))
    fleet.claims.end_owner()

    assert await fleet.serve(delivery, Process(), fleet.logs[0] if same_log else None)

    (final,) = await fleet.told()
    assert final.result.actionable
    ends = [
        each
        for each in await fleet.records()
        if getattr(each, "result", None) and each.result.next_step == "final"
    ]
    assert len(ends) == 1


@pytest.mark.parametrize("same_log", [True, False])
@pytest.mark.parametrize("step", ["ledger.reserve", "ledger.dispatch"])
async def test_call_ended_unsent_is_not_resent(step: str, *, same_log: bool) -> None:
    class Refused(Process):
        async def reached(self, at: str, moment: Moment, given: Sequence[Any] = ()) -> None:
            if (at, moment) == ("claims.finish", "before"):
                self.is_dead = True
            if at == step:
                raise LedgerUnavailableError("away")
            await super().reached(at, moment, given)

    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of("execution"))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Refused())
    fleet.claims.end_owner()

    assert await fleet.serve(delivery, Process(), fleet.logs[0] if same_log else None)

    assert fleet.provider.requests == []
    (final,) = await fleet.told()
    assert final.result.failure is not None
    assert final.result.failure.category is FailureKind.LEDGER_UNAVAILABLE
    assert (
        len({each.result.failure for each in await fleet.records() if isinstance(each, LLMInteraction)}) == 1
    )


async def test_forgotten_claim_resumes_from_first_log() -> None:
    def script(request: Any) -> ScriptedReply:
        busy = ProviderError(FailureKind.RATE_LIMIT, "later", sent=False)
        return busy if request.attempt == 1 else GOOD

    class AtTheSecond(Process):
        async def reached(self, step: str, moment: Moment, given: Sequence[Any] = ()) -> None:
            self.is_dead |= step == "ledger.reserve" and len(fleet.provider.requests) == 1
            await super().reached(step, moment, given)

    fleet = Fleet(script)
    delivery = await fleet.delivery(envelope_of("analysis"))
    with pytest.raises(Killed):
        await fleet.serve(delivery, AtTheSecond())
    fleet.claims = SharedClaims()

    assert await fleet.serve(delivery, Process(), fleet.logs[0])

    (final,) = await fleet.told()
    assert (final.result.attempt_number, final.result.actionable) == (2, True)
    assert [request.attempt for request in fleet.provider.requests] == [1, 2]
