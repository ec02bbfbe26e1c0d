"""Executions have slots of their own: what other workflows hold or wait for keeps none of them waiting."""

import asyncio

import pytest

from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.clock import Clock, SimClock, SystemClock
from agentic_trading.governance.limiter import (
    Deployment,
    NotPermitted,
    Permit,
    PermitRequest,
    RateLimits,
    Throttle,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limits import EXECUTION_AHEAD, Limit, ScopeKind, Window
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.pool import PARKED_A_WORKER
from tests.gateway import GOOD, START, asking, gateway
from tests.worker.running import running

BOUND_S = 2.0
WORKERS = 4
ANALYSES = WORKERS * (1 + PARKED_A_WORKER) + 4  # more than there are tasks for
ONE_CALL = Limit(ScopeKind.AGENT, "adviser-1", Window.NONE, nusd=1_000_000_000, calls=1)
MODEL = Deployment(LLMProvider.SCRIPTED, "scripted-1")


class Slow(ScriptedProvider):
    """Answers analyses when it may, executions at once; `order` is what it was asked for."""

    def __init__(self) -> None:
        super().__init__(lambda _request: GOOD)
        self.may_answer, self.order = asyncio.Event(), list[str]()
        self.is_asked = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.order.append(str(request.envelope.workflow))
        self.is_asked.set()
        if request.envelope.workflow == "analysis":
            await self.may_answer.wait()
        return await super().complete(request)


class Watched(MemoryLimiter):
    """`queued` says that an execution waits for a place at the model."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        answer = await super().acquire(request)
        if isinstance(answer, Throttled) and request.priority >= EXECUTION_AHEAD:
            self.queued.set()
        return answer

    queued: asyncio.Event


@pytest.mark.parametrize("clock", [SimClock(START), SystemClock()], ids=["simulated", "real"])
@pytest.mark.parametrize("limits", [[ONE_CALL], []], ids=["parked", "slow"])
async def test_execution_is_answered_despite_many_analyses(clock: Clock, limits: list[Limit]) -> None:
    slow = Slow()
    desk = gateway(slow, limits=limits, clock=clock, workers=WORKERS)
    began, since = desk.clock.now(), SystemClock().monotonic()

    async with running(desk) as client, asyncio.TaskGroup() as group:
        for number in range(ANALYSES):
            builder = asking("analysis", number=number, clock=clock)
            group.create_task(client.ask(builder.build()))
        await slow.is_asked.wait()
        asked = asking("execution", clock=clock).with_agent("desk-1", "desk")
        async with asyncio.timeout(BOUND_S):
            answer = await client.ask(asked.build())
        took = SystemClock().monotonic() - since
        slow.may_answer.set()

    assert isinstance(answer, LLMInteraction)
    assert answer.result.raw_output == GOOD
    assert took < BOUND_S
    if isinstance(clock, SimClock):
        assert clock.now() == began


async def test_next_model_slot_goes_to_execution() -> None:
    slow = Slow()
    limiter = Watched({MODEL: RateLimits(concurrent=1)})
    limiter.queued = asyncio.Event()
    desk = gateway(slow, clock=SystemClock(), workers=WORKERS, throttle=Throttle(limiter, SystemClock()))

    async with running(desk) as client, asyncio.TaskGroup() as group:
        for number in range(ANALYSES):
            group.create_task(client.ask(asking("analysis", number=number, clock=desk.clock).build()))
        await slow.is_asked.wait()
        execution = group.create_task(client.ask(asking("execution", clock=desk.clock).build()))
        await limiter.queued.wait()
        slow.may_answer.set()
        await execution
        before = slow.order.index("execution")

    assert before == 1


async def test_workflow_flood_does_not_block_others() -> None:
    slow = Slow()
    slow.may_answer.set()
    desk = gateway(slow, workers=1)
    flood = [asking("planning", number=number).build() for number in range(20)]
    for envelope in (*flood, asking("general").build()):
        await desk.broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope))

    async with running(desk) as client:
        await client.ask(asking("analysis").build())

    assert slow.order[:3] == ["planning", "analysis", "general"]
