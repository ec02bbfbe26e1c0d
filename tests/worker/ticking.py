"""Upkeep over a gateway in memory, and a pool that has one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import override

from agentic_trading.bus.signing import Verifier
from agentic_trading.clock import Clock, SimClock, SystemClock
from agentic_trading.governance.burn_rate import BurnRateMeter
from agentic_trading.governance.commands import OperatorCommand, execute_command
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import ControlStore, TenantControls
from agentic_trading.governance.limits import Windows
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.status_feed import MemoryStatusFeed, StatusFeed
from agentic_trading.llm import Event
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.delivery import ProducerAcl, SendAge
from agentic_trading.worker.housekeeping import Housekeeper, HousekeepingScope
from agentic_trading.worker.pool import WorkerPool
from tests.gateway import GOOD, OF_ANY_AGE, START, MemoryGateway


class Wall(SimClock):
    """A clock whose monotonic time is its own."""

    def monotonic(self) -> float:
        return self.now().timestamp()


class Turning(Wall):
    """A wall clock on which each sleep is over at once, and is counted."""

    turns = 0

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.slept.append(seconds)
        self.advance_to(self.now() + timedelta(seconds=seconds))
        self.turns += 1
        await asyncio.sleep(0)

    async def turned(self, turns: int) -> None:
        """Wait until it was slept so often."""
        for _ in range(10_000):
            if self.turns >= turns:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.turns)


class Steps(SystemClock):
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ends = asyncio.Event()

    @override
    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.begun.set()
        await self.ends.wait()
        self.ends.clear()

    async def step(self) -> None:
        """End the sleep, and wait for the next one: what stands between is done."""
        await self.begun.wait()
        self.begun.clear()
        self.ends.set()
        await self.begun.wait()


class Slow(ScriptedProvider):
    """A provider that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(lambda _request: GOOD)
        self.started, self.go = asyncio.Event(), asyncio.Event()

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.started.set()
        await self.go.wait()
        return await super().complete(request)


def upkeep(
    desk: MemoryGateway,
    *,
    board: ControlStore | None = None,
    statuses: StatusFeed | None = None,
    tenants: Sequence[str] = ("default",),
    outlives: bool = False,
    windows_by: Clock | None = None,
    wall: Any = None,
    worker: str = "w-1",
) -> Housekeeper:
    """Return the upkeep of a gateway."""
    watched = HousekeepingScope(
        desk.ledger,
        desk.gate,
        board or MemoryControlStore(),
        statuses or MemoryStatusFeed(),
        tenants,
        outlives,
        windows_by,
    )
    return Housekeeper(
        watched, BurnRateMeter(Windows()), desk.recorder, desk.clock, wall or desk.clock, worker
    )


def with_pool(
    desk: MemoryGateway,
    *,
    upkeep: Housekeeper | None = None,
    verifier: Verifier | None = None,
    principal: str = "",
    policy: Policy | None = None,
    age: SendAge = OF_ANY_AGE,
) -> MemoryGateway:
    """Return the gateway with another pool."""
    pool = WorkerPool(
        broker=desk.broker,
        runner=desk.runner,
        recorder=desk.recorder,
        claims=MemoryClaimStore(),
        clock=desk.clock,
        workers=2,
        housekeeper=upkeep,
        acl=ProducerAcl(verifier, principal, policy),
        age=age,
    )
    return replace(desk, pool=pool)


async def ordered(
    board: ControlStore,
    wanted: OperatorCommand,
    tenant_id: str = "default",
    *,
    why: str = "odd",
    minute: int = 0,
) -> TenantControls:
    """Order something, as an operator does."""
    return await execute_command(
        board, tenant_id, wanted, by="ann", why=why, at=START + timedelta(minutes=minute)
    )


async def events(desk: MemoryGateway, kind: str = "") -> list[Event]:
    """Return the events on record, of one kind if it is named."""
    records = [entry.record async for entry in desk.store.scan()]
    return [one for one in records if isinstance(one, Event) and one.kind.startswith(kind)]
