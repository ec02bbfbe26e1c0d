"""What every ledger promises, one function a promise; each opens ledgers of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta, tzinfo
from functools import partial
from typing import Protocol
from zoneinfo import ZoneInfo

import pytest

from agentic_trading.governance.errors import (
    ReservationConflictError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import (
    ANY,
    CallState,
    Ceiling,
    Held,
    Ledger,
    Limit,
    Refusal,
    Reservation,
    ScopeKind,
)
from agentic_trading.governance.windows import Window
from agentic_trading.ids import fraction
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


class Opens(Protocol):
    """Open an empty ledger with limits; days and months begin in `zone`."""

    async def __call__(self, *limits: Limit, zone: tzinfo | None = None) -> Ledger: ...


Promise = Callable[[Opens], Awaitable[None]]


async def what_fits_is_held_until_it_is_settled(opens: Opens) -> None:
    ledger = await opens(tenant(100))

    id_ = await reserved(ledger, ask(60, tokens=7))

    before = await of_tenant(ledger)
    await ledger.dispatch(id_)
    await ledger.settle(id_, Amount(45, 5))
    after = await of_tenant(ledger)
    assert (before.held, before.spent) == (Amount(60, 7, 1), Amount(0, 0, 0))
    assert (after.held, after.spent) == (Amount(0, 0, 0), Amount(45, 5, 1))
    assert (before.left, after.left) == (Ceiling(nusd=40), Ceiling(nusd=55))


async def what_would_pass_a_ceiling_is_refused_with_the_facts(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    await spend(ledger, ask(70))

    refusal = await refused(ledger, ask(31))

    assert refusal == Refusal(ScopeKind.TENANT, "acme", Window.DAY, "nano-USD", asked=31, left=30)
    assert (await of_tenant(ledger, Window.DAY)).spent == Amount(70, 0, 1)
    assert isinstance(await ledger.reserve(ask(30)), Reservation)


async def what_waits_only_for_calls_in_flight_is_held_not_refused(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(20))
    await reserved(ledger, ask(50))

    answer = await held(ledger, ask(80))

    assert answer == Held(ScopeKind.TENANT, "acme", Window.NONE, "nano-USD", asked=80, left=30)
    assert (await refused(ledger, ask(81))).left == 80


async def each_unit_has_a_ceiling_of_its_own(opens: Opens) -> None:
    for unit, limit in {
        "nano-USD": Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=10),
        "tokens": Limit(ScopeKind.TENANT, ANY, Window.NONE, tokens=10),
        "calls": Limit(ScopeKind.TENANT, ANY, Window.NONE, calls=1),
    }.items():
        ledger = await opens(limit)
        await spend(ledger, ask(10, tokens=10))

        assert (await refused(ledger, ask(1, tokens=1))).unit == unit


async def each_kind_of_scope_has_a_ceiling_of_its_own(opens: Opens) -> None:
    for kind in ScopeKind:
        ledger = await opens(Limit(kind, ANY, Window.NONE, calls=1))
        first = ask(key="the-call")
        await spend(ledger, first)

        refusal = await refused(ledger, ask(key="the-call", attempt=2))

        assert (refusal.scope, refusal.id) == (kind, first.scope_ids[kind])


async def a_refusal_by_one_scope_books_nothing_in_the_others(opens: Opens) -> None:
    ledger = await opens(tenant(100), Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=10))
    await spend(ledger, ask(5))

    await refused(ledger, ask(6))

    assert (await of_tenant(ledger)).left == Ceiling(nusd=95)
    assert (await balance(ledger, ScopeKind.TRACE, "trace-1", Window.NONE)).left == Ceiling(nusd=5)


async def a_limit_on_everyone_is_each_ones_own(opens: Opens) -> None:
    ledger = await opens(Limit(ScopeKind.AGENT, ANY, Window.NONE, calls=1))

    await spend(ledger, ask(agent="one"))
    await spend(ledger, ask(agent="two"))

    assert (await refused(ledger, ask(agent="one"))).id == "one"


async def a_named_limit_goes_before_that_on_everyone(opens: Opens) -> None:
    ledger = await opens(
        Limit(ScopeKind.AGENT, ANY, Window.NONE, calls=1, tokens=10),
        Limit(ScopeKind.AGENT, "big", Window.NONE, calls=2),
    )

    await spend(ledger, ask(tokens=5, agent="big"))
    await spend(ledger, ask(tokens=5, agent="big"))

    assert (await refused(ledger, ask(agent="big"))).unit == "calls"
    assert (await refused(ledger, ask(tokens=11, agent="other"))).unit == "tokens"
    found = await balance(ledger, ScopeKind.AGENT, "big", Window.NONE)
    assert found.ceiling == Ceiling(tokens=10, calls=2)


async def tenants_share_no_counter(opens: Opens) -> None:
    ledger = await opens(Limit(ScopeKind.AGENT, ANY, Window.NONE, calls=1))
    await spend(ledger, ask(tenant="acme"))

    await spend(ledger, ask(tenant="other"))

    found = select(await ledger.snapshot(), ScopeKind.AGENT, "agent-1", Window.NONE)
    assert {one.tenant: one.spent.calls for one in found} == {"acme": 1, "other": 1}


async def a_window_is_spent_by_itself(opens: Opens) -> None:
    for window, step in {
        Window.MINUTE: timedelta(minutes=1),
        Window.HOUR: timedelta(hours=1),
        Window.DAY: timedelta(days=1),
        Window.MONTH: timedelta(days=31),
    }.items():
        ledger = await opens(tenant(10, window=window))
        await spend(ledger, ask(10))

        assert (await refused(ledger, ask(1, at=AT))).window == window
        assert isinstance(await ledger.reserve(ask(10, at=AT + step)), Reservation)


async def a_window_that_does_not_end_is_one(opens: Opens) -> None:
    ledger = await opens(tenant(10))
    await spend(ledger, ask(10))

    assert (await refused(ledger, ask(1, at=AT + timedelta(days=400)))).left == 0


async def a_day_begins_at_midnight_of_the_zone(opens: Opens) -> None:
    ledger = await opens(tenant(10, window=Window.DAY), zone=ZoneInfo("Asia/Tokyo"))
    midnight = AT.replace(hour=15, minute=0)
    await spend(ledger, ask(10, at=midnight - timedelta(microseconds=1)))

    assert (await refused(ledger, ask(1, at=midnight - timedelta(hours=2)))).left == 0
    assert isinstance(await ledger.reserve(ask(10, at=midnight)), Reservation)


async def a_charge_goes_to_the_window_of_its_reservation(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    early = await reserved(ledger, ask(60))
    await ledger.dispatch(early)
    await reserved(ledger, ask(10, at=AT + timedelta(days=1)))

    await ledger.settle(early, Amount(50, 0))

    days = select(await ledger.snapshot(), ScopeKind.TENANT, "acme", Window.DAY)
    assert {one.window_id: one.spent.nusd for one in days} == {"2026-01-02": 50, "2026-01-03": 0}


async def asking_twice_reserves_and_charges_once(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60, key="envelope-1")
    first = await reserved(ledger, wanted)

    again = await ledger.reserve(replace(wanted, at=AT + timedelta(minutes=3)))
    await ledger.dispatch(first)
    await ledger.settle(first, Amount(50, 0))
    settled = await ledger.reserve(wanted)

    assert again == Reservation(first, Amount(60, 0), CallState.RESERVED)
    assert settled == Reservation(first, Amount(60, 0), CallState.SETTLED)
    assert (await of_tenant(ledger)).spent == Amount(50, 0, 1)


async def another_attempt_is_another_reservation(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(60, key="envelope-1"))

    await spend(ledger, ask(30, key="envelope-1", attempt=2))

    assert (await of_tenant(ledger)).spent == Amount(90, 0, 2)


async def the_same_attempt_with_other_facts_is_an_error(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60, key="envelope-1")
    await reserved(ledger, wanted)

    for other in (
        replace(wanted, amount=Amount(59, 0)),
        ask(60, key="envelope-1", trace="another"),
        replace(wanted, limits=(tenant(1000),)),
    ):
        with pytest.raises(ReservationConflictError):
            await ledger.reserve(other)
    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def settling_twice_charges_once(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await spend(ledger, ask(60), nusd=50)

    again = await ledger.settle(id_, Amount(7, 0))

    assert (again.charged, again.reserved) == (Amount(50, 0), Amount(60, 0))
    assert (await of_tenant(ledger)).spent == Amount(50, 0, 1)


async def more_than_was_reserved_is_charged_and_counted(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))
    await ledger.dispatch(id_)

    settlement = await ledger.settle(id_, Amount(130, 4))

    assert settlement.overrun == Amount(70, 0, 0)
    assert (await of_tenant(ledger)).spent == Amount(130, 4, 1)
    assert (await of_tenant(ledger)).left == Ceiling(nusd=0)
    assert (await refused(ledger, ask(1))).left == 0
    assert (ledger.statistics().overruns, ledger.statistics().overrun_nusd) == (1, 70)


async def a_release_gives_all_back_and_twice_is_harmless(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))

    await ledger.release(id_)
    await ledger.release(id_)

    assert ((await of_tenant(ledger)).held, (await of_tenant(ledger)).spent) == (
        Amount(0, 0, 0),
        Amount(0, 0, 0),
    )
    assert isinstance(await ledger.reserve(ask(100)), Reservation)


async def what_was_released_can_be_reserved_anew(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(60)
    await ledger.release(await reserved(ledger, wanted))

    again = await ledger.reserve(wanted)

    assert again == Reservation(wanted.reservation_id, wanted.amount, CallState.RESERVED)
    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def what_was_dispatched_is_not_refunded(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)

    with pytest.raises(ReservationStateError):
        await ledger.release(id_)

    assert (await of_tenant(ledger)).held == Amount(60, 0, 1)


async def only_one_may_dispatch(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)

    with pytest.raises(ReservationStateError) as e:
        await ledger.dispatch(id_)

    assert (e.value.state, e.value.allowed) == (CallState.DISPATCHED, (CallState.RESERVED,))


async def what_was_not_dispatched_is_not_charged(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60))

    with pytest.raises(ReservationStateError):
        await ledger.settle(id_, Amount(1, 0))
    with pytest.raises(ReservationStateError):
        await ledger.in_doubt(id_)

    assert (await of_tenant(ledger)).spent == Amount(0, 0, 0)


async def an_unknown_reservation_is_an_error(opens: Opens) -> None:
    ledger = await opens(tenant(100))

    for step in (
        ledger.dispatch,
        ledger.release,
        ledger.in_doubt,
        partial(ledger.settle, actual=Amount(1, 0)),
    ):
        with pytest.raises(UnknownReservationError):
            await step("no:1")


async def a_call_in_doubt_is_charged_in_full_and_twice_is_harmless(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    id_ = await reserved(ledger, ask(60, tokens=5))
    await ledger.dispatch(id_)

    settlement = await ledger.in_doubt(id_)

    assert await ledger.in_doubt(id_) == settlement
    assert (settlement.charged, settlement.in_doubt) == (Amount(60, 5, 1), True)
    found = await of_tenant(ledger)
    assert (found.spent, found.held, found.in_doubt) == (Amount(60, 5, 1), Amount(0, 0, 0), Amount(60, 5, 1))
    assert (await refused(ledger, ask(41))).left == 40


async def a_late_answer_corrects_the_charge_in_its_window(opens: Opens) -> None:
    ledger = await opens(tenant(100, window=Window.DAY))
    id_ = await reserved(ledger, ask(60))
    await ledger.dispatch(id_)
    await ledger.in_doubt(id_)
    await spend(ledger, ask(10, at=AT + timedelta(days=1)))

    settlement = await ledger.settle(id_, Amount(42, 0))

    assert (settlement.charged, settlement.late, settlement.in_doubt) == (Amount(42, 0), True, False)
    assert await ledger.in_doubt(id_) == settlement
    found = await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02")
    assert (found.spent, found.in_doubt) == (Amount(42, 0, 1), Amount(0, 0, 0))


async def an_asks_own_ceiling_holds_over_its_attempts(opens: Opens) -> None:
    ledger = await opens(tenant(1000))
    own = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=100),)
    await spend(ledger, ask(60, key="envelope-1", limits=own))

    refusal = await refused(ledger, ask(60, key="envelope-1", attempt=2, limits=own))

    assert refusal == Refusal(ScopeKind.CALL, "envelope-1", Window.NONE, "nano-USD", asked=60, left=40)
    await spend(ledger, ask(40, key="envelope-1", attempt=2, limits=own))


async def an_asks_own_ceiling_knows_what_its_agent_did_before(opens: Opens) -> None:
    ledger = await opens()
    await spend(ledger, ask())
    await spend(ledger, ask())
    own = (Limit(ScopeKind.AGENT, "agent-1", Window.DAY, calls=2),)

    assert (await refused(ledger, ask(limits=own))).left == 0
    await spend(ledger, ask(limits=own, at=AT + timedelta(days=1)))


async def a_ceiling_of_nothing_lets_only_nothing_through(opens: Opens) -> None:
    ledger = await opens(tenant(0))

    assert (await refused(ledger, ask(1))).left == 0
    assert isinstance(await ledger.reserve(ask(0)), Reservation)


async def who_waits_gets_what_is_given_back(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    await ledger.dispatch(first)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.reserve_in_turn(ask(90, key="waits")))
        await in_line(ledger, 1)
        await ledger.settle(first, Amount(10, 0))

    assert waiting.result() == Reservation("waits:1", Amount(90, 0))
    assert (await of_tenant(ledger)).held == Amount(90, 0, 1)


async def who_need_not_wait_does_not(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(90, key="fits")

    first = await ledger.reserve_in_turn(wanted)

    assert first == Reservation("fits:1", Amount(90, 0))
    assert await ledger.reserve_in_turn(wanted) == first
    assert isinstance(await ledger.reserve_in_turn(ask(101)), Refusal)


async def who_waits_in_vain_is_refused(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    await ledger.dispatch(first)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.reserve_in_turn(ask(90)))
        await in_line(ledger, 1)
        await ledger.in_doubt(first)

    assert waiting.result() == Refusal(ScopeKind.TENANT, "acme", Window.NONE, "nano-USD", asked=90, left=20)


async def who_came_first_goes_first(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(100))
    order: list[str] = []

    async def wait(key: str, nusd: int) -> None:
        answer = await ledger.reserve_in_turn(ask(nusd, key=key))
        assert isinstance(answer, Reservation)
        order.append(key)
        await ledger.release(answer.id)

    async with asyncio.TaskGroup() as group:
        for place, (key, nusd) in enumerate({"large": 90, "small": 20, "last": 100}.items(), start=1):
            group.create_task(wait(key, nusd))
            await in_line(ledger, place)
        await ledger.release(first)

    assert order == ["large", "small", "last"]


async def who_comes_later_does_not_overtake(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.reserve_in_turn(ask(30)))
        await in_line(ledger, 1)
        newcomer = await held(ledger, ask(10))
        elsewhere = await ledger.reserve(ask(10, tenant="other"))
        await ledger.release(first)

    assert (newcomer.asked, newcomer.left) == (10, 20)
    assert isinstance(elsewhere, Reservation)
    assert isinstance(waiting.result(), Reservation)
    assert isinstance(await ledger.reserve(ask(10)), Reservation)


async def a_higher_priority_goes_before(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    order: list[int] = []

    async def wait(priority: int) -> None:
        answer = await ledger.reserve_in_turn(ask(60, priority=priority))
        assert isinstance(answer, Reservation)
        order.append(priority)
        await ledger.release(answer.id)

    async with asyncio.TaskGroup() as group:
        for place, priority in enumerate((0, 3, 1), start=1):
            group.create_task(wait(priority))
            await in_line(ledger, place)
        await held(ledger, ask(10, priority=1))
        assert isinstance(await ledger.reserve(ask(10, priority=4)), Reservation)
        await ledger.release(first)

    assert order == [3, 1, 0]


async def who_is_cancelled_leaves_the_line_and_holds_nothing(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.reserve_in_turn(ask(50)))
        await in_line(ledger, 1)
        behind = group.create_task(ledger.reserve_in_turn(ask(20)))
        await in_line(ledger, 2)
        leaving.cancel()

    assert isinstance(behind.result(), Reservation)
    await ledger.release(first)
    assert (await of_tenant(ledger)).held == Amount(20, 0, 1)
    assert ledger.statistics().waiting == 0


async def who_is_cancelled_when_served_gives_it_back(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.reserve_in_turn(ask(50)))
        await in_line(ledger, 1)
        behind = group.create_task(ledger.reserve_in_turn(ask(70)))
        await in_line(ledger, 2)
        await ledger.release(first)
        leaving.cancel()

    assert leaving.cancelled()
    assert isinstance(behind.result(), Reservation)
    assert (await of_tenant(ledger)).held == Amount(70, 0, 1)


async def sixty_four_at_once_never_overspend_and_none_is_refused(opens: Opens) -> None:
    ceiling, worst = 1_000, 100
    ledger = await opens(tenant(ceiling), Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=64))
    charges: list[int] = []

    async def call(number: int) -> None:
        wanted = ask(worst, key=f"call-at-once-{number}")
        answer = await ledger.reserve_in_turn(wanted)
        assert isinstance(answer, Reservation)
        again = await ledger.reserve(wanted)
        assert again == answer
        await asyncio.sleep(0)
        await ledger.dispatch(answer.id)
        used = int(15 * fraction("used", number))
        assert (await of_tenant(ledger)).spent.nusd + (await of_tenant(ledger)).held.nusd <= ceiling
        await asyncio.sleep(0)
        charges.append((await ledger.settle(answer.id, Amount(used, 0))).charged.nusd)

    async with asyncio.TaskGroup() as group:
        for number in range(64):
            group.create_task(call(number))

    found = await of_tenant(ledger)
    assert (found.spent, found.held) == (Amount(sum(charges), 0, 64), Amount(0, 0, 0))
    assert ledger.statistics().charged_nusd == sum(charges) <= ceiling


async def everything_is_counted(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(10), nusd=8)
    await ledger.release(await reserved(ledger, ask(10)))
    doubtful = await reserved(ledger, ask(10))
    await ledger.dispatch(doubtful)
    await ledger.in_doubt(doubtful)
    await reserved(ledger, ask(20))
    await held(ledger, ask(80))
    await refused(ledger, ask(90))

    await ledger.settle(doubtful, Amount(13, 0))

    found = ledger.statistics()
    assert (found.reserved, found.released, found.settled, found.in_doubt, found.late) == (4, 1, 2, 1, 1)
    assert (found.refused, found.held, found.in_flight, found.waiting) == (1, 1, 1, 0)
    assert (found.reserved_nusd, found.charged_nusd, found.overrun_nusd) == (20, 21, 3)


async def in_line(ledger: Ledger, waiting: int) -> None:
    """Let others run until so many wait in the line."""
    for _ in range(10_000):
        if ledger.statistics().waiting == waiting:
            return
        await asyncio.sleep(0)
    raise AssertionError(ledger.statistics())


PROMISES: tuple[Promise, ...] = (
    what_fits_is_held_until_it_is_settled,
    what_would_pass_a_ceiling_is_refused_with_the_facts,
    what_waits_only_for_calls_in_flight_is_held_not_refused,
    each_unit_has_a_ceiling_of_its_own,
    each_kind_of_scope_has_a_ceiling_of_its_own,
    a_refusal_by_one_scope_books_nothing_in_the_others,
    a_limit_on_everyone_is_each_ones_own,
    a_named_limit_goes_before_that_on_everyone,
    tenants_share_no_counter,
    a_window_is_spent_by_itself,
    a_window_that_does_not_end_is_one,
    a_day_begins_at_midnight_of_the_zone,
    a_charge_goes_to_the_window_of_its_reservation,
    asking_twice_reserves_and_charges_once,
    another_attempt_is_another_reservation,
    the_same_attempt_with_other_facts_is_an_error,
    settling_twice_charges_once,
    more_than_was_reserved_is_charged_and_counted,
    a_release_gives_all_back_and_twice_is_harmless,
    what_was_released_can_be_reserved_anew,
    what_was_dispatched_is_not_refunded,
    only_one_may_dispatch,
    what_was_not_dispatched_is_not_charged,
    an_unknown_reservation_is_an_error,
    a_call_in_doubt_is_charged_in_full_and_twice_is_harmless,
    a_late_answer_corrects_the_charge_in_its_window,
    an_asks_own_ceiling_holds_over_its_attempts,
    an_asks_own_ceiling_knows_what_its_agent_did_before,
    a_ceiling_of_nothing_lets_only_nothing_through,
    who_waits_gets_what_is_given_back,
    who_need_not_wait_does_not,
    who_waits_in_vain_is_refused,
    who_came_first_goes_first,
    who_comes_later_does_not_overtake,
    a_higher_priority_goes_before,
    who_is_cancelled_leaves_the_line_and_holds_nothing,
    who_is_cancelled_when_served_gives_it_back,
    sixty_four_at_once_never_overspend_and_none_is_refused,
    everything_is_counted,
)
