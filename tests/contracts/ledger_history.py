"""What every ledger promises of its past and its present, one function a promise."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.errors import LedgerRolledBackError, UnknownReservationError
from agentic_trading.governance.ledger import (
    Ledger,
    LedgerCheckpoint,
    LedgerEntry,
    Reservation,
    ReservationState,
)
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import Opens, Promise, in_line
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


async def every_step_moves_the_position(opens: Opens) -> None:
    ledger = await opens(tenant(100), reserved_lease_s=0)
    first, second, third = ask(10), ask(10), ask(10)
    seen = [await ledger.checkpoint("acme")]

    async def note(step: Awaitable[object]) -> None:
        await step
        seen.append(await ledger.checkpoint("acme"))

    await note(ledger.reserve(first))
    await note(ledger.dispatch(first.reservation_id))
    await note(ledger.in_doubt(first.reservation_id))
    await note(ledger.settle(first.reservation_id, Amount(5, 0)))
    await note(ledger.reserve(second))
    await note(ledger.release(second.reservation_id))
    await note(ledger.reserve(third))
    await note(ledger.expire_leases())
    await note(ledger.apply_limits("acme", [tenant(50)], version=1))

    sequences = [one.sequence for one in seen]
    assert sequences == sorted(set(sequences))
    assert len({(one.epoch, one.epoch_id) for one in seen[1:]}) == 1
    assert seen[0].epoch <= seen[1].epoch


async def a_ledger_that_has_come_on_is_not_behind(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(10))
    before = await ledger.checkpoint("acme")
    await spend(ledger, ask(10))

    await ledger.require_at_least("acme", before)
    await ledger.require_at_least("acme", await ledger.checkpoint("acme"))
    await ledger.require_at_least("acme", replace(before, epoch=before.epoch - 1, epoch_id="gone"))

    await spend(ledger, ask(10))


async def a_ledger_that_has_gone_back_lets_nothing_run(opens: Opens) -> None:
    for changes in ({"sequence": 1000}, {"epoch_id": "another"}, {"epoch": 7, "epoch_id": "later"}):
        ledger = await opens(tenant(100))
        known = ask(10)
        await reserved(ledger, known)
        await ledger.dispatch(known.reservation_id)

        await expect_beyond(ledger, **changes)

        for asked in (known, ask(1)):
            with pytest.raises(LedgerRolledBackError, match="acme"):
                await ledger.reserve(asked)
        with pytest.raises(LedgerRolledBackError):
            await ledger.wait_for_reservation(ask(1))
        with pytest.raises(LedgerRolledBackError):
            await ledger.settle("acme:forgotten:1", Amount(1, 0))
        await spend(ledger, ask(1, tenant="other"))
        assert (await ledger.settle(known.reservation_id, Amount(7, 0))).charged == Amount(7, 0)


async def expect_beyond(
    ledger: Ledger, *, epoch: int = 0, epoch_id: str = "", sequence: int = 0, name: str = "acme"
) -> LedgerCheckpoint:
    """Have a ledger expected to be where it is not; return where it is."""
    found = await ledger.checkpoint(name)
    far = LedgerCheckpoint(found.epoch + epoch, epoch_id or found.epoch_id, found.sequence + sequence)
    await ledger.require_at_least(name, far)
    return found


async def who_waits_at_a_ledger_that_has_gone_back_is_told(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await reserved(ledger, ask(80))

    with pytest.RaisesGroup(LedgerRolledBackError):
        async with asyncio.TaskGroup() as group:
            group.create_task(ledger.wait_for_reservation(ask(90)))
            await in_line(ledger, 1)
            await expect_beyond(ledger, sequence=1)


async def what_is_restored_opens_it_again_and_is_never_charged_twice(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    settled, doubtful = ask(40, key="done"), ask(30, key="doubtful")
    found = await expect_beyond(ledger, epoch=2, epoch_id="older")

    restored = await ledger.restore(
        "acme",
        [
            LedgerEntry(settled, ReservationState.SETTLED, Amount(35, 2)),
            LedgerEntry(doubtful, ReservationState.IN_DOUBT, doubtful.amount),
        ],
    )

    assert restored.epoch > found.epoch + 2
    assert restored.epoch_id != found.epoch_id
    assert await ledger.checkpoint("acme") == restored
    assert await ledger.reserve(settled) == Reservation(
        "acme:done:1", settled.amount, ReservationState.SETTLED
    )
    assert await ledger.reserve(doubtful) == Reservation(
        "acme:doubtful:1", doubtful.amount, ReservationState.IN_DOUBT
    )
    assert (await ledger.settle("acme:done:1", Amount(1, 0))).charged == Amount(35, 2)
    balance_ = await of_tenant(ledger)
    assert (balance_.spent, balance_.in_doubt) == (Amount(65, 2, 2), Amount(30, 0, 1))
    late = await ledger.settle("acme:doubtful:1", Amount(20, 0))
    assert (late.charged, late.late) == (Amount(20, 0), True)
    assert (await of_tenant(ledger)).spent == Amount(55, 2, 2)
    await spend(ledger, ask(45))


async def what_is_restored_takes_the_place_of_what_was(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    await spend(ledger, ask(20, key="spent"))
    before = await ledger.checkpoint("acme")

    restored = await ledger.restore("acme", [LedgerEntry(ask(40), ReservationState.SETTLED, Amount(40, 0))])

    assert restored.epoch > before.epoch
    found = await of_tenant(ledger, Window.DAY)
    assert (found.spent, found.held) == (Amount(40, 0, 1), Amount(0, 0, 0))
    assert await ledger.reserve(ask(20, key="spent")) == Reservation("acme:spent:1", Amount(20, 0))
    await ledger.require_at_least("acme", before)
    await spend(ledger, ask(10))


async def a_call_without_its_own_limits_counts_against_them_once_restored(opens: Opens) -> None:
    """A ledger does not keep a call's own limits. Its next attempt brings them, and finds the earlier charge."""
    ledger = await opens(tenant(1000))
    own = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=120),)
    first = ask(90, key="one", attempt=1, limits=own)
    await reserved(ledger, first)
    await ledger.dispatch(first.reservation_id)
    await ledger.in_doubt(first.reservation_id)

    await ledger.restore("acme", await ledger.entries("acme"))

    assert (await refused(ledger, ask(31, key="one", attempt=2, limits=own))).left == 30
    await reserved(ledger, ask(30, key="one", attempt=3, limits=own))


