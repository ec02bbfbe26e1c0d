"""Who would fit but for calls in flight waits at the gate, in turn, and holds nothing meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, AlreadyDispatched, Deferred, reservation_id_of
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Blocked, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rules import Quote
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage
from tests.build import NOW
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import ask, balance, spend
from tests.governance.away import AwayLedger
from tests.governance.gates import MOST, MOST_NUSD, USAGE, USED_NUSD, admitted, gate, parked, refused, tenant
from tests.governance.requests import request


async def has_its_turn(
    at: Gate, ledger: MemoryLedger, asked: ModelRequest, *, input_tokens: int | None = None
) -> Quote:
    """Have a request wait for what another call holds until that is given back; return what was quoted for it."""
    first = await admitted(at, request())
    waiting = await at.admit(asked, input_tokens=input_tokens)
    assert isinstance(waiting, Deferred)
    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.release(first)
    assert waiting.quote is not None
    return waiting.quote


async def test_request_waits_for_calls_in_flight() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD + USED_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request())
    await at.lifecycle.dispatch(first)
    asked = request()
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.lifecycle.settle(first, USAGE)
    second = await admitted(at, asked)

    assert isinstance(waiting.held, Blocked)
    assert waiting.held.scope is ScopeKind.TENANT
    assert second.amount == MOST
    assert (await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")).held == MOST
    assert (at.statistics().admitted, at.statistics().parked) == (2, 1)
    assert at.statistics().waited_s > 0


async def test_refused_waiter_is_counted_once() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD + USED_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request())
    await at.lifecycle.dispatch(first)
    asked = request()
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.lifecycle.in_doubt(first)

    assert await refused(at, asked) is FailureKind.BUDGET_EXHAUSTED
    assert ledger.statistics().refused == 1


async def test_waiter_sees_attempt_sent_elsewhere() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request())
    asked = request()
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.release(first)
        sends = await admitted(gate(ledger), asked)
        await at.lifecycle.dispatch(sends)

    assert await at.admit(asked) == AlreadyDispatched(sends.reservation_id, ReservationState.DISPATCHED)
    assert await at.admit(asked) == AlreadyDispatched(sends.reservation_id, ReservationState.DISPATCHED)


async def test_waiter_is_admitted_after_lease_expiry() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)], reserved_lease_s=0)
    at = gate(ledger)
    asked = request()
    await has_its_turn(at, ledger, asked)
    assert len(await ledger.expire_leases()) == 1

    again = await admitted(at, asked)
    await at.lifecycle.dispatch(again)

    assert (again.amount, again.reservation_id) == (MOST, reservation_id_of(asked.envelope, 1))
    assert (await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")).held == MOST


async def test_waiter_with_expired_lease_waits_again() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)], reserved_lease_s=0)
    at = gate(ledger)
    asked = request()
    await has_its_turn(at, ledger, asked)
    await ledger.expire_leases()
    other = await admitted(at, request())
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.release(other)

    await at.lifecycle.dispatch(await admitted(at, asked))


@pytest.mark.parametrize("is_over", [False, True])
async def test_waiter_keeps_the_original_quote(*, is_over: bool) -> None:
    clock = SimClock(NOW)
    ledger = MemoryLedger([tenant(MOST_NUSD)], reserved_lease_s=0)
    at = gate(ledger, clock=clock, mode="paper")
    asked = request()
    quoted = await has_its_turn(at, ledger, asked, input_tokens=10)
    if is_over:
        await ledger.expire_leases()
    clock.advance_to(NOW + timedelta(minutes=1))

    again = await admitted(at, asked)

    assert again.amount == quoted.amount != MOST
    assert again.priced_at == quoted.priced_at == NOW


async def test_waiter_is_refused_without_the_ledger() -> None:
    ledger = AwayLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    asked = request()
    await has_its_turn(at, ledger, asked)
    ledger.leave("reserve")

    assert await refused(at, asked) is FailureKind.LEDGER_UNAVAILABLE


async def test_late_waiter_sees_attempt_already_sent() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request())
    asked = request()
    waiting = await parked(at, asked)
    await at.release(first)
    await at.lifecycle.dispatch(await admitted(at, asked))

    await at.headroom(waiting)

    assert await at.admit(asked) == AlreadyDispatched(
        reservation_id_of(asked.envelope, 1), ReservationState.DISPATCHED
    )


async def test_deadline_ends_the_wait() -> None:
    clock = SimClock(NOW)
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger, clock=clock)
    await admitted(at, request())
    asked = request(deadline=NOW + timedelta(milliseconds=20))

    await at.headroom(await parked(at, asked))
    clock.advance_to(NOW + timedelta(seconds=1))

    assert await refused(at, asked) is FailureKind.EXPIRED
    assert (ledger.statistics().waiting, ledger.statistics().in_flight) == (0, 1)


async def test_headroom_after_deadline_is_returned() -> None:
    clock = SimClock(NOW)
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger, clock=clock)
    first = await admitted(at, request())
    asked = request(deadline=NOW + timedelta(seconds=30))
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.release(first)
    clock.advance_to(NOW + timedelta(seconds=31))

    assert await refused(at, asked) is FailureKind.EXPIRED
    assert ledger.statistics().in_flight == 0


async def test_refusal_after_deadline_counts_as_expired() -> None:
    clock = SimClock(NOW)
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger, clock=clock)
    first = await admitted(at, request())
    await at.lifecycle.dispatch(first)
    asked = request(deadline=NOW + timedelta(seconds=30))
    waiting = await parked(at, asked)

    async with asyncio.TaskGroup() as group:
        group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        await at.lifecycle.in_doubt(first)
    clock.advance_to(NOW + timedelta(seconds=31))

    assert await refused(at, asked) is FailureKind.EXPIRED


async def test_cancelled_waiter_holds_no_reservation() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)])
    at = gate(ledger)
    first = await admitted(at, request())
    waiting = await parked(at, request())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(at.headroom(waiting))
        await in_line(ledger, 1, tenant="default")
        task.cancel()
    await at.release(first)

    assert (ledger.statistics().waiting, ledger.statistics().in_flight) == (0, 0)


async def test_wait_in_closed_window_ends_immediately() -> None:
    ledger = MemoryLedger([tenant(MOST_NUSD)], keep=timedelta(hours=1))
    at = gate(ledger, mode="backtest")
    await admitted(at, request(as_of=NOW))
    asked = request(as_of=NOW)
    waiting = await parked(at, asked)
    await spend(ledger, ask(tenant="other", at=NOW + timedelta(days=2)))

    await at.headroom(waiting)

    assert await refused(at, asked) is FailureKind.INVALID_REQUEST


async def test_all_calls_complete_on_small_budget() -> None:
    ledger = MemoryLedger([tenant(10 * MOST_NUSD)])
    at = gate(ledger)
    charged: list[int] = []
    small = Usage(input_tokens=10, output_tokens=10)

    async def call(number: int) -> None:
        asked = request(idempotency_key=f"call-{number}")
        answer = await at.admit(asked)
        while isinstance(answer, Deferred):
            await at.headroom(answer)
            answer = await at.admit(asked)
        assert isinstance(answer, Admitted)
        await asyncio.sleep(0)
        await at.lifecycle.dispatch(answer)
        await asyncio.sleep(0)
        charged.append((await at.lifecycle.settle(answer, small)).cost_nusd)

    async with asyncio.TaskGroup() as group:
        for number in range(64):
            group.create_task(call(number))

    found = await balance(ledger, ScopeKind.TENANT, "default", Window.NONE, tenant="default")
    assert len(charged) == 64
    assert (found.spent.nusd, found.held) == (sum(charged), Amount(0, 0, 0))
    assert found.spent.nusd <= 10 * MOST_NUSD
    assert at.statistics().refused == {}
