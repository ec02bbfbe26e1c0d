"""What an earlier owner of an attempt has left in the ledger is ended once, whatever it was doing."""

import pytest

from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from tests.governance.gates import MOST_NUSD, USAGE, USED_NUSD, admitted, gate, tenant
from tests.governance.requests import request


async def left(state: ReservationState | None) -> tuple[MemoryLedger, str, bool]:
    """Return a ledger in which an owner has left an attempt, and whether it may have been sent."""
    ledger = MemoryLedger([tenant(10**12)])
    admission = await admitted(one := gate(ledger), request())
    id_ = admission.reservation_id
    match state:
        case ReservationState.RELEASED:
            await ledger.release(id_)
        case ReservationState.DISPATCHED:
            await ledger.dispatch(id_)
        case ReservationState.SETTLED:
            await ledger.dispatch(id_)
            await ledger.settle(id_, Amount(USED_NUSD, 9))
        case ReservationState.IN_DOUBT:
            await ledger.dispatch(id_)
            await ledger.in_doubt(id_)
        case _:
            pass
    return ledger, id_, await one.lifecycle.abandon(id_ if state else "default:never:1")


@pytest.mark.parametrize(
    ("state", "may_be_sent", "charged"),
    [
        (ReservationState.RESERVED, False, 0),
        (ReservationState.RELEASED, False, 0),
        (ReservationState.DISPATCHED, True, MOST_NUSD),
        (ReservationState.IN_DOUBT, True, MOST_NUSD),
        (ReservationState.SETTLED, True, USED_NUSD),
        (None, True, 0),
    ],
)
async def test_abandon_result_depends_on_reservation_state(
    state: ReservationState | None,
    *,
    may_be_sent: bool,
    charged: int,
) -> None:
    ledger, _, answer = await left(state)

    assert answer is may_be_sent
    assert ledger.statistics().charged_nusd == charged


async def test_abandoned_attempt_cannot_be_dispatched() -> None:
    ledger, id_, _ = await left(ReservationState.RESERVED)

    with pytest.raises(Exception, match="released"):
        await ledger.dispatch(id_)


class Faster(MemoryLedger):
    """The owner of an attempt goes on while the ledger is asked: it sends, and perhaps is answered."""

    is_answered = False

    async def release(self, reservation_id: str) -> None:
        await self.dispatch(reservation_id)
        await super().release(reservation_id)

    async def in_doubt(self, reservation_id: str) -> object:  # type: ignore[override]
        if self.is_answered:
            await self.settle(reservation_id, Amount(USED_NUSD, 9))
        return await super().in_doubt(reservation_id)


@pytest.mark.parametrize(("is_answered", "charged"), [(False, MOST_NUSD), (True, USED_NUSD)])
async def test_racing_owner_is_charged_by_outcome(
    *,
    is_answered: bool,
    charged: int,
) -> None:
    ledger = Faster([tenant(10**12)])
    ledger.is_answered = is_answered
    one = gate(ledger)
    admission = await admitted(one, request())

    assert await one.lifecycle.abandon(admission.reservation_id)
    assert ledger.statistics().charged_nusd == charged


async def test_released_attempt_settles_without_ledger_charge() -> None:
    ledger = MemoryLedger([tenant(10**12)])
    one = gate(ledger)
    admission = await admitted(one, request())
    await ledger.release(admission.reservation_id)

    charge = await one.lifecycle.settle_again(admission, USAGE)

    assert (charge.cost_nusd, ledger.statistics().charged_nusd) == (USED_NUSD, 0)


@pytest.mark.parametrize("above", [0, 7])
async def test_abandoned_attempt_is_charged_as_billed(above: int) -> None:
    ledger = MemoryLedger([tenant(10**12)])
    one = gate(ledger)
    admission = await admitted(one, request())
    await one.lifecycle.dispatch(admission)

    charge = await one.lifecycle.abandon_billed(admission, MOST_NUSD + above)

    assert (charge.cost_nusd, charge.in_doubt, charge.overbilled) == (
        MOST_NUSD + above,
        not above,
        bool(above),
    )
    assert ledger.statistics().charged_nusd == MOST_NUSD + above