async def what_is_in_flight_when_a_healthy_ledger_is_restored_stays_so(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    await spend(ledger, ask(20))
    early, sent, logged = ask(10), ask(30), ask(5)
    for wanted in (early, sent, logged):
        await reserved(ledger, wanted)
    await ledger.dispatch(sent.reservation_id)
    await ledger.dispatch(logged.reservation_id)

    await ledger.restore("acme", [LedgerEntry(logged, ReservationState.SETTLED, Amount(4, 0))])

    found = await of_tenant(ledger, Window.DAY)
    assert (found.spent, found.held) == (Amount(4, 0, 1), Amount(40, 0, 2))
    assert await ledger.reserve(early) == Reservation(early.reservation_id, early.amount)
    assert (await held(ledger, ask(57))).left == 56
    await ledger.dispatch(early.reservation_id)
    await ledger.settle(early.reservation_id, Amount(9, 0))
    assert (await ledger.settle(sent.reservation_id, Amount(25, 0))).charged == Amount(25, 0)
    assert (await ledger.settle(logged.reservation_id, Amount(1, 0))).charged == Amount(4, 0)
    found = await of_tenant(ledger, Window.DAY)
    assert (found.spent, found.held) == (Amount(38, 0, 3), Amount(0, 0, 0))


async def what_ends_while_it_is_shut_is_not_forgotten(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    early, sent, settled, doubtful, logged, released = (ask(nusd) for nusd in (5, 6, 20, 10, 8, 9))
    for wanted in (early, sent, settled, doubtful, logged, released):
        await reserved(ledger, wanted)
    for begun in (sent, settled, doubtful, logged):
        await ledger.dispatch(begun.reservation_id)

    for _ in range(2):
        await ledger.fence("acme")
    with pytest.raises(LedgerRolledBackError):
        await ledger.reserve(ask(1))
    with pytest.raises(LedgerRolledBackError):
        await ledger.dispatch(early.reservation_id)
    await ledger.settle(settled.reservation_id, Amount(15, 1))
    await ledger.in_doubt(doubtful.reservation_id)
    await ledger.settle(logged.reservation_id, Amount(7, 0))
    await ledger.release(released.reservation_id)
    noted = LedgerEntry(settled, ReservationState.IN_DOUBT, settled.amount)
    await ledger.restore("acme", [LedgerEntry(logged, ReservationState.SETTLED, Amount(7, 0)), noted])

    found = await of_tenant(ledger, Window.DAY)
    assert (found.spent, found.in_doubt) == (Amount(32, 1, 3), Amount(10, 0, 1))
    assert found.held == Amount(11, 0, 2)
    assert (await ledger.settle(settled.reservation_id, Amount(1, 0))).charged == Amount(15, 1)
    assert await ledger.reserve(released) == Reservation(released.reservation_id, released.amount)
    assert (await ledger.settle(doubtful.reservation_id, Amount(4, 0))).late
    await ledger.dispatch(early.reservation_id)
    found = await of_tenant(ledger, Window.DAY)
    assert (found.spent, found.in_doubt) == (Amount(26, 1, 3), Amount(0, 0, 0))
    assert found.held == Amount(20, 0, 3)


async def what_ends_in_a_ledger_that_has_gone_back_is_not_forgotten(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    settled, logged, doubtful = ask(30), ask(20), ask(10)
    for begun in (settled, logged, doubtful):
        await ledger.dispatch(await reserved(ledger, begun))
    await expect_beyond(ledger, sequence=50)

    await ledger.settle(settled.reservation_id, Amount(25, 0))
    await ledger.settle(logged.reservation_id, Amount(15, 0))
    await ledger.in_doubt(doubtful.reservation_id)
    await ledger.restore(
        "acme",
        [
            LedgerEntry(logged, ReservationState.SETTLED, Amount(15, 0)),
            LedgerEntry(doubtful, ReservationState.SETTLED, Amount(2, 0)),
        ],
    )

    found = await of_tenant(ledger)
    assert (found.spent, found.in_doubt) == (Amount(42, 0, 3), Amount(0, 0, 0))
    assert found.held == Amount(0, 0, 0)


async def what_was_in_flight_in_a_ledger_that_has_gone_back_is_forgotten(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    flying = await reserved(ledger, ask(30))
    await expect_beyond(ledger, sequence=5)

    await ledger.restore("acme", [LedgerEntry(ask(40), ReservationState.SETTLED, Amount(40, 0))])

    with pytest.raises(UnknownReservationError):
        await ledger.dispatch(flying)
    found = await of_tenant(ledger)
    assert (found.spent, found.held) == (Amount(40, 0, 1), Amount(0, 0, 0))
    await spend(ledger, ask(60))


async def a_look_at_what_can_run_out_shows_nothing_else(opens: Opens) -> None:
    ledger = await opens(
        tenant(100, window=Window.DAY),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=9),
        Limit(ScopeKind.AGENT, ANY, Window.NONE, calls=9),
        Limit(ScopeKind.WORKFLOW, "analysis", Window.HOUR, tokens=50),
    )
    assert await ledger.balances("acme", limited=True) == []
    await spend(ledger, ask(1))
    await spend(ledger, ask(2, tokens=3, agent="agent/2", at=AT + timedelta(days=1)))
    await spend(ledger, ask(3, workflow="execution", at=AT + timedelta(minutes=5)))
    await reserved(ledger, ask(4, at=AT + timedelta(days=1)))

    found = await ledger.balances("acme", limited=True)

    assert {(one.scope, one.id, one.window, one.window_id, one.spent, one.held) for one in found} == {
        (ScopeKind.TENANT, "acme", Window.DAY, "2026-01-03", Amount(2, 3), Amount(4, 0)),
        (ScopeKind.AGENT, "agent-1", Window.NONE, "", Amount(4, 0, 2), Amount(4, 0)),
        (ScopeKind.AGENT, "agent/2", Window.NONE, "", Amount(2, 3), Amount(0, 0, 0)),
        (ScopeKind.WORKFLOW, "analysis", Window.HOUR, "2026-01-03T12+0000", Amount(2, 3), Amount(4, 0)),
    }
    assert set(found) <= set(await ledger.balances("acme"))


async def a_window_that_is_over_is_left_out_of_the_limited_counters(opens: Opens) -> None:
    windows = (Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH, Window.NONE)
    ledger = await opens(*(tenant(100, window=window) for window in windows))
    await spend(ledger, ask(1))

    found = [
        {one.window for one in await ledger.balances("acme", limited=True, at=AT + passed)}
        for passed in (timedelta(), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))
    ]
    later = await ledger.balances("acme", limited=True, at=AT + timedelta(days=40))

    assert found == [set(windows[number:]) for number in range(4)]
    assert [one.window for one in later] == [Window.NONE]


async def a_tenant_sees_only_its_own(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await reserved(ledger, ask(80, tenant="other"))
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90, key="mine", priority=2)))
        await in_line(ledger, 1)
        lines = [await ledger.waiting(name) for name in ("acme", "other", "nobody")]
        snapshots = [await ledger.balances(name) for name in ("acme", "other", "nobody")]
        waiting.cancel()

    assert [[one.reservation_id for one in line] for line in lines] == [["acme:mine:1"], [], []]
    assert (lines[0][0].priority, lines[0][0].held.asked, lines[0][0].held.left) == (2, 90, 20)
    assert [{one.tenant for one in found} for found in snapshots] == [{"acme"}, {"other"}, set()]


