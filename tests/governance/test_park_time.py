"""A wait for held money ends after `park_s`, on each ledger. The attempt is then denied as busy, and holds nothing."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, Deferred, Denied
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import RateLimits, Throttled
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.limits import RetryPolicy
from tests.build import NOW
from tests.contracts.ledger_opening import in_line
from tests.contracts.test_ledger import ADAPTERS, Adapter
from tests.governance.gates import MOST_NUSD, admitted, gate, parked, refused, tenant
from tests.governance.requests import request
from tests.governance.test_throttle import Case

SOON = RetryPolicy(park_s=0.02)
LONG = RetryPolicy(park_s=3600)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_wait_for_held_money_ends_as_busy(adapter: Adapter, request_of: Any) -> None:
    async with adapter(request_of) as opens:
        ledger: Any = await opens(tenant(MOST_NUSD))
        at = gate(ledger)
        first = await admitted(at, request())
        asked = request(retry_policy=SOON)

        await at.headroom(await parked(at, asked))
        denied = await at.admit(asked)
        await in_line(ledger, 0, tenant="default")
        await at.release(first)
        again = await at.admit(asked)

    assert isinstance(denied, Denied)
    assert denied.reason.category is FailureKind.BUDGET_BUSY
    assert denied.reason.recoverable
    assert denied.reason.description == (
        "tenant default has 0 USD free until calls in flight end, the call may need 0.011154 USD; ask again later"
    )
    assert isinstance(again, Admitted)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_money_that_is_freed_in_time_admits_the_call(adapter: Adapter, request_of: Any) -> None:
    async with adapter(request_of) as opens:
        ledger: Any = await opens(tenant(MOST_NUSD))
        at = gate(ledger)
        first = await admitted(at, request())
        asked = request(retry_policy=LONG)
        waiting = await parked(at, asked)

        async with asyncio.TaskGroup() as group:
            group.create_task(at.headroom(waiting))
            await in_line(ledger, 1, tenant="default")
            await at.release(first)

        assert isinstance(await at.admit(asked), Admitted)


@pytest.fixture
def request_of(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    """Return pytest's own request, because `request` builds one to a model here."""
    return request


async def held() -> tuple[Gate, SimClock]:
    """Return a gate whose only money is held, and its clock."""
    clock = SimClock(NOW)
    at = gate(MemoryLedger([tenant(MOST_NUSD)]), clock=clock)
    await admitted(at, request())
    return at, clock


async def test_deadline_during_the_wait_is_busy_too() -> None:
    at, clock = await held()
    asked = request(retry_policy=LONG, deadline=NOW + timedelta(milliseconds=20))

    await at.headroom(await parked(at, asked))
    clock.advance_to(NOW + timedelta(seconds=1))

    assert await refused(at, asked) is FailureKind.BUDGET_BUSY
    assert await refused(at, asked) is FailureKind.EXPIRED


async def test_next_ask_of_a_busy_attempt_waits_again() -> None:
    at, _ = await held()
    asked = request(retry_policy=SOON)

    await at.headroom(await parked(at, asked))

    assert await refused(at, asked) is FailureKind.BUDGET_BUSY
    assert isinstance(await at.admit(asked), Deferred)


async def test_amount_above_the_rest_is_exhausted_at_once() -> None:
    at = gate(MemoryLedger([tenant(MOST_NUSD - 1)]))

    assert await refused(at, request(retry_policy=SOON)) is FailureKind.BUDGET_EXHAUSTED


async def test_rate_limits_are_waited_for_until_the_deadline() -> None:
    case = Case(RateLimits(concurrent=1))
    await admitted(case.gate, case.request())
    clock = case.gate._clock
    asked = request(retry_policy=SOON, deadline=clock.now() + timedelta(milliseconds=40))
    waiting = await parked(case.gate, asked)

    await case.gate.headroom(waiting)

    assert isinstance(waiting.held, Throttled)
    assert case.gate._waited == {}


def test_policy_without_the_time_has_the_bytes_of_earlier_releases() -> None:
    assert b"park_s" not in RetryPolicy().wire
    assert b'"park_s":20' in RetryPolicy(park_s=20).wire
