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


async def test_a_busy_trace_keeps_the_hours_that_can_still_be_asked_about() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.HOUR, nusd=40)], keep=HOUR)
    await spend(ledger, ask(40, at=AT - 20 * MINUTE))  # 12:10
    for minutes in range(30, 90, 5):
        await spend(ledger, ask(1, at=AT + minutes * MINUTE))  # 13:00 to 13:55

    assert (await refused(ledger, ask(40, at=AT + 26 * MINUTE))).left == 0  # 12:56


async def test_a_call_given_back_once_and_in_doubt_when_asked_again_is_forgotten_like_any_other() -> None:
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


async def test_an_ask_in_vain_for_a_far_moment_keeps_nothing_that_came_after() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    await spend(ledger, ask(1, trace="first"))
    await refused(ledger, ask(11, trace="first", at=AT + timedelta(days=3650)))
    for minute in range(600):
        await spend(ledger, ask(1, trace=f"trace-{minute}", at=AT + minute * MINUTE))

    kept = [one for one in await ledger.balances("acme") if one.scope is ScopeKind.TRACE]
    assert len(kept) < 60 + 2 * TenantLedger.tidy_after


async def test_a_long_line_that_is_served_or_left_leaves_nothing_behind() -> None:
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


async def test_who_waits_over_minutes_and_who_is_turned_away_keep_no_counter_that_counts_nothing() -> None:
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


async def test_who_is_refused_while_willing_to_wait_leaves_no_counter() -> None:
    ledger = MemoryLedger([tenant(10), Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=50)], counted=())

    for number in range(3 * TenantLedger.tidy_after):
        await ledger.wait_for_reservation(ask(11, agent=f"agent-{number}"))

    assert len(await ledger.balances("acme")) <= 2 * TenantLedger.tidy_after


@pytest.mark.parametrize("tidy_after", [1, 10**9], ids=["at rest", "in use"])
async def test_a_late_ask_for_an_older_moment_shortens_no_ones_rest(
    tidy_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TenantLedger, "tidy_after", tidy_after)
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10)], keep=HOUR)
    await spend(ledger, ask(4, at=AT + 59 * MINUTE))
    await spend(ledger, ask(4, trace="other", at=AT + 59 * MINUTE))
    await spend(ledger, ask(4, at=AT))

    await spend(ledger, ask(0, trace="other", at=AT + 110 * MINUTE))

    assert (await refused(ledger, ask(4, at=AT + 110 * MINUTE))).left == 2


async def test_a_named_limit_that_is_taken_back_goes_on_counting_those_it_named_and_nobody_else() -> None:
    ledger = MemoryLedger(counted=())
    await ledger.apply_limits("acme", [Limit(ScopeKind.AGENT, "big", Window.NONE, nusd=50)], version=1)
    await spend(ledger, ask(10, agent="big"))
    await ledger.apply_limits("acme", [], version=2)

    await spend(ledger, ask(10, agent="big"))
    await spend(ledger, ask(10, agent="small"))

    assert [(one.id, one.spent.nusd) for one in await ledger.balances("acme")] == [("big", 20)]


async def test_a_limit_on_everyone_that_is_taken_back_goes_on_counting_those_it_knew() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=50)], counted=())
    await spend(ledger, ask(10, agent="known"))
    await ledger.apply_limits("acme", [], version=1)

    await spend(ledger, ask(10, agent="known"))
    await spend(ledger, ask(10, agent="new"))

    assert [(one.id, one.spent.nusd) for one in await ledger.balances("acme")] == [("known", 20)]


async def test_traces_at_rest_stay_so_when_limits_change_and_are_counted_on() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=50)])
    for number in range(300):
        await spend(ledger, ask(10, trace=f"trace-{number}"))

    await ledger.apply_limits(
        "acme", [Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=15), tenant(10**6)], version=1
    )

    (table,) = (one for one in ledger._ledger_of("acme").counters._tables if one.kind is ScopeKind.TRACE)
    assert len(table.active) < 2 * TenantLedger.tidy_after
    assert (await refused(ledger, ask(6, trace="trace-7"))).left == 5


async def test_an_agent_that_only_asked_in_vain_is_counted_by_no_limit_that_was_taken_back() -> None:
    ledger = MemoryLedger([Limit(ScopeKind.AGENT, ANY, Window.NONE, nusd=5)], counted=())
    await spend(ledger, ask(5))
    await refused(ledger, ask(10, agent="in-vain"))

    await ledger.apply_limits("acme", [], version=1)
    await spend(ledger, ask(10, agent="in-vain"))

    assert [one.id for one in await ledger.balances("acme")] == ["agent-1"]


async def test_names_that_were_used_once_leave_nothing_when_their_day_is_over() -> None:
    ledger = MemoryLedger([tenant(10**9)], keep=HOUR)
    for number in range(2000):
        agent, sender, trace = f"agent-{number}", f"principal-{number}", f"trace-{number}"
        await spend(ledger, ask(1, agent=agent, principal=sender, trace=trace))
    assert len(await ledger.balances("acme")) > 2000

    await spend(ledger, ask(1, at=AT + timedelta(days=2)))

    assert len(await ledger.balances("acme")) == 2  # the tenant's total, and the day of the last agent
    assert len(ledger._ledger_of("acme").calls.past) == 1
