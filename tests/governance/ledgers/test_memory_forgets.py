"""What the memory ledger forgets early, late or not at all, where moments, limits and those who wait make it hard."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import ReservationConflictError, UnknownReservationError
from agentic_trading.governance.ledger import ReservationRequest
from agentic_trading.governance.ledgers.memory import MemoryLedger, TenantLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import AT, ask, refused, reserved, select, spend, tenant

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


async def test_busy_trace_keeps_open_hours() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.HOUR, nusd=40)], keep=HOUR)
    await spend(ledger, ask(40, at=AT - 20 * MINUTE))  # 12:10
    for minutes in range(30, 90, 5):
        await spend(ledger, ask(1, at=AT + minutes * MINUTE))  # 13:00 to 13:55

    assert (await refused(ledger, ask(40, at=AT + 26 * MINUTE))).left == 0  # 12:56


async def test_rereserved_in_doubt_call_is_forgotten() -> None:
    ledger = MemoryLedger(keep=HOUR)
    await spend(ledger, ask(1, at=AT + 30 * MINUTE))
    again = ask(7, key="again")
    await ledger.release(await reserved(ledger, again))
    await ledger.dispatch(await reserved(ledger, again))
    await ledger.in_doubt(again.reservation_id)

    await spend(ledger, ask(1, at=AT + 75 * MINUTE))

    assert await ledger.state_of(again.reservation_id) is None
    with pytest.raises(UnknownReservationError):
        await ledger.release(again.reservation_id)


async def test_refused_future_request_blocks_no_cleanup() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    await spend(ledger, ask(1, trace="first"))
    await refused(ledger, ask(11, trace="first", at=AT + timedelta(days=3650)))
    for minute in range(600):
        await spend(ledger, ask(1, trace=f"trace-{minute}", at=AT + minute * MINUTE))

    kept = [one for one in await ledger.balances("acme") if one.scope is ScopeKind.TRACE]
    assert len(kept) < 60 + 2 * TenantLedger.tidy_after


async def test_drained_queue_leaves_no_stale_counters() -> None:
    ledger = MemoryLedger([tenant(10)])
    flying = await reserved(ledger, ask(10))

    async with asyncio.TaskGroup() as group:
        leaving = [group.create_task(ledger.wait_for_reservation(ask(10, at=None))) for _ in range(200)]
        await in_line(ledger, 200)
        served = group.create_task(ledger.wait_for_reservation(ask(10)))
        await in_line(ledger, 201)
        for task in leaving:
            task.cancel()
            await ledger.expire_leases()  # the others are looked at
        await in_line(ledger, 1)
        await ledger.release(flying)
        await served

    assert len(ledger._ledger_of("acme").counters.to_deactivate) < TenantLedger.tidy_after


async def test_long_waits_keep_no_empty_counters() -> None:
    clock = SimClock(AT)
    windows = (
        Limit(ScopeKind.AGENT, ANY, Window.MINUTE, nusd=100),
        Limit(ScopeKind.WORKFLOW, ANY, Window.NONE, nusd=100),
    )
    ledger = MemoryLedger([tenant(10), *windows], clock=clock)
    flying = await reserved(ledger, ask(10, at=None))
    wanted = ask(5, key="twice", at=None, agent="waits")

    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.wait_for_reservation(wanted))
        other = group.create_task(turned_away(ledger, ask(6, key="twice", workflow="other")))
        await in_line(ledger, 2)
        for _ in range(100):
            clock.advance_to(clock.now() + MINUTE)
            await ledger.apply_limits(
                "acme", [tenant(10), *windows], version=1
            )  # those who wait are looked at
            await spend(ledger, replace(ask(at=None), amount=Amount(0, 0, 0)))
        await ledger.release(flying)
        await other
    for _ in range(3 * TenantLedger.tidy_after):
        await refused(ledger, ask(11, at=None))

    kept = await ledger.balances("acme")
    assert len(kept) < 20
    assert select(kept, ScopeKind.WORKFLOW, "other", Window.NONE) == []


async def turned_away(ledger: MemoryLedger, wanted: ReservationRequest) -> None:
    with pytest.raises(ReservationConflictError):
        await ledger.wait_for_reservation(wanted)


async def test_refused_waiters_leave_no_counters() -> None:
    ledger = MemoryLedger([tenant(10), Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=50)], counted=())

    for number in range(3 * TenantLedger.tidy_after):
        await ledger.wait_for_reservation(ask(11, agent=f"agent-{number}"))

    assert len(await ledger.balances("acme")) <= 2 * TenantLedger.tidy_after


@pytest.mark.parametrize("tidy_after", [1, 10**9], ids=["at rest", "in use"])
async def test_older_request_does_not_shorten_retention(
    tidy_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TenantLedger, "tidy_after", tidy_after)
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    await spend(ledger, ask(4, at=AT + 59 * MINUTE))
    await spend(ledger, ask(4, trace="other", at=AT + 59 * MINUTE))
    await spend(ledger, ask(4, at=AT))

    await spend(ledger, ask(0, trace="other", at=AT + 110 * MINUTE))

    assert (await refused(ledger, ask(4, at=AT + 110 * MINUTE))).left == 2


async def test_removed_named_limit_counts_only_named() -> None:
    ledger = MemoryLedger(counted=())
    await ledger.apply_limits("acme", [Limit(ScopeKind.AGENT, "big", Window.NONE, nusd=50)], version=1)
    await spend(ledger, ask(10, agent="big"))
    await ledger.apply_limits("acme", [], version=2)

    await spend(ledger, ask(10, agent="big"))
    await spend(ledger, ask(10, agent="small"))

    assert [(one.id, one.spent.nusd) for one in await ledger.balances("acme")] == [("big", 20)]


async def test_removed_wildcard_limit_counts_only_known() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=50)], counted=())
    await spend(ledger, ask(10, agent="known"))
    await ledger.apply_limits("acme", [], version=1)

    await spend(ledger, ask(10, agent="known"))
    await spend(ledger, ask(10, agent="new"))

    assert [(one.id, one.spent.nusd) for one in await ledger.balances("acme")] == [("known", 20)]


async def test_limit_change_leaves_idle_traces_inactive() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=50)])
    for number in range(300):
        await spend(ledger, ask(10, trace=f"trace-{number}"))

    await ledger.apply_limits(
        "acme", [Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=15), tenant(10**6)], version=1
    )

    (table,) = (one for one in ledger._ledger_of("acme").counters._tables if one.kind is ScopeKind.TRACE)
    assert len(table.active) < 2 * TenantLedger.tidy_after
    assert (await refused(ledger, ask(6, trace="trace-7"))).left == 5


async def test_removed_limit_ignores_refused_agent() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=5)], counted=())
    await spend(ledger, ask(5))
    await refused(ledger, ask(10, agent="in-vain"))

    await ledger.apply_limits("acme", [], version=1)
    await spend(ledger, ask(10, agent="in-vain"))

    assert [one.id for one in await ledger.balances("acme")] == ["agent-1"]


async def test_single_use_names_expire_with_window() -> None:
    ledger = MemoryLedger([tenant(10**9)], keep=HOUR)
    for number in range(2000):
        agent, sender, trace = f"agent-{number}", f"principal-{number}", f"trace-{number}"
        await spend(ledger, ask(1, agent=agent, principal=sender, trace=trace))
    assert len(await ledger.balances("acme")) > 2000

    await spend(ledger, ask(1, at=AT + timedelta(days=2)))

    assert len(await ledger.balances("acme")) == 2  # the tenant's total, and the day of the last agent
    assert len(ledger._ledger_of("acme").calls.past) == 1
