"""What only the memory ledger promises: what it forgets, and what it never does."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.governance.errors import (
    ClosedWindowError,
    ReservationConflictError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import Reservation, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import (
    AT,
    ask,
    balance,
    held,
    of_tenant,
    refused,
    reserved,
    select,
    spend,
    tenant,
)

HOUR = timedelta(hours=1)
EVERY_SCOPE = tuple(Limit(kind, ANY, Window.DAY, calls=10**6) for kind in ScopeKind)


async def test_old_windows_and_calls_are_dropped() -> None:
    ledger = MemoryLedger(EVERY_SCOPE, keep=timedelta(days=1))

    for hour in range(24 * 90):
        await spend(ledger, ask(1, trace=f"trace-{hour}", agent=f"agent-{hour % 7}", at=AT + hour * HOUR))

    kept = await ledger.balances("acme")
    assert len(select(kept, ScopeKind.TENANT, "acme", Window.DAY)) <= 3
    assert len(kept) < 150
    assert len(ledger._ledger_of("acme").calls.past) < 30


async def test_ten_thousand_scopes_are_counted_separately() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=5)])
    for number in range(10_000):
        await spend(ledger, ask(3, agent=f"agent-{number}", at=AT + number * timedelta(milliseconds=1)))

    for number in (0, 201, 9_999):
        assert (await refused(ledger, ask(3, agent=f"agent-{number}"))).left == 2


async def test_closed_window_reservation_is_rejected() -> None:
    ledger = MemoryLedger([tenant(10, window=Window.DAY)], keep=HOUR)
    await spend(ledger, ask(10))
    await spend(ledger, ask(1, at=AT + timedelta(days=2)))

    with pytest.raises(ClosedWindowError) as e:
        await ledger.reserve(ask(10, key="late"))

    assert (e.value.key, e.value.at) == ("late", AT)
    assert e.value.open_since == AT + timedelta(days=2) - HOUR


async def test_unserved_future_request_closes_no_window() -> None:
    ledger = MemoryLedger([tenant(10, window=Window.NONE)], keep=HOUR)
    ahead = AT + timedelta(days=60)

    await refused(ledger, ask(11, at=ahead))
    id_ = await reserved(ledger, ask(8))
    await held(ledger, ask(5, at=ahead))
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.wait_for_reservation(ask(5, at=ahead)))
        await in_line(ledger, 1)
        leaving.cancel()
    await ledger.release(id_)

    await spend(ledger, ask(10))


async def test_forgotten_in_doubt_call_stays_spent() -> None:
    ledger = MemoryLedger([tenant(10)], keep=HOUR)
    doubtful = await reserved(ledger, ask(7))
    await ledger.dispatch(doubtful)
    await ledger.in_doubt(doubtful)
    assert (await of_tenant(ledger)).in_doubt == Amount(7, 0)

    await spend(ledger, ask(1, at=AT + 2 * HOUR))

    found = await of_tenant(ledger)
    assert (found.spent, found.in_doubt) == (Amount(8, 0, 2), Amount(0, 0, 0))


async def test_spending_continues_during_long_balance_scan() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=1), tenant(10**6)])
    for number in range(1_000):
        await spend(ledger, ask(1, trace=f"trace-{number}"))
    late: list[str] = []

    async def go_on() -> None:
        late.append(await spend(ledger, ask(1, trace="late")))

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(ledger.balances("acme"))
        group.create_task(go_on())
        limited = await ledger.balances("acme", limited=True)
        assert not looking.done()

    assert late
    assert len(looking.result()) >= 1_001
    assert [one.id for one in limited] == ["acme"]


async def test_refused_tenants_are_forgotten() -> None:
    ledger = MemoryLedger([tenant(0)])

    for number in range(3_000):
        await refused(ledger, ask(1, tenant=f"stranger-{number}"))

    assert len(ledger._ledgers) < 1_100


async def test_refused_requests_leave_no_counters() -> None:
    ledger = MemoryLedger([tenant(10)], keep=HOUR)
    await spend(ledger, ask(10))
    own = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=100),)

    for number in range(3000):
        await refused(ledger, ask(1, key=f"in-vain-{number}", limits=own))

    assert len(await ledger.balances("acme")) < 1100
    assert (await of_tenant(ledger)).spent.nusd == 10


async def test_ended_windows_are_dropped_under_load() -> None:
    ledger = MemoryLedger([tenant(10**6, window=Window.MINUTE)], keep=HOUR)
    flying = await reserved(ledger, ask(1))
    for minute in range(1, 600):
        following = await reserved(ledger, ask(1, at=AT + timedelta(minutes=minute)))
        await ledger.dispatch(flying)
        await ledger.settle(flying, Amount(1, 0))
        flying = following

    assert len(select(await ledger.balances("acme"), ScopeKind.TENANT, "acme", Window.MINUTE)) < 90


async def test_counter_is_kept_for_late_settlement() -> None:
    ledger = MemoryLedger([tenant(10)], keep=HOUR)
    nothing = replace(ask(), amount=Amount(0, 0, 0))
    await ledger.dispatch(await reserved(ledger, nothing))
    await ledger.in_doubt(nothing.reservation_id)
    await spend(ledger, ask(0, tenant="other", at=AT + timedelta(minutes=50)))

    await ledger.settle(nothing.reservation_id, Amount(7, 0))

    assert (await of_tenant(ledger)).spent.nusd == 7


async def test_recent_past_timestamp_reuses_window() -> None:
    ledger = MemoryLedger([tenant(10, window=Window.MINUTE)], keep=HOUR)
    await spend(ledger, ask(7))
    await spend(ledger, ask(7, at=AT + timedelta(minutes=30)))

    assert (await refused(ledger, ask(4))).left == 3
    await spend(ledger, ask(3))
    assert (
        await balance(ledger, ScopeKind.TENANT, "acme", Window.MINUTE, "2026-01-02T12:30+0000")
    ).spent.nusd == 10


async def test_settled_call_is_forgotten_after_retention() -> None:
    ledger = MemoryLedger(keep=HOUR)
    id_ = await spend(ledger, ask(1, key="old"))
    await spend(ledger, ask(1, at=AT + HOUR))
    again = await ledger.settle(id_, Amount(9, 0))

    await spend(ledger, ask(1, at=AT + 2 * HOUR))

    assert again.charged == Amount(1, 0)
    with pytest.raises(UnknownReservationError):
        await ledger.settle(id_, Amount(1, 0))


async def test_call_in_flight_keeps_counters() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    first = await reserved(ledger, ask(8))
    await ledger.dispatch(first)

    await spend(ledger, ask(1, trace="other", at=AT + timedelta(days=9)))

    assert (await held(ledger, ask(8, at=AT + timedelta(days=9)))).left == 2
    assert (await ledger.settle(first, Amount(5, 0))).charged == Amount(5, 0)
    await spend(ledger, ask(5, at=AT + timedelta(days=9)))


async def test_only_idle_traces_are_forgotten() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    await spend(ledger, ask(9, trace="rests"))
    for minutes in range(0, 180, 10):
        await spend(ledger, ask(0, trace="goes on", at=AT + timedelta(minutes=minutes)))
    await spend(ledger, ask(9, trace="goes on", at=AT + timedelta(minutes=180)))

    assert select(await ledger.balances("acme"), ScopeKind.TRACE, "rests", Window.NONE) == []
    assert (await refused(ledger, ask(2, trace="goes on", at=AT + timedelta(minutes=181)))).left == 1


async def test_total_without_window_is_never_dropped() -> None:
    ledger = MemoryLedger([tenant(10)], keep=HOUR)
    await spend(ledger, ask(9))
    await spend(ledger, ask(0, tenant="other", at=AT + timedelta(days=400)))

    assert (await refused(ledger, ask(2, at=AT + timedelta(days=400)))).left == 1


async def test_idle_agent_is_dropped_after_window() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.HOUR, calls=9)], keep=HOUR, counted=())
    await spend(ledger, ask(agent="rests"))
    for hours in range(1, 5):
        await spend(ledger, ask(agent="works", at=AT + hours * HOUR))

    kept = await ledger.balances("acme")

    assert {one.id for one in kept} == {"works"}
    assert len(kept) <= 3


async def test_named_limit_counts_only_named_agent() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, "big", Window.DAY, calls=1)], counted=())

    await spend(ledger, ask(agent="small"))
    await spend(ledger, ask(agent="big"))

    assert {one.id for one in await ledger.balances("acme")} == {"big"}


async def test_lower_limit_wins_for_each_unit() -> None:
    ledger = MemoryLedger([
        Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=10, calls=3),
        Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=20, calls=2, tokens=5),
    ])
    await spend(ledger, ask(1))

    found = await of_tenant(ledger, Window.DAY)

    assert found.ceiling.units == (10, 5, 2)


async def test_request_may_omit_scopes() -> None:
    ledger = MemoryLedger([tenant(10), Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=1)])
    alone = replace(ask(4), scope_ids={ScopeKind.TENANT: "acme"})

    await spend(ledger, alone)
    await spend(ledger, replace(alone, key="another"))

    assert (await of_tenant(ledger)).spent.nusd == 8
    assert isinstance(await ledger.reserve(replace(ask(4), scope_ids={})), Reservation)


async def test_request_limits_cover_old_and_new_counters() -> None:
    ledger = MemoryLedger([tenant(100, window=Window.DAY)])
    await spend(ledger, ask(30))
    own = (tenant(40, window=Window.DAY), Limit(ScopeKind.TRACE, ANY, Window.HOUR, nusd=45))

    assert (await refused(ledger, ask(11, limits=own))).left == 10
    await spend(ledger, ask(10, limits=own))
    assert (await refused(ledger, ask(6, limits=(own[1],)))).left == 5
    await spend(ledger, ask(60))


async def test_request_limit_counts_all_remembered_calls() -> None:
    ledger = MemoryLedger([tenant(100)])
    await spend(ledger, ask(10))
    await ledger.dispatch(await reserved(ledger, ask(20, key="doubtful")))
    await ledger.in_doubt("acme:doubtful:1")
    flying = await reserved(ledger, ask(30))
    own = (Limit(ScopeKind.WORKFLOW, ANY, Window.HOUR, nusd=1000),)

    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.wait_for_reservation(ask(50)))
        await in_line(ledger, 1)
        await held(ledger, ask(100 - 60 + 1, limits=own))
        await ledger.release(flying)

    found = await balance(ledger, ScopeKind.WORKFLOW, "analysis", Window.HOUR)
    assert (found.spent.nusd, found.in_doubt.nusd, found.held.nusd) == (30, 20, 50)


async def test_conflicting_duplicate_in_queue_is_rejected() -> None:
    ledger = MemoryLedger([tenant(10)])
    first = await reserved(ledger, ask(8))
    wanted = ask(5, key="twice")

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(wanted))
        same = group.create_task(ledger.wait_for_reservation(wanted))
        other = group.create_task(told(ledger.wait_for_reservation(replace(wanted, amount=Amount(6, 0)))))
        await in_line(ledger, 3)
        await ledger.release(first)

    assert (
        waiting.result()
        == same.result()
        == Reservation("acme:twice:1", Amount(5, 0), ReservationState.RESERVED)
    )
    assert isinstance(other.result(), ReservationConflictError)
    assert (await of_tenant(ledger)).held == Amount(5, 0, 1)


async def told(answer: Awaitable[object]) -> object:
    try:
        return await answer
    except ReservationConflictError as e:
        return e


async def test_cancelled_refused_waiter_holds_no_budget() -> None:
    ledger = MemoryLedger([tenant(10)])
    first = await reserved(ledger, ask(8))
    await ledger.dispatch(first)

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.wait_for_reservation(ask(5)))
        await in_line(ledger, 1)
        await ledger.in_doubt(first)
        leaving.cancel()

    assert leaving.cancelled()
    assert (ledger.statistics().waiting, ledger.statistics().in_flight) == (0, 0)


async def test_settled_request_does_not_wait_again() -> None:
    ledger = MemoryLedger([tenant(10)])
    wanted = ask(5)
    await spend(ledger, wanted)

    assert await ledger.wait_for_reservation(wanted) == Reservation(
        wanted.reservation_id, wanted.amount, ReservationState.SETTLED
    )


async def test_counters_of_waiters_are_kept() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    first = await reserved(ledger, ask(8))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(5)))
        await in_line(ledger, 1)
        await spend(ledger, ask(1, trace="other", at=AT + timedelta(days=9)))
        await ledger.release(first)

    assert isinstance(waiting.result(), Reservation)
    assert (await balance(ledger, ScopeKind.TRACE, "trace-1", Window.NONE)).held.nusd == 5


async def test_total_accepts_timestamps_from_year_1() -> None:
    ledger = MemoryLedger([tenant(10)])

    await spend(ledger, ask(1, at=AT.replace(year=1)))
    await spend(ledger, ask(1))

    assert (await of_tenant(ledger)).spent.nusd == 2
