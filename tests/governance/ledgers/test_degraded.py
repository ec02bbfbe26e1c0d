"""While the server is away: what has begun is told and booked later, and nothing new begins."""

from datetime import timedelta

import pytest

from agentic_trading.governance.errors import (
    LedgerUnavailableError,
    UnknownReservationError,
)
from agentic_trading.governance.ledger import (
    Reservation,
    ReservationState,
    Settlement,
)
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, of_tenant, reserved
from tests.governance.ledgers.outages import Case
from tests.worker.ticking import Wall


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


async def test_the_calls_that_are_known_are_those_of_the_server() -> None:
    case = Case()
    await case.ledger.settle(await case.begun(), Amount(70, 5))

    (found,) = await case.ledger.entries("acme")

    assert (found.state, found.charged) == (ReservationState.SETTLED, Amount(70, 5))


def test_limits_to_read_again_are_those_of_the_server() -> None:
    class SetBack(MemoryLedger):
        awaited = 3

        def awaited_limits(self, tenant: str) -> int:
            return self.awaited

        def confirm_limits(self, tenant: str, awaited: int) -> None:
            self.awaited -= awaited

    ledger = DegradedModeLedger(SetBack(), clock=Wall(AT))

    assert ledger.awaited_limits("acme") == 3
    ledger.confirm_limits("acme", 3)
    assert ledger.awaited_limits("acme") == 0


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


async def test_a_call_that_a_sweep_has_ended_is_settled_late_all_the_same() -> None:
    case = Case()
    id_ = await reserved(case.ledger, ask(60))
    await case.ledger.dispatch(id_, lease_s=10)
    case.clock.advance_to(AT + timedelta(seconds=11))
    (ended,) = await case.ledger.expire_leases()
    await case.ledger.acknowledge_expired(id_)
    case.clock.advance_to(AT + timedelta(hours=1))
    assert await case.ledger.expire_leases() == []

    settlement = await case.ledger.settle(id_, Amount(20, 0))

    assert (ended.state, settlement.late) == (ReservationState.IN_DOUBT, True)
    assert (await of_tenant(case.server)).spent == Amount(20, 0, 1)
    assert isinstance(await case.ledger.reserve(ask(900)), Reservation)


async def test_what_nobody_here_has_reserved_is_unknown() -> None:
    with pytest.raises(UnknownReservationError):
        await Case().ledger.settle("acme:nobody:1", Amount(1, 0))
