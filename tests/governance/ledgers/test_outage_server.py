"""What the server answers is returned as it is."""

import asyncio

import pytest

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.ledger import (
    Declined,
    LedgerCheckpoint,
    LedgerEntry,
    Reservation,
    ReservationState,
)
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import Case


async def test_waiters_are_queued_on_the_server() -> None:
    case = Case(tenant(60))
    first = await reserved(case.ledger, ask(60))

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        waits = group.create_task(case.ledger.wait_for_reservation(ask(60)))
        await in_line(case.ledger, 1)
        await case.ledger.release(first)

    assert isinstance(waits.result(), Reservation)


async def test_server_state_is_returned_unchanged() -> None:
    case = Case()
    id_ = await case.begun()

    assert await case.ledger.state_of(id_) is ReservationState.DISPATCHED
    assert await case.ledger.balances("acme") == await case.server.balances("acme")
    assert await case.ledger.checkpoint("acme") == await case.server.checkpoint("acme")
    assert case.ledger.statistics() == case.server.statistics()


async def test_restore_is_forwarded_to_the_server() -> None:
    case = Case()
    booked = LedgerEntry(ask(60), ReservationState.SETTLED, Amount(50, 0))

    position = await case.ledger.restore("acme", [booked])

    assert position == await case.server.checkpoint("acme")
    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_declined_reservation_holds_no_budget() -> None:
    case = Case(tenant(50))

    assert isinstance(await case.ledger.reserve(ask(60)), Declined)

    assert case.server.statistics().in_flight == 0


async def test_concurrent_sweeps_post_charge_once() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.settle(id_, Amount(40, 0))
    case.server.away = False

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(case.ledger.expire_leases())

    assert (await of_tenant(case.server)).spent == Amount(40, 0)


async def test_fenced_ledger_settles_but_never_reserves() -> None:
    case = Case()
    id_ = await case.begun()

    await case.ledger.fence("acme")

    with pytest.raises(LedgerRolledBackError):
        await case.ledger.reserve(ask(1))
    await case.ledger.settle(id_, Amount(45, 0))
    await case.ledger.restore("acme", [])
    assert (await of_tenant(case.server)).spent == Amount(45, 0)


async def test_limits_and_checkpoints_are_forwarded() -> None:
    case = Case()

    await case.ledger.apply_limits("acme", [tenant(10)], version=1)
    assert isinstance(await case.server.reserve(ask(60)), Declined)

    await case.ledger.require_at_least("acme", LedgerCheckpoint(7, "another", 1))
    with pytest.raises(LedgerRolledBackError):
        await case.server.reserve(ask(1))


async def test_closing_posts_pending_charges() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.settle(id_, Amount(40, 0))
    case.server.away = False

    await case.ledger.aclose()

    assert (await of_tenant(case.server)).spent == Amount(40, 0)


async def test_closing_works_while_server_is_away() -> None:
    case = Case()
    case.server.away = True

    await case.ledger.aclose()