async def without_a_moment_it_is_the_present(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    wall = SystemClock()

    before = wall.now()
    await spend(ledger, ask(10, at=None))
    after = wall.now()

    days = {
        one.window_id for one in await ledger.balances("acme") if one.window is Window.DAY and one.spent.nusd
    }
    assert len(days) == 1
    assert days <= {f"{moment:%Y-%m-%d}" for moment in (before, after)}


async def a_redelivery_stays_in_the_window_of_the_first(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.MINUTE))
    then, now = ask(10, at=AT), ask(10, at=None)
    await reserved(ledger, then)
    await reserved(ledger, now)

    for again in (replace(then, at=None), replace(now, at=AT)):
        answer = await ledger.reserve(again)
        assert isinstance(answer, Reservation)
        assert answer.counted_at is not None
        assert (answer.counted_at.replace(second=0, microsecond=0) == AT) is (again.key == then.key)
        await ledger.dispatch(answer.id)
        await ledger.settle(answer.id, Amount(7, 0))

    found = await balance(ledger, ScopeKind.TENANT, "acme", Window.MINUTE, "2026-01-02T12:30+0000")
    assert (found.spent, found.held) == (Amount(7, 0, 1), Amount(0, 0, 0))


async def a_reservation_names_the_windows_that_its_ledger_chose(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.MINUTE), zone=ZoneInfo("America/New_York"))
    chosen = ask(10, at=None)

    answers = [await ledger.reserve(chosen) for _ in range(2)]

    counted = select(await ledger.balances("acme"), ScopeKind.TENANT, "acme", Window.MINUTE)
    for answer in answers:
        assert isinstance(answer, Reservation)
        assert answer.counted_at is not None
        window = Windows(ZoneInfo("America/New_York")).at(answer.counted_at)[Window.MINUTE]
        assert [one.window_id for one in counted] == [window.id]
        named = await ledger.reserve(ask(10, at=answer.counted_at))
        assert isinstance(named, Reservation)
        assert named.counted_at is None


