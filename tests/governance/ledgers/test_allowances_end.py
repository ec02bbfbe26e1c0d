"""How a sum that was set aside ends: booked, dropped when the ledger does not know it any more, or never had."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Reservation, ReservationState
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import RULES, Case

HALF_OVER = AT + timedelta(seconds=301)


async def test_a_rebuilt_ledger_has_no_sum_set_aside_so_none_is_spent() -> None:
    case = Case(rules=RULES)
    await case.begun()
    await case.rebuilt()
    await case.ledger.expire_leases()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_where_there_was_no_room_it_is_asked_for_again_only_after_a_while() -> None:
    case = Case(tenant(120), rules=RULES)
    await case.ledger.settle(await case.begun(60), Amount(10, 0))
    refused = case.server.statistics().refused + case.server.statistics().held

    await case.ledger.settle(await case.begun(60), Amount(5, 0))
    assert case.server.statistics().refused + case.server.statistics().held == refused

    case.clock.advance_to(HALF_OVER)
    await case.ledger.expire_leases()
    await case.ledger.settle(await case.begun(1), Amount(0, 0))
    assert (await of_tenant(case.server)).held == Amount(100, 1000, 10)


async def test_calls_that_were_paid_from_it_are_forgotten_when_it_is_booked() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True
    wanted = ask(50, key="local")
    id_ = await reserved(case.ledger, wanted)
    await case.ledger.dispatch(id_)
    await case.ledger.settle(id_, Amount(20, 0))
    case.server.away = False
    assert await case.ledger.state_of(id_) is ReservationState.SETTLED

    case.clock.advance_to(HALF_OVER)
    await case.ledger.expire_leases()

    assert await case.ledger.state_of(id_) is None


async def test_a_call_that_a_sweep_has_ended_is_settled_late_all_the_same() -> None:
    case = Case()
    id_ = await reserved(case.ledger, ask(60))
    await case.ledger.dispatch(id_, lease_s=10)
    case.clock.advance_to(AT + timedelta(seconds=11))
    (ended,) = await case.ledger.expire_leases()

    settlement = await case.ledger.settle(id_, Amount(20, 0))

    assert (ended.state, settlement.late) == (ReservationState.IN_DOUBT, True)
    assert (await of_tenant(case.server)).spent == Amount(20, 0, 1)
    assert isinstance(await case.ledger.reserve(ask(900)), Reservation)


async def spent_locally(case: Case, nusd: int, used: int) -> str:
    """Make a call while the server is away."""
    case.server.away = True
    id_ = await case.begun(nusd)
    await case.ledger.settle(id_, Amount(used, 0))
    case.server.away = False
    return id_


async def end_all(case: Case) -> None:
    """Let everything that was set aside come to its end."""
    case.clock.advance_to(case.clock.now() + timedelta(days=1))
    for _ in range(2):
        await case.ledger.expire_leases()


async def test_it_pays_for_nobody_once_it_is_given_back_though_the_answer_is_lost() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(60, 0))
    await spent_locally(case, 40, 30)
    case.clock.advance_to(HALF_OVER)
    case.server.loses = {"settle"}
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.expire_leases()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))

    case.server.away, case.server.loses = False, set()
    await end_all(case)
    assert (await of_tenant(case.server)).spent.nusd == 60 + 30


async def test_it_pays_for_nobody_while_it_is_being_given_back() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(60, 0))
    case.clock.advance_to(HALF_OVER)
    case.server.slow["settle"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.expire_leases())
        await asyncio.sleep(0)
        case.server.fails = {"reserve"}
        with pytest.raises(LedgerUnavailableError):
            await case.ledger.reserve(ask(1))
        answered.set()


@pytest.mark.parametrize(("used", "spent"), [(20, 50), (50, 50), (75, 75)])
async def test_an_answer_that_comes_late_while_it_is_being_booked_opens_nothing_again(
    used: int, spent: int
) -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(0, 0))
    case.server.away = True
    id_ = await case.begun(50)
    await case.ledger.in_doubt(id_)
    case.server.away = False
    case.clock.advance_to(HALF_OVER)
    case.server.slow["settle"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.expire_leases())
        await asyncio.sleep(0)
        assert (await case.ledger.settle(id_, Amount(used, 0))).late
        case.server.fails = {"reserve"}
        with pytest.raises(LedgerUnavailableError):
            await case.ledger.reserve(ask(1))
        case.server.fails = set()
        answered.set()

    assert (await of_tenant(case.server)).spent.nusd == spent


async def test_what_was_used_is_charged_though_the_ledger_does_not_know_the_sum_any_more() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(1, 0))
    await case.rebuilt()
    await spent_locally(case, 50, 40)

    await case.ledger.expire_leases()

    found = await of_tenant(case.server)
    assert (found.spent, found.held.nusd) == (Amount(40, 0, 1), 0)


async def test_it_is_given_back_when_the_ledger_was_rebuilt_though_it_is_held_there() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(1, 0))
    await case.server.restore("acme", [])
    assert (await of_tenant(case.server)).held.nusd == 100

    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).held.nusd == 0


async def test_who_books_a_log_again_spends_no_sum_of_before() -> None:
    case = Case(rules=RULES)
    await case.begun()
    await case.ledger.restore("acme", [])
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_what_was_used_before_the_ledger_went_back_is_charged_when_it_is_rebuilt() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(1, 0))
    await spent_locally(case, 50, 40)
    await case.rebuilt()
    await case.lose()
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))
    await case.ledger.expire_leases()

    await case.server.restore("acme", [])
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).spent.nusd == 40


async def test_the_ledger_of_one_tenant_that_has_gone_back_ends_no_sum_of_another() -> None:
    case = Case(rules=RULES)
    await case.begun()
    await case.begun(tenant="other")
    await case.lose()
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))
    await case.ledger.expire_leases()
    case.server.away = True

    assert isinstance(await case.ledger.reserve(ask(1, tenant="other")), Reservation)


async def test_while_the_server_is_away_it_lasts_until_its_lease_is_over() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True
    case.clock.advance_to(AT + timedelta(seconds=599))
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.expire_leases()
    assert isinstance(await case.ledger.reserve(ask(1)), Reservation)

    case.clock.advance_to(AT + timedelta(seconds=600))

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_calls_that_nobody_ends_do_not_keep_it_for_ever() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(0, 0))
    case.server.away = True
    await reserved(case.ledger, ask(10))
    await case.begun(20)
    case.server.away = False
    case.clock.advance_to(AT + timedelta(seconds=600))
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).in_doubt.nusd == 100

    await end_all(case)

    found = await of_tenant(case.server)
    assert (found.spent.nusd, found.in_doubt.nusd, found.held.nusd) == (20, 0, 0)


async def test_two_who_book_it_at_once_book_it_once_and_end_no_sum_that_follows() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(0, 0))
    await spent_locally(case, 40, 30)
    case.clock.advance_to(HALF_OVER)
    case.server.slow["settle"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(case.ledger.expire_leases()) for _ in range(2))
        await asyncio.sleep(0)
        answered.set()
        while not first.done() and not second.done():  # noqa: ASYNC110 - until one of them has booked it
            await asyncio.sleep(0)
        await case.ledger.reserve(ask(1))

    found = await of_tenant(case.server)
    assert (found.spent.nusd, found.held.nusd) == (30, 1 + 100)


async def test_a_sum_that_the_ledger_may_have_forgotten_while_it_was_asked_for_pays_for_nobody() -> None:
    case = Case(rules=RULES)
    case.server.slow["dispatch"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.reserve(ask(50)))
        await asyncio.sleep(0)
        await case.ledger.expire_leases()
        await case.ledger.restore("acme", [])
        answered.set()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))
