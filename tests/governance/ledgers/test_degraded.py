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


async def test_settlement_during_outage_is_posted_later() -> None:
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


async def test_doubt_during_outage_is_charged_later() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True

    told = await case.ledger.in_doubt(id_)

    assert (told.charged, told.in_doubt) == (Amount(60, 0), True)
    case.server.away = False
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).in_doubt == Amount(60, 0, 1)


async def test_entries_come_from_the_server() -> None:
    case = Case()
    await case.ledger.settle(await case.begun(), Amount(70, 5))

    (found,) = await case.ledger.entries("acme")

    assert (found.state, found.charged) == (ReservationState.SETTLED, Amount(70, 5))


def test_awaited_limits_come_from_the_server() -> None:
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


async def test_reserve_fails_while_server_is_away() -> None:
    case = Case()
    await case.begun()
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(ask(1))


async def test_failed_dispatch_is_released_after_outage() -> None:
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


async def test_lost_dispatch_reply_ends_in_doubt() -> None:
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


async def test_sweep_spares_call_dispatched_elsewhere() -> None:
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


async def test_swept_call_is_settled_late() -> None:
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


async def test_unknown_reservation_cannot_be_settled() -> None:
    with pytest.raises(UnknownReservationError):
        await Case().ledger.settle("acme:nobody:1", Amount(1, 0))
