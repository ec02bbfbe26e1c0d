"""A call's way through the limiter, through the gate."""

import asyncio
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, Deferred, Denied
from agentic_trading.governance.errors import LimiterUnavailableError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import (
    FAIR_PATIENCE_S,
    CircuitState,
    Deployment,
    Failed,
    Permit,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttle,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest
from tests.build import NOW
from tests.governance.asking import select
from tests.governance.gates import USAGE, admitted, gate, tenant
from tests.governance.requests import request

PLENTY = 10**15
LANE = Deployment(LLMProvider.SCRIPTED, "scripted-1")
OUTAGE = Failed(kind=FailureKind.SERVER_ERROR, sent=True)


class Moving(SimClock):
    """A clock whose monotonic time moves when somebody sleeps."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds


class Case:
    def __init__(self, limits: RateLimits | None = None, **more: Any) -> None:
        self.clock = Moving(NOW)
        self.limiter = MemoryLimiter({LANE: limits or RateLimits()}, clock=self.clock, **more)
        self.ledger = MemoryLedger([tenant(PLENTY)])
        self.gate: Gate = gate(self.ledger, throttle=Throttle(self.limiter, self.clock))
        self.made = 0

    def request(self) -> ModelRequest:
        self.made += 1
        return request(envelope_id=f"call-{self.made}", idempotency_key=f"call-{self.made}")

    async def failing(self, times: int) -> None:
        for _ in range(times):
            admission = await admitted(self.gate, self.request())
            await self.gate.lifecycle.dispatch(admission)
            await self.gate.lifecycle.in_doubt(admission, OUTAGE)

    async def held_nusd(self) -> int:
        (found,) = select(await self.ledger.balances("default"), tenant(1).scope, "default", tenant(1).window)
        return found.held.nusd


async def test_throttled_call_holds_no_money() -> None:
    case = Case(RateLimits(concurrent=1))
    first = await admitted(case.gate, case.request())

    second = await case.gate.admit(case.request())

    assert isinstance(second, Deferred)
    assert isinstance(second.held, Throttled)
    assert await case.held_nusd() == first.amount.nusd


async def test_waiting_call_enters_when_slot_frees() -> None:
    case = Case(RateLimits(concurrent=1))
    first = await admitted(case.gate, case.request())
    waiting = case.request()
    parked = await case.gate.admit(waiting)
    assert isinstance(parked, Deferred)

    await case.gate.lifecycle.dispatch(first)
    await case.gate.lifecycle.settle(first, USAGE)
    await case.gate.headroom(parked)

    assert isinstance(await case.gate.admit(waiting), Admitted)


@pytest.mark.parametrize("way_out", ["settled", "unsent", "in doubt", "released"])
async def test_every_outcome_returns_the_permit(way_out: str) -> None:
    case = Case(RateLimits(concurrent=1))
    admission = await admitted(case.gate, case.request())
    if way_out != "released":
        await case.gate.lifecycle.dispatch(admission)

    match way_out:
        case "settled":
            await case.gate.lifecycle.settle(admission, USAGE)
        case "unsent":
            await case.gate.lifecycle.settle_unsent(admission, OUTAGE)
        case "in doubt":
            await case.gate.lifecycle.in_doubt(admission)
        case _:
            await case.gate.release(admission)

    assert (await case.limiter.status(LANE)).in_flight == 0


async def test_failing_provider_opens_the_circuit() -> None:
    case = Case()
    await case.failing(10)

    answer = await case.gate.admit(case.request())

    assert isinstance(answer, Denied)
    assert answer.reason.category is FailureKind.CIRCUIT_OPEN
    assert answer.reason.recoverable
    assert await case.held_nusd() == 0


async def test_refusals_and_cancellations_keep_circuit_closed() -> None:
    case = Case()
    for failure in (
        None,
        Failed(kind=FailureKind.INVALID_REQUEST, sent=False),
        Failed(kind=FailureKind.RATE_LIMIT, sent=False),
    ):
        for _ in range(10):
            admission = await admitted(case.gate, case.request())
            await case.gate.lifecycle.dispatch(admission)
            await case.gate.lifecycle.settle_unsent(admission, failure)

    assert (await case.limiter.status(LANE)).breaker is CircuitState.CLOSED


@pytest.mark.parametrize(
    ("patience_s", "state"), [(0.001, CircuitState.CLOSED), (FAIR_PATIENCE_S, CircuitState.OPEN)]
)
async def test_short_caller_timeout_opens_no_circuit(patience_s: float, state: CircuitState) -> None:
    case = Case()
    for _ in range(20):
        asked = case.request()
        if (await case.limiter.status(LANE)).breaker is CircuitState.OPEN:
            break
        admission = await admitted(case.gate, asked)
        with pytest.raises(ProviderError, match="no answer within"):
            async with case.gate.sent(admission, asked.envelope, patience_s=patience_s) as sent:
                raise TimeoutError  # as the block's own limit does, however long that is
        assert sent.charge.in_doubt

    assert (await case.limiter.status(LANE)).breaker is state


async def test_provider_cooldown_affects_all_calls() -> None:
    case = Case()
    admission = await admitted(case.gate, case.request())
    await case.gate.lifecycle.dispatch(admission)
    limited = Failed(kind=FailureKind.RATE_LIMIT, sent=False, retry_after_s=7.0)
    await case.gate.lifecycle.settle_unsent(admission, limited)

    answer = await case.gate.admit(case.request())

    assert isinstance(answer, Deferred)
    assert isinstance(answer.held, Throttled)
    assert (answer.held.reason, answer.held.retry_after_s) == ("cooldown", 7.0)


async def test_retry_budget_limits_only_retries() -> None:
    case = Case(retries=RetryBudget(share=0.1, least=2))
    for _ in range(2):
        assert isinstance(await case.gate.admit(case.request(), is_retry=True), Admitted)

    refused = await case.gate.admit(case.request(), is_retry=True)

    assert isinstance(refused, Denied)
    assert refused.reason.category is FailureKind.RETRY_BUDGET
    assert isinstance(await case.gate.admit(case.request()), Admitted)


class Away(MemoryLimiter):
    async def acquire(self, request: PermitRequest) -> Permit:
        raise LimiterUnavailableError("connection refused")


async def test_calls_continue_without_the_limiter() -> None:
    ledger = MemoryLedger([tenant(PLENTY)])
    clock = SimClock(NOW)
    through = gate(ledger, throttle=Throttle(Away(), clock))

    admission = await admitted(through, request())
    await through.lifecycle.dispatch(admission)
    charge = await through.lifecycle.settle(admission, USAGE)

    assert admission.permit is None
    assert charge.cost_nusd > 0


class Endless(MemoryLimiter):
    async def acquire(self, request: PermitRequest) -> Permit:
        await asyncio.Event().wait()
        raise AssertionError(request)


async def test_cancelled_acquire_holds_no_money() -> None:
    ledger = MemoryLedger([tenant(PLENTY)])
    through = gate(ledger, throttle=Throttle(Endless(), SimClock(NOW)))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await through.admit(request())

    assert ledger.statistics().in_flight == 0
