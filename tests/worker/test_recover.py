"""What a start finds that earlier ones have left, and what it says of it."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.errors import FailureKind
from agentic_trading.worker.active_claim import RecoveryReport, recover
from agentic_trading.worker.claim import AbandonedClaim, ClaimKey, ClaimStoreUnavailableError
from agentic_trading.worker.claims.memory import MemoryClaimStore
from tests.contracts.claim_promises import taken
from tests.gateway import START
from tests.governance.asking import ask, reserved, spend
from tests.governance.away import AwayLedger
from tests.worker.test_crashes import Fleet, Killed, Process, charged, envelope_of


def lost(*ids: str) -> dict[str, LostAttempt]:
    return {id_: LostAttempt(id_, Amount(30, 0), START) for id_ in ids}


async def left_claims() -> MemoryClaimStore:
    """Return claims of which four envelopes are not finished, and nobody runs three."""
    claims = MemoryClaimStore()
    for number, state in enumerate(("claimed", "intended", "kept", "held")):
        claim = await taken(claims, ClaimKey("acme", f"e-{number}"))
        if state != "claimed":
            await claims.intend(claim, 1, b"sent")
        if state == "kept":
            await claims.keep(claim, 1, bytes)
        if state != "held":
            await claims.release(claim)
    await claims.release(await taken(claims, ClaimKey("other", "e-9")))
    return claims


async def test_recovery_marks_sent_attempts_in_doubt() -> None:
    ledger = MemoryLedger()
    sent, unsent, answered = (ask(30, key=key) for key in ("sent", "unsent", "answered"))
    for wanted in (sent, unsent):
        await reserved(ledger, wanted)
    await ledger.dispatch(sent.reservation_id)
    await spend(ledger, answered)
    unended = lost(sent.reservation_id, unsent.reservation_id, answered.reservation_id, "acme:forgotten:1")

    claims = await left_claims()
    with capture_logs() as logs:
        reports = [await recover(unended, ledger, claims, ["acme"]) for _ in range(2)]

    assert reports == [RecoveryReport(3, 1, 30, {"claimed": 1, "intended": 1, "kept": 1})] * 2
    assert await ledger.state_of(sent.reservation_id) is ReservationState.IN_DOUBT
    assert await ledger.state_of(unsent.reservation_id) is ReservationState.RESERVED
    assert await ledger.state_of(answered.reservation_id) is ReservationState.SETTLED
    assert [(entry["event"], entry["log_level"]) for entry in logs[:2]] == [
        ("attempts_left", "warning"),
        ("claims_left", "info"),
    ]
    assert logs[1]["envelopes"] == ["e-0", "e-1", "e-2"]


async def test_unreachable_stores_do_not_stop_recovery() -> None:
    class Away(MemoryClaimStore):
        async def left(self, tenant: str) -> Sequence[AbandonedClaim]:
            raise ClaimStoreUnavailableError("connection refused")

    ledger = AwayLedger()
    ledger.leave()

    with capture_logs() as logs:
        report = await recover(lost("acme:sent:1"), ledger, Away(), ["acme"])

    assert report == RecoveryReport()
    assert [entry["event"] for entry in logs] == ["attempts_not_recovered", "claims_not_listed"]


async def test_recovery_without_findings_is_silent() -> None:
    with capture_logs() as logs:
        assert await recover({}, MemoryLedger(), MemoryClaimStore(), ["acme"]) == RecoveryReport()
    assert logs == []


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_expired_takeover_is_paid_without_decision(
    workflow: str,
) -> None:
    fleet = Fleet()
    delivery = await fleet.delivery(envelope_of(workflow, deadline=START + timedelta(minutes=1)))
    with pytest.raises(Killed):
        await fleet.serve(delivery, Process("claims.keep", "after"))
    fleet.claims.end_owner()

    assert await fleet.serve(delivery, Process(), at=START + timedelta(hours=1))

    (final,) = await fleet.told()
    assert final.failure is not None
    assert (final.failure.category, final.actionable) == (FailureKind.EXPIRED, False)
    assert len(fleet.provider.requests) == 1
    assert charged(await fleet.records()) >= fleet.ledger.statistics().charged_nusd > 0
    assert fleet.ledger.statistics().in_doubt == 0
