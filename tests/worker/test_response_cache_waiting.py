"""Who asks the same at once waits for the first, and only as long as it has time."""

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.governance.ledger import Settlement
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import FailureKind, RetryPolicy
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.slots import StoppableWait
from tests.build import envelope as an_envelope
from tests.gateway import GOOD, START, asking, attempts, gateway, timed_out
from tests.worker.caching import OTHER, fixed, run


class Waiting:
    """A provider that answers when it is told to, with an answer of its own each time."""

    def __init__(self, *lines: str | Exception) -> None:
        self.lines = list(lines)
        self.asked = 0
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def complete(self, _request: ModelRequest) -> ModelResponse:
        line = self.lines[self.asked]
        self.asked += 1
        self.is_asked.set()
        await self.may_answer.wait()
        if isinstance(line, Exception):
            raise line
        return ModelResponse(line, "end_turn", Usage(output_tokens=9), "scripted-1")

    async def count_tokens(self, _request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        return None


async def test_concurrent_requests_are_paid_once() -> None:
    provider = Waiting(GOOD, OTHER)
    desk = gateway(provider)

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(desk.runner.run(fixed().build())) for _ in range(20)]
        await provider.is_asked.wait()
        provider.may_answer.set()

    results = [call.result().result for call in calls]
    assert {result.raw_output for result in results} == {GOOD}
    assert sum(result.cost_nusd for result in results) == desk.ledger.statistics().charged_nusd
    assert (provider.asked, [result.served_from for result in results].count("live")) == (1, 1)


async def test_stop_ends_wait_without_sending() -> None:
    provider = Waiting(timed_out(), GOOD)
    desk = gateway(provider)
    impatient = fixed().with_retry_policy(RetryPolicy(max_retries=0))
    envelopes = [impatient.build() for _ in range(3)]

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(desk.runner.run(impatient.build()))
        await provider.is_asked.wait()
        waiting = [group.create_task(desk.runner.run(envelope)) for envelope in envelopes]
        await asyncio.sleep(0)
        desk.runner.stop()
        await asyncio.wait(waiting)
        provider.may_answer.set()

    for envelope, call in zip(envelopes, waiting, strict=True):
        (kept,) = await attempts(desk, envelope)
        assert kept == call.result()
        assert kept.result.failure is not None
        assert (kept.result.failure.category, kept.result.failure.recoverable) == (FailureKind.SHUTDOWN, True)
        assert (kept.result.cost_nusd, kept.result.dispatched_at) == (0, None)
    assert provider.asked == 1


async def test_stopped_runner_serves_only_cached_answers() -> None:
    provider = Waiting(GOOD, OTHER)
    desk = gateway(provider)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        first = group.create_task(desk.runner.run(fixed().build()))
        await provider.is_asked.wait()
        desk.runner.stop()
        late = (await desk.runner.run(fixed().build())).result
        provider.may_answer.set()
    (again,) = await run(desk, fixed().build())

    assert late.failure is not None
    assert late.failure.category is FailureKind.SHUTDOWN
    assert first.result().result.actionable
    assert (again.served_from, provider.asked) == ("recorded", 1)


async def test_different_requests_do_not_wait() -> None:
    provider = Waiting(GOOD, OTHER, OTHER)
    desk = gateway(provider)

    async with asyncio.TaskGroup() as group:
        for builder in (fixed(), fixed(n=1), asking()):
            group.create_task(desk.runner.run(builder.build()))
        for _ in range(100):
            await asyncio.sleep(0)
        asked = provider.asked
        provider.may_answer.set()

    assert asked == 3


async def test_waiter_retries_after_first_failure() -> None:
    provider = Waiting(timed_out(), GOOD)
    desk = gateway(provider)
    impatient = fixed().with_retry_policy(RetryPolicy(max_retries=0))

    async with asyncio.TaskGroup() as group:
        one = group.create_task(desk.runner.run(impatient.build()))
        await provider.is_asked.wait()
        two = group.create_task(desk.runner.run(impatient.build()))
        provider.may_answer.set()

    assert not one.result().result.success
    assert (two.result().result.served_from, two.result().result.actionable) == ("live", True)


async def test_waiter_expires_at_own_deadline() -> None:
    provider, clock = Waiting(GOOD), SystemClock()
    desk = gateway(provider, clock=clock)

    async with asyncio.TaskGroup() as group:
        one = group.create_task(desk.runner.run(fixed().build()))
        await provider.is_asked.wait()
        soon = clock.now() + timedelta(milliseconds=20)
        late = (await desk.runner.run(fixed().with_deadline(soon).build())).result
        provider.may_answer.set()

    assert one.result().result.actionable
    assert late.failure is not None
    assert (late.failure.category, late.cost_nusd) == (FailureKind.EXPIRED, 0)


class Lagging(SimClock):
    """A clock that stands still for its first few readings, however long somebody waits."""

    def __init__(self, readings: int, then: datetime) -> None:
        super().__init__(START)
        self.readings, self.then = readings, then

    def now(self) -> datetime:
        self.readings -= 1
        return super().now() if self.readings >= 0 else self.then


async def test_waiter_deadline_follows_the_clock() -> None:
    soon = START + timedelta(milliseconds=1)
    clock = Lagging(7, soon)
    answers, pauses = ResponseCache(clock), StoppableWait(clock)
    waiting = an_envelope(determinism="recorded", as_of=START, deadline=soon)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            answers.turn(waiting.model_copy(update={"deadline": None, "envelope_id": "first"}), pauses)
        )
        second = await stack.enter_async_context(answers.turn(waiting, pauses))

    assert first is not None
    assert second is None
    assert clock.readings < 0


async def test_cancelled_waiter_does_not_block_cache() -> None:
    provider = Waiting(GOOD, OTHER)
    desk = gateway(provider)

    async with asyncio.TaskGroup() as group:
        group.create_task(desk.runner.run(fixed().build()))
        await provider.is_asked.wait()
        waiting = group.create_task(desk.runner.run(fixed().build()))
        await asyncio.sleep(0)
        waiting.cancel()
        provider.may_answer.set()
    (third,) = await run(desk, fixed().build())

    assert waiting.cancelled()
    assert (third.served_from, provider.asked) == ("recorded", 1)


class SlowLedger(MemoryLedger):
    """A ledger that lets the loop turn before it settles."""

    async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
        await asyncio.sleep(0)
        return await super().settle(reservation_id, actual)


async def test_answer_of_cancelled_call_is_cached() -> None:
    def cancelling(_request: ModelRequest) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return GOOD

    desk = gateway(cancelling, ledger=SlowLedger())
    async with asyncio.TaskGroup() as group:
        one = group.create_task(desk.runner.run(fixed().build()))

    (again,) = await run(desk, fixed().build())

    assert one.cancelled()
    assert (again.served_from, again.raw_output) == ("recorded", GOOD)
