"""Who waits is overtaken by others for a bounded time only, whatever priorities they ask for."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import SimClock
from agentic_trading.governance.ledger import Reservation
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Permit, PermitOutcome, PermitRequest, RateLimits
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limits import queue_priority
from agentic_trading.llm.envelope import EnvelopeWorkflow
from tests.build import envelope
from tests.contracts.ledger_opening import in_line
from tests.contracts.limiter_opening import DEPLOYMENT, HandClock
from tests.governance.asking import AT, ask, reserved, tenant

Arrival = tuple[float, int]
"""Seconds since the first one, and the priority in the queue."""

TWO_MINUTES = 120
priorities = st.builds(
    lambda asked, workflow: queue_priority(envelope(priority=asked, workflow=workflow)),
    st.one_of(st.integers(-100, 100), st.sampled_from([-(2**31), 2**31])),
    st.sampled_from(EnvelopeWorkflow),
)
arrivals = st.lists(st.tuples(st.sampled_from([0, 1, 30, 100, 3000]), priorities), min_size=2, max_size=8)


def check_bounds(came: Sequence[Arrival], served: Sequence[int]) -> None:
    """Hold an order of service to the bounds in the manual; `served` are places in `came`."""
    assert sorted(served) == list(range(len(came)))
    for turn, one in enumerate(served):
        for other in served[turn + 1 :]:
            later = came[one][0] - came[other][0]  # by how much the one that was served first came later
            is_execution = came[one][1] > TWO_MINUTES
            assert later <= (3600 if is_execution else 0) + TWO_MINUTES
            assert later < came[one][1] - came[other][1] or (later <= 0 and other > one) or later == 0


def moments(gaps: Sequence[Arrival]) -> list[Arrival]:
    """Return when each came, from how long after the one before."""
    found, now = [], 0.0
    for gap, priority in gaps:
        now += gap
        found.append((now, priority))
    return found


@given(arrivals)
def test_ledger_queue_bounds_overtaking(gaps: list[Arrival]) -> None:
    came = moments(gaps)
    served: list[int] = []

    async def serve() -> None:
        clock = SimClock(AT)
        ledger = MemoryLedger([tenant(100)], clock=clock)
        first = await reserved(ledger, ask(100))

        async def wait(number: int, priority: int) -> None:
            answer = await ledger.wait_for_reservation(ask(60, priority=priority))
            assert isinstance(answer, Reservation)
            served.append(number)
            await ledger.release(answer.id)

        async with asyncio.TaskGroup() as group:
            for number, (seconds, priority) in enumerate(came):
                clock.advance_to(AT + timedelta(seconds=seconds))
                group.create_task(wait(number, priority))
                await in_line(ledger, number + 1)
            await ledger.release(first)

    asyncio.run(serve())
    check_bounds(came, served)


@given(arrivals)
def test_limiter_queue_bounds_overtaking(gaps: list[Arrival]) -> None:
    came = moments(gaps)

    async def serve() -> list[int]:
        clock = HandClock()
        limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=clock, place_s=10**6)
        inside = await limiter.acquire(PermitRequest(DEPLOYMENT, "first", lease_s=86_400))
        waiting, served = {}, []
        for number, (gap, priority) in enumerate(gaps):
            await clock.sleep(gap)
            waiting[number] = PermitRequest(DEPLOYMENT, str(number), priority=priority)
            await limiter.acquire(waiting[number])
        while waiting:
            assert isinstance(inside, Permit)
            await limiter.release(inside, PermitOutcome.ANSWERED)
            for number, one in waiting.items():
                inside = await limiter.acquire(one)
                if isinstance(inside, Permit):
                    served.append(number)
                    break
            del waiting[served[-1]]
        return served

    check_bounds(came, asyncio.run(serve()))


def test_priority_is_capped_with_execution_bonus() -> None:
    asked = [(-(2**31), -60), (-7, -7), (0, 0), (60, 60), (61, 60), (2**31, 60)]
    for workflow in EnvelopeWorkflow:
        ahead = 3600 if workflow is EnvelopeWorkflow.EXECUTION else 0
        for priority, seconds in asked:
            assert queue_priority(envelope(priority=priority, workflow=workflow)) == seconds + ahead
