"""While the server is away: what has begun is told and booked later, and only what was set aside is spent."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agentic_trading.governance.errors import (
    LedgerRolledBackError,
    LedgerUnavailableError,
    ReservationStateError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    LedgerCheckpoint,
    Reservation,
    ReservationRequest,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm.envelope import EnvelopeWorkflow
from tests.governance.asking import AT, ask, of_tenant, reserved, tenant
from tests.governance.ledgers.outages import RULES, Case


async def test_what_was_answered_meanwhile_is_told_at_once_and_booked_when_the_server_is_back() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True

    told = await case.ledger.settle(id_, Amount(70, 5))
    again = await case.ledger.settle(id_, Amount(70, 5))

    assert told == again == Settlement(id_, Amount(70, 5), Amount(60, 0), Amount(10, 5, 0))
    assert (await of_tenant(case.server)).held.nusd == 60
    case.server.away = False
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).spent == Amount(70, 5, 1)


async def test_a_call_in_doubt_is_charged_when_the_server_is_back() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True

    told = await case.ledger.in_doubt(id_)

    assert (told.charged, told.in_doubt) == (Amount(60, 0), True)
    case.server.away = False
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).in_doubt == Amount(60, 0, 1)


async def test_nobody_begins_without_the_server() -> None:
    case = Case()
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_what_could_not_be_noted_as_sent_is_given_back() -> None:
    case = Case()
    id_ = await reserved(case.ledger, ask(60))
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.dispatch(id_)
    await case.ledger.release(id_)

    case.server.away = False
    await case.ledger.expire_leases()
    found = await of_tenant(case.server)
    assert (found.held, found.spent.nusd) == (Amount(0, 0, 0), 0)


async def test_what_was_noted_though_its_reply_was_lost_is_in_doubt_when_its_lease_is_over() -> None:
    case = Case()
    id_ = await reserved(case.ledger, ask(60))
    case.server.loses = {"dispatch"}
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.dispatch(id_, lease_s=10)

    case.server.loses = set()
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).held.nusd == 60
    case.clock.advance_to(AT + timedelta(seconds=11))
    await case.ledger.expire_leases()

    assert (await of_tenant(case.server)).in_doubt == Amount(60, 0, 1)


async def test_a_call_that_another_run_has_sent_meanwhile_is_not_taken_back() -> None:
    case = Case()
    wanted = ask(60)
    id_ = await reserved(case.ledger, wanted)
    case.server.away = True
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.dispatch(id_)
    case.server.away = False
    await case.server.dispatch(await reserved(case.server, wanted))

    await case.ledger.expire_leases()
    await case.server.settle(id_, Amount(50, 0))

    assert (await of_tenant(case.server)).spent == Amount(50, 0, 1)


async def test_an_analysis_goes_on_with_what_was_set_aside_and_no_further() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True

    first = await reserved(case.ledger, ask(80, key="first"))
    await case.ledger.dispatch(first)
    settled = await case.ledger.settle(first, Amount(70, 0))

    assert settled.charged == Amount(70, 0)
    assert await reserved(case.ledger, ask(30))
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_what_was_used_of_it_is_booked_and_the_rest_given_back() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(60, 0))
    assert (await of_tenant(case.server)).held == Amount(100, 1000, 10)
    case.server.away = True
    id_ = await reserved(case.ledger, ask(80))
    await case.ledger.dispatch(id_)
    await case.ledger.settle(id_, Amount(70, 5))

    case.server.away = False
    case.clock.advance_to(AT + timedelta(seconds=301))
    await case.ledger.expire_leases()

    found = await of_tenant(case.server)
    assert (found.spent, found.held) == (Amount(130, 5, 2), Amount(0, 0, 0))


async def test_a_process_that_ends_gives_it_back() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(60, 0))

    await case.ledger.aclose()

    found = await of_tenant(case.server)
    assert (found.spent, found.held) == (Amount(60, 0, 1), Amount(0, 0, 0))


async def test_a_process_that_dies_leaves_it_charged_in_full() -> None:
    case = Case(rules=RULES)
    await case.ledger.settle(await case.begun(), Amount(60, 0))

    case.clock.advance_to(AT + timedelta(seconds=601))
    await case.server.expire_leases()

    assert (await of_tenant(case.server)).in_doubt == Amount(100, 1000, 10)


@pytest.mark.parametrize(
    "other",
    [
        ask(1, workflow="execution"),
        ask(1, agent="agent-2"),
        ask(1, tenant="other"),
        ask(1, attempt=2, limits=(Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=5),)),
        ask(9, limits=(Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=5),)),
        ask(1, limits=(Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=5),)),
    ],
    ids=["execution", "another agent", "another tenant", "second attempt", "too dear", "calls a day"],
)
async def test_who_could_pass_a_limit_does_not_begin(other: ReservationRequest) -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(other)


async def test_with_a_limit_on_traces_nobody_begins() -> None:
    case = Case(tenant(1000), Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=500), rules=RULES)
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_it_is_good_for_the_windows_that_it_was_booked_in() -> None:
    case = Case(tenant(1000, window=Window.DAY), rules=RULES)
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(replace(ask(1), at=AT + timedelta(days=1)))
    assert isinstance(await case.ledger.reserve(ask(1)), Reservation)


async def test_limits_that_an_operator_set_count() -> None:
    case = Case(rules=RULES)
    await case.ledger.apply_limits("acme", [Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=500)], version=1)
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_without_room_for_it_nothing_is_set_aside() -> None:
    case = Case(tenant(120), rules=RULES)

    await case.begun()

    assert (await of_tenant(case.server)).held == Amount(60, 0, 1)


async def test_a_ledger_that_has_gone_back_pays_for_nothing() -> None:
    case = Case(rules=RULES)
    await case.begun()
    await case.ledger.require_at_least("acme", LedgerCheckpoint(7, "another", 1))
    with pytest.raises(LedgerRolledBackError):
        await case.ledger.reserve(ask(1))
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_the_steps_of_a_call_paid_from_it_are_those_of_any_other() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True
    wanted = ask(50, key="local")
    id_ = await reserved(case.ledger, wanted)
    with pytest.raises(ReservationStateError):
        await case.ledger.settle(id_, Amount(1, 0))
    await case.ledger.dispatch(id_)
    with pytest.raises(ReservationStateError):
        await case.ledger.dispatch(id_)
    with pytest.raises(ReservationStateError):
        await case.ledger.release(id_)

    doubtful = await case.ledger.in_doubt(id_)
    late = await case.ledger.settle(id_, Amount(20, 0))

    assert (doubtful.charged.nusd, doubtful.in_doubt) == (50, True)
    assert (late.charged.nusd, late.late) == (20, True)
    assert await case.ledger.settle(id_, Amount(1, 0)) == late
    assert await case.ledger.state_of(id_) is ReservationState.SETTLED
    assert await case.ledger.reserve(wanted) == Reservation(id_, Amount(50, 0), ReservationState.SETTLED)
    assert await reserved(case.ledger, ask(80))


async def test_a_released_call_gives_its_part_back() -> None:
    case = Case(rules=RULES)
    await case.begun()
    case.server.away = True
    await case.ledger.release(await reserved(case.ledger, ask(100)))

    assert await reserved(case.ledger, ask(100))


def test_rules_are_for_analyses_unless_they_say_otherwise() -> None:
    assert RULES.workflows == frozenset({EnvelopeWorkflow.ANALYSIS})


async def test_what_nobody_here_has_reserved_is_unknown() -> None:
    with pytest.raises(UnknownReservationError):
        await Case().ledger.settle("acme:nobody:1", Amount(1, 0))
