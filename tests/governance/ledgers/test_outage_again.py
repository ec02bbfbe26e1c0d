"""A call that is asked for again, by a retry or another delivery, while something of it is still to be taken."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.ledger import Reservation, ReservationRequest
from agentic_trading.governance.prices import Amount
from tests.governance.asking import AT, ask, of_tenant, reserved
from tests.governance.ledgers.outages import Case


async def not_noted(case: Case, wanted: ReservationRequest) -> str:
    """Reserve, and fail to note that it is sent."""
    id_ = await reserved(case.ledger, wanted)
    case.server.fails = {"dispatch", "release"}
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.dispatch(id_)
    await case.ledger.release(id_)
    case.server.fails = set()
    return id_


async def test_pending_release_does_not_cancel_retry() -> None:
    case = Case()
    wanted = ask(100)
    id_ = await not_noted(case, wanted)

    await reserved(case.ledger, wanted)
    await case.ledger.expire_leases()
    await case.ledger.dispatch(id_)
    await case.ledger.expire_leases()
    await case.ledger.settle(id_, Amount(90, 0))

    found = await of_tenant(case.server)
    assert (found.spent.nusd, found.held.nusd) == (90, 0)


async def test_retries_wait_for_release_in_progress() -> None:
    case = Case()
    wanted = ask(100)
    id_ = await not_noted(case, wanted)
    case.server.slow["release"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.expire_leases())
        await asyncio.sleep(0)
        retries = [group.create_task(case.ledger.wait_for_reservation(wanted)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(retry.done() for retry in retries)
        answered.set()

    assert [retry.result() for retry in retries] == [Reservation(id_, Amount(100, 0))] * 2
    assert case.server.statistics().released == 1
    await case.ledger.dispatch(id_)


async def test_retry_with_pending_release_needs_server() -> None:
    case = Case()
    await case.begun(agent="agent-1")
    wanted = ask(50)
    await not_noted(case, wanted)
    case.server.away = True

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.reserve(wanted)
    with pytest.raises(LedgerUnavailableError):
        await case.ledger.wait_for_reservation(wanted)


async def test_duplicates_leave_no_state() -> None:
    case = Case()
    other = case.process()
    for _ in range(20):
        wanted = ask(1)
        id_ = await reserved(other, wanted)
        await reserved(case.ledger, wanted)
        await other.dispatch(id_)
        with pytest.raises(ReservationStateError):
            await case.ledger.dispatch(id_)
        await other.settle(id_, Amount(1, 0))
        assert await reserved(case.ledger, wanted)

    assert await case.remembers() == 0


async def test_calls_ended_elsewhere_are_forgotten() -> None:
    case = Case()
    other = case.process()
    sent, swept = ask(1), ask(1)
    for wanted in (sent, swept):
        await reserved(case.ledger, wanted)
    await other.dispatch(sent.reservation_id)
    with pytest.raises(ReservationStateError):
        await case.ledger.release(sent.reservation_id)
    assert await case.remembers() == 1

    case.clock.advance_to(AT + timedelta(seconds=61))
    await other.expire_leases()
    await other.acknowledge_expired(swept.reservation_id)
    case.clock.advance_to(AT + timedelta(days=1))
    await case.ledger.expire_leases()

    assert await case.remembers() == 0


async def test_failed_second_dispatch_keeps_sent_call() -> None:
    case = Case()
    wanted = ask(60)
    id_ = await case.begun_with(wanted)
    with pytest.raises(ReservationStateError):
        await case.ledger.dispatch(id_)
    with pytest.raises(ReservationStateError):
        await case.ledger.release(id_)
    await case.rebuilt()

    await case.ledger.settle(id_, Amount(50, 0))

    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_call_reserved_elsewhere_can_be_settled() -> None:
    case = Case()
    id_ = await reserved(case.process(), ask(60))

    await case.ledger.dispatch(id_)
    await case.ledger.settle(id_, Amount(50, 0))

    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_second_dispatch_keeps_pending_charge() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.away = True
    await case.ledger.settle(id_, Amount(50, 0))

    with pytest.raises(LedgerUnavailableError):
        await case.ledger.dispatch(id_)

    case.server.away = False
    await case.ledger.expire_leases()
    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_sweep_skips_settlement_in_progress() -> None:
    case = Case()
    id_ = await case.begun()
    case.server.slow["settle"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        settles = group.create_task(case.ledger.settle(id_, Amount(50, 0)))
        await asyncio.sleep(0)
        await case.ledger.expire_leases()
        assert not settles.done()
        answered.set()

    assert (await of_tenant(case.server)).spent.nusd == 50


async def test_late_duplicate_reply_keeps_sent_call() -> None:
    case = Case()
    wanted = ask(60)
    id_ = await reserved(case.ledger, wanted)
    case.server.slow["reserve"] = answered = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(case.ledger.reserve(wanted))
        await asyncio.sleep(0)
        await case.ledger.dispatch(id_)
        answered.set()
    case.server.slow.clear()
    await case.rebuilt()
    await case.ledger.settle(id_, Amount(50, 0))

    assert (await of_tenant(case.server)).spent.nusd == 50
