"""A parked call gives its slot back, and a stopping pool does not wait for it."""

import asyncio

import pytest

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Entry, Lane, Outcome, Permit, RateLimits
from agentic_trading.governance.limiters.memory import MemoryLimiter
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.policy_file import Principal
from agentic_trading.governance.traffic import Traffic
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.providers.recorded import RecordedAnswers
from agentic_trading.worker.errors import AttemptTakenError
from agentic_trading.worker.slots import Slots
from tests.contracts.ledger_opening import in_line
from tests.gateway import GOOD, MemoryGateway, asking, gateway
from tests.governance.asking import ask, tenant
from tests.worker.running import running

LANE = Lane(LLMProvider.SCRIPTED, "scripted-1")


async def with_a_paused_model(workers: int) -> MemoryGateway:
    """Return a gateway of which one model must not be asked for an hour."""
    limiter = MemoryLimiter(clock=SystemClock())
    permit = await limiter.enter(Entry(LANE, "before"))
    assert isinstance(permit, Permit)
    await limiter.leave(permit, Outcome.NEUTRAL, pause_s=3600.0)
    desk = gateway(lambda _request: GOOD, workers=workers)
    desk.gate._traffic = Traffic(limiter, SystemClock())
    return desk


async def test_who_waits_for_one_model_does_not_hold_up_another() -> None:
    desk = await with_a_paused_model(workers=2)

    async with asyncio.timeout(5), running(desk) as client:
        for number in range(3):
            await client.submit(asking(number=number).build())
        answer = await client.ask(asking("planning", model="scripted-prompted-1").build())
        desk.pool.stop()

    assert isinstance(answer, LLMInteraction)
    assert answer.result.success


async def test_a_pool_that_is_stopped_ends_though_a_call_is_parked() -> None:
    desk = gateway(lambda _request: GOOD, limits=[tenant(10**9)])
    other = ask(10**9, tenant="default")
    await desk.ledger.reserve(other)
    await desk.ledger.dispatch(other.reservation_id, lease_s=10**6)

    async with asyncio.timeout(5), GatewayClient(desk.broker) as client, asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        asked = group.create_task(client.ask(asking().build()))
        await in_line(desk.ledger, 1, tenant="default")
        desk.pool.stop()
        answer = await asked

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.SHUTDOWN
    assert await desk.ledger.line("default") == []


async def test_a_slot_that_was_given_back_is_another_ones() -> None:
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


async def test_who_is_idle_makes_room_for_who_comes_back() -> None:
    slots = Slots(1)
    came, go_on, nothing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def parked() -> None:
        async with slots.taken() as slot, slot.given_back():
            came.set()
            await go_on.wait()

    async def idle() -> None:
        async with slots.taken():
            await slots.unless_called_away(nothing.wait())

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


async def test_who_is_cancelled_while_it_waits_for_its_slot_takes_none() -> None:
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


async def test_who_loses_the_race_to_send_leaves_the_traffic() -> None:
    limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=SystemClock())
    desk = gateway(lambda _request: GOOD, ledger=Taken([tenant(10**12)]))
    desk.gate._traffic = Traffic(limiter, SystemClock())

    with pytest.raises(AttemptTakenError):
        await desk.runner.run(asking().build())

    assert (await limiter.status(LANE)).in_flight == 0


async def test_nobody_gets_what_was_answered_to_another_tenant_or_what_the_policy_denies() -> None:
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
