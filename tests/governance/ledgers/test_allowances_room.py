"""Sums that are set aside take little, and stand in nobody's way for long."""

from datetime import timedelta

import pytest

from agentic_trading.governance.allowance import AllowanceRules
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Blocked, Declined, Reservation, ReservationRequest
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import RULES, Case


async def spend(case: Case, nusd: int = 1, **more: str) -> None:
    await case.ledger.settle(await case.begun(nusd, **more), Amount(nusd, 0))


async def test_many_agents_that_ask_once_take_no_more_than_one_sum() -> None:
    case = Case(rules=RULES)

    for number in range(300):
        await spend(case, agent=f"agent-{number}")

    assert (await of_tenant(case.server)).held == RULES.amount
    assert isinstance(await case.ledger.reserve(ask(600)), Reservation)


async def test_another_tenant_has_a_sum_of_its_own() -> None:
    case = Case(rules=RULES)
    await spend(case)
    await spend(case, tenant="other")
    case.server.away = True

    for name in ("acme", "other"):
        assert isinstance(await case.ledger.reserve(ask(100, tenant=name)), Reservation)


async def test_what_one_agent_gave_back_another_may_have() -> None:
    case = Case(rules=RULES)
    await spend(case)
    case.clock.advance_to(AT + timedelta(seconds=301))
    await case.ledger.expire_leases()

    await spend(case, agent="agent-2")

    case.server.away = True
    assert isinstance(await case.ledger.reserve(ask(100, agent="agent-2")), Reservation)


async def test_it_is_given_back_at_once_when_it_is_in_the_way() -> None:
    case = Case(tenant(200), rules=RULES)
    await spend(case)
    wanted = ask(150)
    assert isinstance(await case.ledger.reserve(wanted), Blocked)
    case.server.fails = {"reserve"}
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))
    case.server.fails = set()

    await case.ledger.expire_leases()

    assert isinstance(await case.ledger.reserve(wanted), Reservation)
    assert (await of_tenant(case.server)).held.nusd == 150


async def test_it_stays_where_others_are_short() -> None:
    agents = Limit(ScopeKind.AGENT, "agent-2", Window.NONE, nusd=50)
    case = Case(tenant(1000), agents, rules=RULES)
    await spend(case)
    await reserved(case.ledger, ask(40, agent="agent-2"))
    assert isinstance(await case.ledger.reserve(ask(40, agent="agent-2")), Blocked)

    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).held.nusd == 140


@pytest.mark.parametrize(
    "dear",
    [ask(2000), ask(1, limits=(Limit(ScopeKind.AGENT, ANY, Window.DAY, tokens=0, calls=0),))],
    ids=["of the tenant", "of its own"],
)
async def test_where_too_little_is_left_nothing_is_set_aside_for_a_while(dear: ReservationRequest) -> None:
    case = Case(rules=RULES)
    assert isinstance(await case.ledger.reserve(dear), Declined)
    await spend(case)
    assert (await of_tenant(case.server)).held.nusd == 0

    case.clock.advance_to(AT + timedelta(seconds=301))
    await case.ledger.expire_leases()
    await spend(case)

    assert (await of_tenant(case.server)).held == RULES.amount


async def test_a_call_that_is_too_dear_for_itself_says_nothing_of_what_is_left() -> None:
    case = Case(rules=RULES)
    own = Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=5)
    assert isinstance(await case.ledger.reserve(ask(9, limits=(own,))), Declined)

    await spend(case)

    assert (await of_tenant(case.server)).held == RULES.amount


@pytest.mark.parametrize("amount", [Amount(0, 10, 10), Amount(10, 0, 10), Amount(10, 10, 0)])
def test_a_sum_that_pays_for_no_call_is_none(amount: Amount) -> None:
    with pytest.raises(ValueError, match="pays for no call; allowed are amounts from 1 on"):
        AllowanceRules(amount)
