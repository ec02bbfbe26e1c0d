"""What the server answers is told as it is, and sums set aside there come to an end."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.ledger import (
    Declined,
    LedgerEntry,
    Reservation,
    ReservationState,
)
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import RULES, Case


async def test_a_call_in_doubt_twice_is_charged_to_what_was_set_aside_once() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True
    id_ = await reserved(case.ledger, ask(50))
    await case.ledger.dispatch(id_)

    assert await case.ledger.in_doubt(id_) == await case.ledger.in_doubt(id_)

    assert await reserved(case.ledger, ask(50))


async def test_what_waits_for_headroom_waits_at_the_server() -> None:
    case = Case(tenant(60))
    first = await reserved(case.ledger, ask(60))

    async with asyncio.timeout(2), asyncio.TaskGroup() as group:
        waits = group.create_task(case.ledger.wait_for_reservation(ask(60)))
        await in_line(case.ledger, 1)
        await case.ledger.release(first)

    assert isinstance(waits.result(), Reservation)


async def test_what_the_server_knows_is_told_as_it_is() -> None:
    case = Case(rules=RULES)
    id_ = await case.begun()

    assert await case.ledger.state_of(id_) is ReservationState.DISPATCHED
    assert await case.ledger.balances("acme") == await case.server.balances("acme")
    assert await case.ledger.checkpoint("acme") == await case.server.checkpoint("acme")
    assert case.ledger.statistics() == case.server.statistics()


async def test_a_ledger_that_is_told_a_log_again_is_told_at_the_server() -> None:
    case = Case()
    booked = LedgerEntry(ask(60), ReservationState.SETTLED, Amount(50, 0))

    position = await case.ledger.restore("acme", [booked])

    assert position == await case.server.checkpoint("acme")
    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_a_sum_that_was_never_booked_is_forgotten_and_leases_go_on_to_end() -> None:
    case = Case(rules=RULES)
    case.server.loses_allowances = True
    id_ = await case.begun()
    case.server.loses_allowances = False
    case.clock.advance_to(AT + timedelta(seconds=301))

    assert [one.reservation_id for one in await case.ledger.expire_leases()] == [id_]
    await case.begun()

    assert (await of_tenant(case.server)).held.nusd == 60 + 100


async def test_a_sum_in_use_is_kept_until_its_calls_are_over() -> None:
    case = Case(rules=RULES)
    first = await case.begun()
    await case.ledger.settle(first, Amount(60, 0))
    case.server.away = True
    id_ = await reserved(case.ledger, ask(50))
    await case.ledger.dispatch(id_)
    case.server.away = False
    case.clock.advance_to(AT + timedelta(seconds=301))

    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).held.nusd == 100
    await case.ledger.settle(id_, Amount(20, 0))
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).spent.nusd == 80


async def test_who_is_refused_by_the_server_holds_nothing_and_sets_nothing_aside() -> None:
    case = Case(tenant(50), rules=RULES)

    assert isinstance(await case.ledger.reserve(ask(60)), Declined)

    assert case.server.statistics().in_flight == 0


async def test_two_who_book_what_is_owed_at_once_book_it_once() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.settle(id_, Amount(40, 0))
    case.server.away = False

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(case.ledger.expire_leases())

    assert (await of_tenant(case.server)).spent == Amount(40, 0)


async def test_a_ledger_that_is_shut_lets_nothing_begin_and_what_has_begun_end() -> None:
    case = Case()
    id_ = await case.begun()

    await case.ledger.fence("acme")

    with pytest.raises(LedgerRolledBackError):
        await case.ledger.reserve(ask(1))
    await case.ledger.settle(id_, Amount(45, 0))
    await case.ledger.restore("acme", [])
    assert (await of_tenant(case.server)).spent == Amount(45, 0)