async def what_still_counts_is_never_dropped_however_long_nobody_used_it(opens: Opens) -> None:
    month = Limit(ScopeKind.AGENT, ANY, Window.MONTH, nusd=100)
    ledger = await opens(Limit(ScopeKind.PRINCIPAL, ANY, Window.NONE, nusd=100), month)
    await spend(ledger, ask(60, agent="rests", principal="rests"))
    await ledger.dispatch(doubtful := await reserved(ledger, ask(40, agent="rests", principal="rests")))
    await ledger.in_doubt(doubtful)
    for day in range(1, 29):
        await spend(ledger, ask(1, agent=f"agent-{day}", principal="other", at=AT + timedelta(days=day)))
        await ledger.expire_leases()

    end_of_month, years_later = AT + timedelta(days=28), AT + timedelta(days=700)
    assert (await refused(ledger, ask(1, agent="rests", at=end_of_month))).left == 0
    await spend(ledger, ask(1, agent="other", at=years_later))
    await ledger.expire_leases()
    assert (await refused(ledger, ask(1, principal="rests", at=years_later))).left == 0


HISTORY: tuple[Promise, ...] = (
    every_step_moves_the_position,
    a_ledger_that_has_come_on_is_not_behind,
    a_ledger_that_has_gone_back_lets_nothing_run,
    who_waits_at_a_ledger_that_has_gone_back_is_told,
    what_is_restored_opens_it_again_and_is_never_charged_twice,
    what_is_restored_takes_the_place_of_what_was,
    a_call_without_its_own_limits_counts_against_them_once_restored,
    what_is_in_flight_when_a_healthy_ledger_is_restored_stays_so,
    what_ends_while_it_is_shut_is_not_forgotten,
    what_ends_in_a_ledger_that_has_gone_back_is_not_forgotten,
    what_was_in_flight_in_a_ledger_that_has_gone_back_is_forgotten,
    a_look_at_what_can_run_out_shows_nothing_else,
    a_window_that_is_over_is_left_out_of_the_limited_counters,
    a_tenant_sees_only_its_own,
    without_a_moment_it_is_the_present,
    a_redelivery_stays_in_the_window_of_the_first,
    a_reservation_names_the_windows_that_its_ledger_chose,
    what_still_counts_is_never_dropped_however_long_nobody_used_it,
)
