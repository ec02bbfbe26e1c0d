"""What only the memory ledger promises of its clock, of limits that change, and of what is booked again."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import (
    LedgerRolledBackError,
    ReservationRequestError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import ExpiredReservation, LedgerEntry, Reservation, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import AT, ask, balance, held, of_tenant, refused, reserved, spend, tenant

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


async def test_leases_follow_the_ledger_clock() -> None:
    clock = SimClock(AT)
    ledger = MemoryLedger([tenant(100)], clock=clock, reserved_lease_s=60.0)
    waits = await reserved(ledger, ask(10))
    sent = await reserved(ledger, ask(20))
    await ledger.dispatch(sent, lease_s=120.0)

    found = []
    for seconds in (59, 60, 119, 120):
        clock.advance_to(AT + timedelta(seconds=seconds))
        found.append(await ledger.expire_leases())
        await ledger.acknowledge_expired(waits)

    assert found == [
        [],
        [ExpiredReservation(waits, ReservationState.RELEASED, Amount(10, 0))],
        [],
        [ExpiredReservation(sent, ReservationState.IN_DOUBT, Amount(20, 0))],
    ]
    with pytest.raises(ReservationStateError) as e:
        await ledger.dispatch(waits)
    assert e.value.state is ReservationState.RELEASED


async def test_expired_reservations_are_counted_by_state() -> None:
    ledger = MemoryLedger([tenant(100)], reserved_lease_s=0)
    await reserved(ledger, ask(10))
    await ledger.dispatch(await reserved(ledger, ask(20)), lease_s=0)

    await ledger.expire_leases()

    found = ledger.statistics()
    assert (found.released, found.in_doubt, found.in_flight, found.charged_nusd) == (1, 1, 0, 20)


async def test_missing_timestamp_uses_ledger_clock() -> None:
    ledger = MemoryLedger([tenant(100, window=Window.MINUTE)], clock=SimClock(AT))

    await spend(ledger, ask(60, at=None))

    assert (await refused(ledger, ask(50, at=None))).left == 40
    assert (
        await balance(ledger, ScopeKind.TENANT, "acme", Window.MINUTE)
    ).window_id == "2026-01-02T12:30+0000"


async def test_waiter_gets_window_of_serving_time() -> None:
    clock = SimClock(AT)
    ledger = MemoryLedger([tenant(100, window=Window.DAY)], clock=clock)
    await ledger.dispatch(await reserved(ledger, ask(80, at=None)), lease_s=1e6)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90, at=None)))
        fixed = group.create_task(ledger.wait_for_reservation(ask(90, at=AT)))
        await in_line(ledger, 2)
        clock.advance_to(AT + DAY)
        await ledger.expire_leases()
        await in_line(ledger, 1)
        fixed.cancel()

    assert isinstance(waiting.result(), Reservation)
    assert (await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-03")).held.nusd == 90


async def test_queue_reports_waiting_since() -> None:
    clock = SimClock(AT)
    ledger = MemoryLedger([tenant(100)], clock=clock)
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        for place, seconds in enumerate((1, 2), start=1):
            clock.advance_to(AT + timedelta(seconds=seconds))
            group.create_task(ledger.wait_for_reservation(ask(40, priority=10 * place)))
            await in_line(ledger, place)
        line = await ledger.waiting("acme")
        await ledger.release(first)

    assert [(one.priority, one.since) for one in line] == [
        (20, AT + timedelta(seconds=2)),
        (10, AT + timedelta(seconds=1)),
    ]


async def test_new_limits_count_earlier_calls() -> None:
    ledger = MemoryLedger()
    first = ask(10, tokens=3, key="known", principal="desk-a")
    await spend(ledger, first)
    limits = [Limit(kind, ANY, window, calls=1) for kind in ScopeKind for window in Window]

    await ledger.apply_limits("acme", limits, version=1)

    found = await ledger.balances("acme")
    assert {(one.scope, one.window) for one in found} == {
        (kind, window) for kind in ScopeKind for window in Window
    }
    assert {one.spent for one in found} == {Amount(10, 3)}
    await refused(ledger, ask(key="known", attempt=2))


async def test_reapplied_limit_finds_old_counter() -> None:
    ledger = MemoryLedger([tenant(100, window=Window.HOUR)])
    await spend(ledger, ask(60))
    await ledger.apply_limits("acme", [tenant(1000)], version=1)
    await spend(ledger, ask(30))

    await ledger.apply_limits("acme", [tenant(100, window=Window.HOUR)], version=2)

    assert (await refused(ledger, ask(11))).left == 10
    assert (await balance(ledger, ScopeKind.TENANT, "acme", Window.NONE)).spent.nusd == 90


async def test_new_limit_skips_released_and_forgotten_calls() -> None:
    ledger = MemoryLedger(keep=HOUR)
    await spend(ledger, ask(60))
    await spend(ledger, ask(5, at=AT + 3 * HOUR))
    await ledger.release(await reserved(ledger, ask(7, at=AT + 3 * HOUR)))

    await ledger.apply_limits("acme", [tenant(100)], version=1)

    assert (await of_tenant(ledger)).spent == Amount(5, 0)


async def test_waiter_is_held_by_new_limit() -> None:
    ledger = MemoryLedger([tenant(100)])
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(50)))
        await in_line(ledger, 1)
        await ledger.apply_limits("acme", [tenant(1000), tenant(120, window=Window.DAY)], version=1)
        (found,) = await ledger.waiting("acme")
        waiting.cancel()

    assert (found.held.window, found.held.left) == (Window.DAY, 40)


async def test_newer_ledger_fails_older_checkpoint() -> None:
    clock = SimClock(AT)
    older = MemoryLedger(clock=clock)
    await spend(older, ask(1))
    clock.advance_to(AT + HOUR)
    younger = MemoryLedger(clock=clock)
    for _ in range(5):
        await spend(younger, ask(1))

    await younger.require_at_least("acme", await older.checkpoint("acme"))

    with pytest.raises(LedgerRolledBackError, match="had come to epoch 1, step 3") as e:
        await younger.reserve(ask(1))
    assert "now it is at epoch 1, step 15" in str(e.value)


async def test_old_restored_charge_is_counted() -> None:
    ledger = MemoryLedger([tenant(100), tenant(100, window=Window.MONTH)], keep=HOUR)
    await spend(ledger, ask(1, tenant="other", at=AT + 20 * DAY))
    long_ago = ask(40)

    await ledger.restore("acme", [LedgerEntry(long_ago, ReservationState.SETTLED, Amount(40, 0))])

    assert (await refused(ledger, ask(61, at=AT + 20 * DAY))).window is Window.NONE
    assert (await balance(ledger, ScopeKind.TENANT, "acme", Window.MONTH)).spent.nusd == 40


async def test_last_restored_entry_wins() -> None:
    ledger = MemoryLedger([tenant(100)])
    wanted = ask(40)

    await ledger.restore(
        "acme",
        [
            LedgerEntry(wanted, ReservationState.IN_DOUBT, wanted.amount),
            LedgerEntry(wanted, ReservationState.SETTLED, Amount(9, 0)),
        ],
    )

    found = await of_tenant(ledger)
    assert (found.spent, found.in_doubt) == (Amount(9, 0), Amount(0, 0, 0))


@pytest.mark.parametrize(
    ("booking", "complaint"),
    [
        (LedgerEntry(ask(1, tenant="other"), ReservationState.SETTLED, Amount(1, 0)), "Allowed: 'acme'"),
        (
            LedgerEntry(ask(1, at=None), ReservationState.SETTLED, Amount(1, 0)),
            "Set `at` in its request",
        ),
        (LedgerEntry(ask(1), ReservationState.RESERVED, Amount(1, 0)), "Allowed: settled, in_doubt"),
    ],
)
async def test_invalid_restore_entry_changes_no_balance(booking: LedgerEntry, complaint: str) -> None:
    ledger = MemoryLedger([tenant(100)])
    await spend(ledger, ask(30))

    with pytest.raises(ReservationRequestError, match=complaint):
        await ledger.restore("acme", [LedgerEntry(ask(1), ReservationState.SETTLED, Amount(1, 0)), booking])

    assert (await of_tenant(ledger)).spent == Amount(30, 0)


async def test_restore_serves_waiting_request() -> None:
    ledger = MemoryLedger([tenant(100)])
    flying = ask(80)
    await reserved(ledger, flying)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90)))
        await in_line(ledger, 1)
        await ledger.restore("acme", [LedgerEntry(flying, ReservationState.SETTLED, Amount(5, 0))])

    assert isinstance(waiting.result(), Reservation)
    assert (await of_tenant(ledger)).held.nusd == 90


async def test_waiter_cancelled_at_rollback_leaves_queue() -> None:
    ledger = MemoryLedger([tenant(100)])
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.wait_for_reservation(ask(90)))
        await in_line(ledger, 1)
        found = await ledger.checkpoint("acme")
        await ledger.require_at_least("acme", replace(found, epoch=9))
        leaving.cancel()

    assert leaving.cancelled()
    assert await ledger.waiting("acme") == []


async def test_dispatch_of_unknown_tenant_fails() -> None:
    ledger = MemoryLedger()

    with pytest.raises(UnknownReservationError):
        await ledger.dispatch("nobody:call:1")
    assert await ledger.state_of("nobody:call:1") is None


async def test_unusual_tenant_names_stay_distinct() -> None:
    ledger = MemoryLedger([tenant(100)])
    for name in ("a", "a:b", "a%3Ab"):
        await spend(ledger, ask(60, key="same", tenant=name))

    for name in ("a", "a:b", "a%3Ab"):
        (found,) = [one for one in await ledger.balances(name) if one.scope is ScopeKind.TENANT]
        assert (found.id, found.spent.nusd) == (name, 60)
        assert (await refused(ledger, ask(50, tenant=name))).left == 40


async def test_ledger_can_be_closed_twice() -> None:
    ledger = MemoryLedger()

    await ledger.aclose()
    await ledger.aclose()

    assert (await ledger.checkpoint("acme")).sequence == 0
    await reserved(ledger, ask(1))


async def test_renewed_reservation_gets_new_lease() -> None:
    clock = SimClock(AT)
    ledger = MemoryLedger([tenant(100)], clock=clock, reserved_lease_s=60.0)
    wanted = ask(60)
    await reserved(ledger, wanted)
    clock.advance_to(AT + timedelta(seconds=60))
    await ledger.expire_leases()
    await reserved(ledger, wanted)

    clock.advance_to(AT + timedelta(seconds=119))

    assert await ledger.expire_leases() == []
    assert (await held(ledger, ask(50))).left == 40
