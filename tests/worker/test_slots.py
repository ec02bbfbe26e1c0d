"""A parked call gives its slot back, and a stopping pool does not wait for it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.bus.codec import envelope_message
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import (
    Deployment,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    Throttle,
)
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.policy import Policy, Principal
from agentic_trading.governance.prices import Amount
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.worker.error_boundary import AttemptTakenError
from agentic_trading.worker.slots import Slots
from tests.contracts.ledger_opening import in_line
from tests.gateway import GOOD, MemoryGateway, asking, attempts, gateway
from tests.governance.asking import ask, tenant
from tests.worker.caching import fixed
from tests.worker.running import running

LANE = Deployment(LLMProvider.SCRIPTED, "scripted-1")


async def with_a_paused_model(workers: int) -> MemoryGateway:
    """Return a gateway of which one model must not be asked for an hour."""
    limiter = MemoryLimiter(clock=SystemClock())
    permit = await limiter.acquire(PermitRequest(LANE, "before"))
    assert isinstance(permit, Permit)
    await limiter.release(permit, PermitOutcome.NEUTRAL, cooldown_s=3600.0)
    return gateway(lambda _request: GOOD, workers=workers, throttle=Throttle(limiter, SystemClock()))


async def test_paused_model_does_not_block_others() -> None:
    desk = await with_a_paused_model(workers=2)

    async with asyncio.timeout(5), running(desk) as client:
        for number in range(3):
            await client.submit(asking(number=number).build())
        answer = await client.ask(asking("planning", model="scripted-prompted-1").build())
        desk.pool.stop()

    assert isinstance(answer, LLMInteraction)
    assert answer.result.success


async def test_stopped_pool_ends_parked_call() -> None:
    desk = gateway(lambda _request: GOOD, limits=[tenant(10**9)])
    await nobody_can_pay(desk)

    async with asyncio.timeout(5), GatewayClient(desk.broker) as client, asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        asked = group.create_task(client.ask(asking().build()))
        await in_line(desk.ledger, 1, tenant="default")
        desk.pool.stop()
        answer = await asked

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.SHUTDOWN
    assert await desk.ledger.waiting("default") == []


async def test_returned_slot_serves_another_holder() -> None:
    slots = Slots(1)
    order: list[str] = []

    async def parked(came: asyncio.Event, go_on: asyncio.Event) -> None:
        async with slots.taken() as slot:
            order.append("first")
            async with slot.given_back():
                came.set()
                await go_on.wait()
            order.append("first again")

    came, go_on = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(parked(came, go_on))
        await came.wait()
        async with slots.taken():
            go_on.set()
            await asyncio.sleep(0)
            order.append("second")

    assert order == ["first", "second", "first again"]


async def test_idle_holder_yields_slot_to_returner() -> None:
    slots = Slots(1)
    came, go_on, nothing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def parked() -> None:
        async with slots.taken() as slot, slot.given_back():
            came.set()
            await go_on.wait()

    async def idle() -> None:
        async with slots.taken():
            await slots.unless_needed(nothing.wait())

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(parked())
        await came.wait()
        for _ in range(2):
            group.create_task(idle())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.sleep(0.01)
        nothing.set()
    assert await is_free(slots)


async def test_failed_holder_may_not_keep_slot() -> None:
    async with Slots(1).taken() as slot:
        assert slot.may_be_kept

        with pytest.raises(ConnectionError):
            async with slot.given_back():
                raise ConnectionError

        assert not slot.may_be_kept


async def test_stop_ends_idle_waits() -> None:
    slots = Slots(2)

    async def idle() -> None:
        async with slots.taken():
            assert await slots.unless_needed(asyncio.Event().wait()) is None

    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(idle())
        await asyncio.sleep(0)
        slots.stop()
        group.create_task(idle())


async def test_cancelled_waiter_takes_no_slot() -> None:
    slots = Slots(1)

    async def parked(came: asyncio.Event) -> None:
        async with slots.taken() as slot, slot.given_back():
            came.set()

    came = asyncio.Event()
    async with asyncio.timeout(1):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(parked(came))
            await came.wait()
            async with slots.taken():
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
        async with slots.taken():
            assert not await is_free(slots)
        assert await is_free(slots)


async def passes(loops: int) -> None:
    """Let the loop go round."""
    for _ in range(loops):
        await asyncio.sleep(0)


LAST = "the last one"
DELIVERIES = 40
"""In so many workers meet often enough that a slot which may be lost is lost in every second run."""


def chance(seed: int) -> Callable[[int], int]:
    """Return what gives numbers from 0 up to a limit, the same again for the same seed."""
    numbers = count()
    return lambda most: int(fraction(seed, next(numbers)) * (most + 1))


async def serve(slots: Slots, deliveries: asyncio.Queue[str], up_to: Callable[[int], int]) -> None:
    """Serve deliveries as a worker does, each of which may park; who is idle may be called away."""
    found: str | None = None
    while found != LAST:
        async with slots.taken() as slot:
            while found != LAST and slot.may_be_kept:
                found = await slots.unless_needed(deliveries.get())
                if found is None:
                    break
                with suppress(ConnectionError):
                    for _ in range(up_to(3)):
                        await passes(up_to(3))
                        async with slot.given_back():
                            await passes(up_to(6))
                            if up_to(5) == 0:
                                raise ConnectionError


async def served(number: int, up_to: Callable[[int], int]) -> bool:
    """Serve everything with so many slots; return whether all of them can be taken at once in the end."""
    slots, deliveries, workers = Slots(number), asyncio.Queue[str](), 5 * number
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(serve(slots, deliveries, up_to))
        for nth in range(DELIVERIES):
            await passes(up_to(5))
            deliveries.put_nowait(f"delivery {nth}")
        for _ in range(workers):
            deliveries.put_nowait(LAST)
    all_there = asyncio.Barrier(number)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(together(slots, all_there))
    return True


@given(number=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_random_parking_loses_no_slot(number: int, seed: int) -> None:
    assert asyncio.run(served(number, chance(seed)))


async def together(slots: Slots, come: asyncio.Barrier) -> None:
    """Hold a slot until as many as there should be are held at once."""
    async with slots.taken():
        await come.wait()


async def nobody_can_pay(desk: MemoryGateway) -> str:
    """Have another call hold all there is, and return its reservation."""
    other = ask(10**9, tenant="default")
    await desk.ledger.reserve(other)
    await desk.ledger.dispatch(other.reservation_id, lease_s=10**6)
    return other.reservation_id


async def submitted_apart(desk: MemoryGateway, envelope: LLMEnvelope) -> None:
    """Publish an envelope under a key of its own, as another process may, and let it be taken."""
    message = replace(envelope_message(envelope), key="elsewhere")
    await desk.broker.publish(ENVELOPES[envelope.workflow], message)
    await passes(50)
    assert not any(backlog.waiting for backlog in desk.broker.statistics().backlogs)


async def test_duplicate_delivery_blocks_no_parked_call() -> None:
    desk = gateway(lambda _request: GOOD, limits=[tenant(10**9)], workers=1)
    other = await nobody_can_pay(desk)
    envelope = asking().build()

    async with asyncio.timeout(5), running(desk) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask(envelope))
        await in_line(desk.ledger, 1, tenant="default")
        await submitted_apart(desk, envelope)
        await desk.ledger.settle(other, Amount(0, 0))

    answer = asked.result()
    assert isinstance(answer, LLMInteraction)
    assert answer.result.success


async def test_equal_request_blocks_no_parked_call() -> None:
    desk = gateway(lambda _request: GOOD, limits=[tenant(10**9)], workers=1)
    other = await nobody_can_pay(desk)
    first, second = fixed().build(), fixed().build()

    async with asyncio.timeout(5), running(desk) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask(first))
        await in_line(desk.ledger, 1, tenant="default")
        await submitted_apart(desk, second)
        await desk.ledger.settle(other, Amount(0, 0))

    answer = asked.result()
    assert isinstance(answer, LLMInteraction)
    assert [(await attempts(desk, one))[0].result.served_from for one in (first, second)] == [
        "live",
        "recorded",
    ]


class Busy(ScriptedProvider):
    """Answers when it may."""

    def __init__(self) -> None:
        super().__init__(lambda _request: GOOD)
        self.started, self.may_end = asyncio.Event(), asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.started.set()
        await self.may_end.wait()
        return await super().complete(request)


async def test_parked_call_survives_lease_expiry() -> None:
    provider, ledger = Busy(), MemoryLedger([tenant(10**9)], reserved_lease_s=0)
    desk = gateway(provider, ledger=ledger, workers=1)
    other = await nobody_can_pay(desk)

    async with asyncio.timeout(5), running(desk) as client, asyncio.TaskGroup() as group:
        asked = group.create_task(client.ask(asking().build()))
        await in_line(ledger, 1, tenant="default")
        await client.submit(asking().with_tenant("rich").build())
        await provider.started.wait()
        await ledger.settle(other, Amount(0, 0))
        await passes(50)
        swept = await ledger.expire_leases()
        provider.may_end.set()

    answer = asked.result()
    assert isinstance(answer, LLMInteraction)
    assert (answer.result.success, len(swept)) == (True, 1)


async def test_stopped_pool_sends_no_waiting_duplicates() -> None:
    provider = Busy()
    desk = gateway(provider, workers=2)
    same = [fixed().build() for _ in range(3)]

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        running_pool = group.create_task(desk.pool.run())
        for envelope in same:
            await desk.broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope))
            await passes(50)
        await provider.started.wait()
        desk.pool.stop()
        await passes(50)
        provider.may_end.set()
        await running_pool

    first, *others = [(await attempts(desk, envelope))[0].result for envelope in same]
    assert first.success
    assert [other.failure and other.failure.category for other in others] == [FailureKind.SHUTDOWN] * 2
    assert len(provider.requests) == 1


async def is_free(slots: Slots) -> bool:
    try:
        async with asyncio.timeout(0), slots.taken():
            return True
    except TimeoutError:
        return False


class Taken(MemoryLedger):
    """A ledger in which another worker is always the one that sends."""

    async def dispatch(self, reservation_id: str, *, lease_s: float = 60.0) -> None:
        await super().dispatch(reservation_id, lease_s=lease_s)
        await super().dispatch(reservation_id, lease_s=lease_s)


async def test_losing_sender_returns_the_permit() -> None:
    limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=SystemClock())
    throttle = Throttle(limiter, SystemClock())
    desk = gateway(lambda _request: GOOD, ledger=Taken([tenant(10**12)]), throttle=throttle)

    with pytest.raises(AttemptTakenError):
        await desk.runner.run(asking().build())

    assert (await limiter.status(LANE)).in_flight == 0


async def test_recorded_answers_respect_tenant_and_policy() -> None:
    envelope = asking().build()
    recorded = RecordedAnswers([await gateway([GOOD]).runner.run(envelope)])
    elsewhere = envelope.model_copy(
        update={"tenant_id": "other", "envelope_id": "e-2", "idempotency_key": "k-2"}
    )
    policy = Policy({"desk-a": Principal(tenants=("default",), models=("scripted/*",))})

    foreign = await gateway([], recorded=recorded).runner.run(elsewhere)
    unknown = await gateway([], recorded=recorded, policy=policy).runner.run(envelope, principal="nobody")
    known = await gateway([], recorded=recorded, policy=policy).runner.run(envelope, principal="desk-a")

    assert not foreign.result.success
    assert unknown.result.failure is not None
    assert unknown.result.failure.category is FailureKind.NOT_ALLOWED
    assert known.result.served_from == "recorded"
