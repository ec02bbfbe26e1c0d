"""What every ledger promises when limits change, one function a promise."""

import asyncio
from datetime import timedelta

from agentic_trading.governance.ledger import Declined, Reservation
from agentic_trading.governance.limits import ANY, Ceiling, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.contracts.ledger_opening import Opens, Promise, in_line
from tests.governance.asking import AT, ask, balance, held, of_tenant, refused, reserved, spend, tenant


async def adopted_limits_hold_from_the_next_ask_on(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(60))

    await ledger.apply_limits("acme", [tenant(200)], version=1)

    await spend(ledger, ask(140))
    found = await of_tenant(ledger)
    assert (found.ceiling, found.spent.nusd) == (Ceiling(nusd=200), 200)
    assert (await refused(ledger, ask(1))).left == 0
    assert (await refused(ledger, ask(101, tenant="other"))).left == 100


async def an_older_version_changes_nothing(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await ledger.apply_limits("acme", [tenant(50)], version=5)

    for version in (0, 4, 5):
        await ledger.apply_limits("acme", [tenant(1000)], version=version)

    assert (await refused(ledger, ask(51))).left == 50


async def a_limit_below_what_is_used_stops_the_next_and_not_those_in_flight(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(60))
    await ledger.dispatch(first)

    await ledger.apply_limits("acme", [tenant(10)], version=1)

    assert (await held(ledger, ask(1))).left == 0
    assert (await ledger.settle(first, Amount(55, 0))).charged == Amount(55, 0)
    assert (await refused(ledger, ask(1))).left == 0
    assert (await of_tenant(ledger)).left == Ceiling(nusd=0)


async def adopted_limits_go_by_name_before_everyone(opens: Opens) -> None:
    ledger = await opens(Limit(ScopeKind.AGENT, "big", Window.NONE, calls=0))

    await ledger.apply_limits(
        "acme",
        [
            Limit(ScopeKind.AGENT, ANY, Window.NONE, calls=1, tokens=10),
            Limit(ScopeKind.AGENT, "big", Window.NONE, calls=2),
        ],
        version=1,
    )

    await spend(ledger, ask(tokens=5, agent="big"))
    await spend(ledger, ask(tokens=5, agent="big"))
    assert (await refused(ledger, ask(agent="big"))).unit == "calls"
    assert (await refused(ledger, ask(tokens=11, agent="other"))).unit == "tokens"
    found = await balance(ledger, ScopeKind.AGENT, "big", Window.NONE)
    assert found.ceiling == Ceiling(tokens=10, calls=2)


async def a_limit_taken_away_holds_no_longer(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await spend(ledger, ask(100))

    await ledger.apply_limits("acme", [], version=1)

    await spend(ledger, ask(1000))


async def a_new_limit_knows_the_calls_before_it(opens: Opens) -> None:
    ledger = await opens()
    await spend(ledger, ask(60), nusd=50)
    await spend(ledger, ask(7, at=AT + timedelta(days=1)))
    await ledger.release(await reserved(ledger, ask(9)))
    flying = await reserved(ledger, ask(10))
    await ledger.dispatch(flying)
    doubtful = await reserved(ledger, ask(30))
    await ledger.dispatch(doubtful)
    await ledger.in_doubt(doubtful)

    await ledger.apply_limits("acme", [tenant(100, window=Window.DAY)], version=1)

    assert (await refused(ledger, ask(21))).left == 20
    found = await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02")
    assert (found.spent, found.held) == (Amount(80, 0, 2), Amount(10, 0, 1))
    await ledger.settle(flying, Amount(4, 0))
    await ledger.settle(doubtful, Amount(15, 0))
    found = await balance(ledger, ScopeKind.TENANT, "acme", Window.DAY, "2026-01-02")
    assert (found.spent, found.held) == (Amount(69, 0, 3), Amount(0, 0, 0))


async def who_waits_is_served_by_a_higher_limit(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90, key="freed")))
        await in_line(ledger, 1)
        await ledger.apply_limits("acme", [tenant(200)], version=1)

    assert waiting.result() == Reservation("acme:freed:1", Amount(90, 0))


async def who_waits_is_refused_by_a_lower_limit(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90)))
        await in_line(ledger, 1)
        await ledger.apply_limits("acme", [tenant(70)], version=1)

    assert waiting.result() == Declined(ScopeKind.TENANT, "acme", Window.NONE, "nano-USD", asked=90, left=70)


CHANGES: tuple[Promise, ...] = (
    adopted_limits_hold_from_the_next_ask_on,
    an_older_version_changes_nothing,
    a_limit_below_what_is_used_stops_the_next_and_not_those_in_flight,
    adopted_limits_go_by_name_before_everyone,
    a_limit_taken_away_holds_no_longer,
    a_new_limit_knows_the_calls_before_it,
    who_waits_is_served_by_a_higher_limit,
    who_waits_is_refused_by_a_lower_limit,
)
