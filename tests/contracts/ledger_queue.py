"""What every ledger promises to those who wait, and to many at once; one function a promise."""

import asyncio
from dataclasses import replace

from agentic_trading.governance.ledger import Declined, Reservation
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.ids import fraction
from tests.contracts.ledger_opening import Opens, Promise, in_line
from tests.governance.asking import ask, held, of_tenant, reserved, tenant


async def who_waits_gets_what_is_given_back(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    await ledger.dispatch(first)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90, key="waits")))
        await in_line(ledger, 1)
        await ledger.settle(first, Amount(10, 0))

    assert waiting.result() == Reservation("acme:waits:1", Amount(90, 0))
    assert (await of_tenant(ledger)).held == Amount(90, 0, 1)


async def who_need_not_wait_does_not(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    wanted = ask(90, key="fits")

    first = await ledger.wait_for_reservation(wanted)

    assert first == Reservation("acme:fits:1", Amount(90, 0))
    assert await ledger.wait_for_reservation(wanted) == first
    assert isinstance(await ledger.wait_for_reservation(ask(101)), Declined)


async def who_waits_in_vain_is_refused(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    await ledger.dispatch(first)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(90)))
        await in_line(ledger, 1)
        await ledger.in_doubt(first)

    assert waiting.result() == Declined(ScopeKind.TENANT, "acme", Window.NONE, "nano-USD", asked=90, left=20)


async def who_came_first_goes_first(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(100))
    order: list[str] = []

    async def wait(key: str, nusd: int) -> None:
        answer = await ledger.wait_for_reservation(ask(nusd, key=key))
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
        waiting = group.create_task(ledger.wait_for_reservation(ask(30)))
        await in_line(ledger, 1)
        newcomer = await held(ledger, ask(10))
        elsewhere = await ledger.reserve(ask(10, tenant="other"))
        await ledger.release(first)

    assert (newcomer.asked, newcomer.left) == (10, 20)
    assert isinstance(elsewhere, Reservation)
    assert isinstance(waiting.result(), Reservation)
    assert isinstance(await ledger.reserve(ask(10)), Reservation)


async def who_asks_for_nothing_always_gets_it(opens: Opens) -> None:
    ledger = await opens(tenant(100), Limit(ScopeKind.AGENT, "stopped", Window.NONE, calls=0))
    nothing = Amount(0, 0, 0)
    over = await reserved(ledger, ask(60))
    await ledger.dispatch(over)
    await ledger.settle(over, Amount(99, 0))
    await reserved(ledger, ask(1))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ledger.wait_for_reservation(ask(1)))
        await in_line(ledger, 1)
        behind_others = await ledger.reserve(replace(ask(priority=-1), amount=nothing))
        waiting.cancel()
    stopped = await ledger.wait_for_reservation(replace(ask(agent="stopped"), amount=nothing))
    late = replace(ask(), amount=nothing)
    await ledger.dispatch(await reserved(ledger, late))
    await ledger.settle(late.reservation_id, Amount(500, 0))
    passed = replace(ask(), amount=nothing)

    assert isinstance(behind_others, Reservation)
    assert isinstance(stopped, Reservation)
    assert await ledger.reserve(passed) == Reservation(passed.reservation_id, nothing)
    assert (await of_tenant(ledger)).spent == Amount(599, 0, 2)
    own = (tenant(0),)
    assert isinstance(await ledger.reserve(replace(ask(limits=own), amount=nothing)), Declined)


async def a_higher_priority_goes_before(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))
    order: list[int] = []

    async def wait(priority: int) -> None:
        answer = await ledger.wait_for_reservation(ask(60, priority=priority))
        assert isinstance(answer, Reservation)
        order.append(priority)
        await ledger.release(answer.id)

    async with asyncio.TaskGroup() as group:
        for place, priority in enumerate((0, 3600, 1800), start=1):
            group.create_task(wait(priority))
            await in_line(ledger, place)
        await held(ledger, ask(10, priority=1800))
        assert isinstance(await ledger.reserve(ask(10, priority=7200)), Reservation)
        await ledger.release(first)

    assert order == [3600, 1800, 0]


async def who_is_cancelled_leaves_the_line_and_holds_nothing(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.wait_for_reservation(ask(50)))
        await in_line(ledger, 1)
        behind = group.create_task(ledger.wait_for_reservation(ask(20)))
        await in_line(ledger, 2)
        leaving.cancel()

    assert isinstance(behind.result(), Reservation)
    await ledger.release(first)
    assert (await of_tenant(ledger)).held == Amount(20, 0, 1)
    assert await ledger.waiting("acme") == []


async def who_is_cancelled_when_served_gives_it_back(opens: Opens) -> None:
    ledger = await opens(tenant(100))
    first = await reserved(ledger, ask(80))

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.wait_for_reservation(ask(50)))
        await in_line(ledger, 1)
        behind = group.create_task(ledger.wait_for_reservation(ask(70)))
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
        answer = await ledger.wait_for_reservation(wanted)
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


LINE: tuple[Promise, ...] = (
    who_waits_gets_what_is_given_back,
    who_need_not_wait_does_not,
    who_waits_in_vain_is_refused,
    who_came_first_goes_first,
    who_comes_later_does_not_overtake,
    who_asks_for_nothing_always_gets_it,
    a_higher_priority_goes_before,
    who_is_cancelled_leaves_the_line_and_holds_nothing,
    who_is_cancelled_when_served_gives_it_back,
    sixty_four_at_once_never_overspend_and_none_is_refused,
)
