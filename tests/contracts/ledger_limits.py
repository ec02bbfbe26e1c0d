"""What every ledger promises of ceilings, scopes and windows, one function a promise."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

from agentic_trading.governance.ledger import Blocked, Declined, Reservation
from agentic_trading.governance.limits import ANY, Ceiling, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import Opens, Promise
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

    assert refusal == Declined(ScopeKind.TENANT, "acme", Window.DAY, "nano-USD", asked=31, left=30)
    assert (await of_tenant(ledger, Window.DAY)).spent == Amount(70, 0, 1)
    assert isinstance(await ledger.reserve(ask(30)), Reservation)


async def what_waits_only_for_calls_in_flight_is_held_not_refused(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(20))
    await reserved(ledger, ask(50))

    answer = await held(ledger, ask(80))

    assert answer == Blocked(ScopeKind.TENANT, "acme", Window.NONE, "nano-USD", asked=80, left=30)
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
        first = ask(key="the-call", principal="desk-a")
        await spend(ledger, first)

        refusal = await refused(ledger, replace(first, attempt=2))

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

    for name in ("acme", "other"):
        found = await balance(ledger, ScopeKind.AGENT, "agent-1", Window.NONE, tenant=name)
        assert (found.tenant, found.spent.calls) == (name, 1)


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

    days = select(await ledger.balances("acme"), ScopeKind.TENANT, "acme", Window.DAY)
    assert {one.window_id: one.spent.nusd for one in days} == {"2026-01-02": 50, "2026-01-03": 0}


async def an_asks_own_ceiling_holds_over_its_attempts(opens: Opens) -> None:
    ledger = await opens(tenant(1000))
    own = (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=100),)
    await spend(ledger, ask(60, key="envelope-1", limits=own))

    refusal = await refused(ledger, ask(60, key="envelope-1", attempt=2, limits=own))

    assert refusal == Declined(ScopeKind.CALL, "envelope-1", Window.NONE, "nano-USD", asked=60, left=40)
    await spend(ledger, ask(40, key="envelope-1", attempt=2, limits=own))


async def an_asks_own_ceiling_on_its_trace_holds_over_all_its_calls(opens: Opens) -> None:
    ledger = await opens()
    own = (
        Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=100),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=3),
    )
    await spend(ledger, ask(60, limits=own), nusd=20)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ledger.reserve(ask(40, limits=own))) for _ in range(8)]

    answers = [one.result() for one in asked]
    fitting = [answer for answer in answers if isinstance(answer, Reservation)]
    assert (len(fitting), sum(isinstance(answer, Blocked) for answer in answers)) == (2, 6)
    for answer in fitting:
        await ledger.dispatch(answer.id)
        await ledger.settle(answer.id, Amount(10, 0))
    assert (await refused(ledger, ask(60, limits=own))).unit == "calls"
    assert (await refused(ledger, ask(61, limits=own[:1]))).left == 60
    await spend(ledger, ask(60, limits=own[:1]))
    await spend(ledger, ask(100, trace="another", limits=own))


async def an_asks_own_ceiling_on_its_trace_knows_what_is_restored(opens: Opens) -> None:
    ledger = await opens()
    own = (Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=100, calls=3),)
    asks = [ask(40, limits=own), ask(40, limits=own), ask(10, limits=own, agent="another")]
    for asked in asks[:2]:
        await spend(ledger, asked, nusd=20)
    await ledger.dispatch(await reserved(ledger, asks[2]))
    await ledger.in_doubt(asks[2].reservation_id)

    logged = [replace(one, request=replace(one.request, limits=())) for one in await ledger.entries("acme")]
    await ledger.restore("acme", logged)

    assert (await refused(ledger, ask(1, limits=own))).unit == "calls"
    money = (Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=100),)
    assert (await refused(ledger, ask(51, limits=money))).left == 50
    await spend(ledger, ask(50, limits=money))


async def an_asks_own_ceiling_knows_what_its_agent_did_before(opens: Opens) -> None:
    ledger = await opens()
    await spend(ledger, ask())
    await spend(ledger, ask())
    own = (Limit(ScopeKind.AGENT, "agent-1", Window.DAY, calls=2),)

    assert (await refused(ledger, ask(limits=own))).left == 0
    await spend(ledger, ask(limits=own, at=AT + timedelta(days=1)))


async def a_principal_has_one_ceiling_whatever_names_it_chooses(opens: Opens) -> None:
    ledger = await opens()
    own = (Limit(ScopeKind.PRINCIPAL, ANY, Window.DAY, nusd=100),)
    await spend(ledger, ask(60, principal="desk-a"))  # before there was a ceiling

    refusal = await refused(ledger, ask(41, agent="new", trace="new", principal="desk-a", limits=own))

    assert refusal == Declined(ScopeKind.PRINCIPAL, "desk-a", Window.DAY, "nano-USD", asked=41, left=40)
    await spend(ledger, ask(100, principal="desk-b", limits=own))
    await spend(ledger, ask(100, principal="desk-a", tenant="other", limits=own))
    await spend(ledger, ask(100, principal="desk-a", at=AT + timedelta(days=1), limits=own))
    await spend(ledger, ask(100))
    found = await balance(ledger, ScopeKind.PRINCIPAL, "desk-a", Window.DAY, "2026-01-02")
    assert found.spent == Amount(60, 0, 1)


async def a_moment_of_the_future_that_is_refused_closes_nothing(opens: Opens) -> None:
    ledger = await opens(tenant(10))
    await refused(ledger, ask(11, at=AT + timedelta(days=400)))

    assert isinstance(await ledger.reserve(ask(10)), Reservation)


async def a_ceiling_of_nothing_lets_only_nothing_through(opens: Opens) -> None:
    ledger = await opens(tenant(0))

    assert (await refused(ledger, ask(1))).left == 0
    assert isinstance(await ledger.reserve(ask(0)), Reservation)


LIMITS: tuple[Promise, ...] = (
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
    an_asks_own_ceiling_holds_over_its_attempts,
    an_asks_own_ceiling_on_its_trace_holds_over_all_its_calls,
    an_asks_own_ceiling_on_its_trace_knows_what_is_restored,
    an_asks_own_ceiling_knows_what_its_agent_did_before,
    a_principal_has_one_ceiling_whatever_names_it_chooses,
    a_moment_of_the_future_that_is_refused_closes_nothing,
    a_ceiling_of_nothing_lets_only_nothing_through,
)
