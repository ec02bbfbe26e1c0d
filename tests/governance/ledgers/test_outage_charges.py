"""What was told is charged, whatever becomes of the server meanwhile: rebuilt, away once more, its answers lost."""

import asyncio
from datetime import timedelta

import pytest
import structlog

from agentic_trading.governance.errors import (
    LedgerUnavailableError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import LedgerEntry, ReservationState
from agentic_trading.governance.limits import Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import Case

PAID = Amount(70, 5)


async def test_call_unknown_after_rebuild_is_charged() -> None:
    case = Case()
    id_ = await case.begun()
    await case.rebuilt()

    assert (await case.ledger.settle(id_, PAID)).charged == PAID

    found = await of_tenant(case.server)
    assert (found.spent, found.held) == (PAID, Amount(0, 0, 0))


async def test_doubt_unknown_after_rebuild_is_charged() -> None:
    case = Case()
    id_ = await case.begun()
    await case.rebuilt()

    await case.ledger.in_doubt(id_)

    assert (await of_tenant(case.server)).spent == Amount(60, 0, 1)


async def test_charge_counts_in_reservation_day() -> None:
    case = Case(tenant(1000, window=Window.DAY))
    id_ = await case.begun(at=None)
    await case.rebuilt()
    case.clock.advance_to(AT + timedelta(days=1))

    await case.ledger.settle(id_, PAID)

    day = await of_tenant(case.server, Window.DAY)
    assert (day.window_id, day.spent) == (f"{AT:%Y-%m-%d}", PAID)


async def test_charge_is_posted_without_headroom() -> None:
    case = Case()
    id_ = await case.begun()
    await case.rebuilt([LedgerEntry(ask(2000, key="other"), ReservationState.SETTLED, Amount(2000, 0))])

    await case.ledger.settle(id_, PAID)

    assert (await of_tenant(case.server)).spent == Amount(2070, 5, 2)


async def test_charge_is_posted_past_waiters() -> None:
    case = Case(tenant(100))
    id_ = await case.begun(30)
    await case.rebuilt()
    await case.begun(80)

    async with asyncio.TaskGroup() as group:
        waits = group.create_task(case.ledger.wait_for_reservation(ask(50)))
        await in_line(case.ledger, 1)
        await case.ledger.settle(id_, Amount(30, 0))
        assert (await of_tenant(case.server)).spent.nusd == 30
        waits.cancel()


@pytest.mark.parametrize("ends", ["settle", "in_doubt"])
@pytest.mark.parametrize("kind", ["fails", "loses"])
@pytest.mark.parametrize("step", ["reserve", "dispatch", "settle"])
async def test_charged_once_when_server_fails_twice(ends: str, kind: str, step: str) -> None:
    case = Case()
    id_ = await case.begun()
    await case.rebuilt()
    setattr(case.server, kind, {step})

    told = await (case.ledger.settle(id_, Amount(60, 0)) if ends == "settle" else case.ledger.in_doubt(id_))
    setattr(case.server, kind, set())
    for _ in range(2):
        await case.ledger.expire_leases()

    assert told.charged == Amount(60, 0)
    found = await of_tenant(case.server)
    assert (found.spent, found.held.nusd) == (Amount(60, 0, 1), 0)


async def test_rereserved_call_is_charged_not_dispatched() -> None:
    case = Case()
    wanted = ask(60)
    id_ = await case.begun_with(wanted)
    await case.rebuilt()
    await reserved(case.server, wanted)

    await case.ledger.settle(id_, PAID)

    assert (await of_tenant(case.server)).spent == PAID
    with pytest.raises(ReservationStateError):
        await case.server.dispatch(id_)


async def test_unsent_call_is_not_charged() -> None:
    case = Case()
    id_ = await reserved(case.ledger, ask(60))

    with pytest.raises(ReservationStateError):
        await case.ledger.settle(id_, PAID)
    await case.rebuilt()
    with pytest.raises(UnknownReservationError):
        await case.ledger.settle(id_, PAID)


async def test_unpostable_charge_is_logged_once() -> None:
    case = Case()
    case.server.away = True
    await case.ledger.settle("acme:nobody:1", PAID)
    case.server.away = False

    with structlog.testing.capture_logs() as logs:
        await case.ledger.expire_leases()
        await case.ledger.expire_leases()

    assert [(line["event"], line["nusd"]) for line in logs] == [("charge_not_posted", 70)]


async def test_full_ledger_charge_is_retried() -> None:
    case = Case()
    id_ = await case.begun()
    await case.rebuilt()
    case.server.is_full = True
    assert (await case.ledger.settle(id_, PAID)).charged == PAID
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.expire_leases()
    case.server.is_full = False
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).spent == PAID


async def test_rolled_back_tenant_spares_other_charges() -> None:
    case = Case()
    lost, other = await case.begun(), await case.begun(tenant="other")
    case.server.away = True
    await case.ledger.settle(lost, PAID)
    await case.ledger.settle(other, PAID)
    case.server.away = False
    await case.rebuilt()
    await case.lose()

    await case.ledger.expire_leases()

    assert await case.server.state_of(other) is ReservationState.SETTLED
    await case.server.restore("acme", [])
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).spent == PAID


async def test_late_answer_replaces_pending_doubt() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.in_doubt(id_)

    told = await case.ledger.settle(id_, Amount(5, 0))
    later = await case.ledger.in_doubt(id_)

    case.server.away = False
    await case.ledger.expire_leases()
    found = await of_tenant(case.server)
    assert (told.charged, later) == (Amount(5, 0), told)
    assert (found.spent.nusd, found.in_doubt.nusd) == (5, 0)


async def test_answer_replaces_doubt_being_posted() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.in_doubt(id_)
    case.server.away = False
    case.server.slow["in_doubt"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.expire_leases())
        await asyncio.sleep(0)
        await case.ledger.settle(id_, Amount(5, 0))
        answered.set()

    found = await of_tenant(case.server)
    assert (found.spent.nusd, found.in_doubt.nusd) == (5, 0)
    assert await case.owes() == 0


async def test_cancelled_settlement_is_still_charged() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.slow["settle"] = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        settles = group.create_task(case.ledger.settle(id_, PAID))
        await asyncio.sleep(0)
        settles.cancel()
    case.server.slow.clear()
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).spent == PAID


async def test_pending_charge_prevents_release() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.settle(id_, PAID)

    with pytest.raises(ReservationStateError):
        await case.ledger.release(id_)
    case.server.away = False
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).spent == PAID
