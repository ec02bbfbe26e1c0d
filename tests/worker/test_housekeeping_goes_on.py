"""Upkeep goes on whatever goes wrong beside it, and does not let orders wait for the rest."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentic_trading.governance.commands import AddHalt
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.status_feed import BudgetStatus, MemoryStatusFeed
from agentic_trading.llm import Event
from agentic_trading.llm.errors import RecordConflictError, StoreError
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.gateway import START, asking, gateway
from tests.governance.asking import ask, reserved, spend, tenant
from tests.governance.away import AwayLedger
from tests.worker.ticking import Turning, Wall, events, ordered, upkeep

HALT = AddHalt(HaltScope.AGENT, "adviser-1")


async def test_repeated_call_may_expire_again() -> None:
    wall = Wall(START)
    ledger = AwayLedger([tenant(1000)], clock=wall)
    desk = gateway([], ledger=ledger, clock=wall)
    keeping = upkeep(desk)
    again = ask(7, tenant="default", at=None)

    for hours in (1, 2):
        await reserved(ledger, again)
        wall.advance_to(START + timedelta(hours=hours))
        await keeping.tick()

    assert len(await events(desk, "reservation.expired")) == 2


class Crowded(MemoryInteractionStore):
    """A log in which somebody has taken the ids of some kinds of events, and those of reservations take for ever while `is_slow`."""

    taken: tuple[str, ...] = ()
    is_slow = False
    is_full = False

    async def record(self, event: Event) -> int:
        if self.is_slow and event.kind.startswith("reservation."):
            await asyncio.Event().wait()
        if self.is_full:
            raise StoreError(Path("log"), "the disk is full")
        if event.kind in self.taken:
            raise RecordConflictError(event.id, "body", "take another id")
        return await super().record(event)


async def test_record_conflict_does_not_stop_housekeeping() -> None:
    wall, statuses = Wall(START), MemoryStatusFeed()
    store = Crowded()
    store.taken = ("reservation.expired", "budget.exhausted", "operator.commanded")
    ledger = AwayLedger([tenant(100)], clock=wall)
    desk = gateway([], ledger=ledger, clock=wall, store=store)
    board = MemoryControlStore()
    keeping = upkeep(desk, board=board, statuses=statuses, outlives=True, wall=wall)
    await ordered(board, HALT)
    await spend(ledger, ask(100, tenant="default"))
    await reserved(ledger, ask(0, tenant="default", at=None))
    wall.advance_to(START + timedelta(hours=1))

    with capture_logs() as said:
        assert await keeping.reconcile()
        await keeping.tick()
        assert not await keeping.reconcile()

    assert [one["event"] for one in said] == ["command_not_on_record", "event_not_on_record"]
    assert desk.gate.halts.problem(asking().build()) is not None
    assert [one.kind for one in await events(desk)] == ["ledger.checkpointed"]
    assert len(await statuses.read("default")) == 1


async def test_unrecorded_expiry_is_recorded_at_end() -> None:
    wall, store = Wall(START), Crowded()
    ledger = AwayLedger([tenant(1000)], clock=wall)
    desk = gateway([], ledger=ledger, clock=wall, store=store)
    keeping = upkeep(desk)
    await reserved(ledger, ask(7, tenant="default", at=None))
    await reserved(ledger, ask(8, tenant="default", at=None))
    wall.advance_to(START + timedelta(hours=1))
    store.is_slow = True

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await keeping.tick()
    store.is_slow = False
    await keeping.end()

    assert sorted(one.body["nusd"] for one in await events(desk, "reservation.expired")) == [7, 8]


async def test_unrecorded_expiry_reaches_next_log() -> None:
    wall, gives_up = Wall(START), Crowded()
    gives_up.is_full = True
    ledger = AwayLedger([tenant(1000)], clock=wall)
    expired = await reserved(ledger, ask(7, tenant="default", at=None))
    wall.advance_to(START + timedelta(hours=1))
    with pytest.raises(StoreError):
        await upkeep(gateway([], ledger=ledger, clock=wall, store=gives_up)).tick()

    desk = gateway([], ledger=ledger, clock=wall)
    for _ in range(3):
        wall.advance_to(wall.now() + timedelta(minutes=1))
        await upkeep(desk).tick()

    assert [one.body["reservation_id"] for one in await events(desk, "reservation.expired")] == [expired]


async def test_adapter_error_is_logged_and_survived() -> None:
    class Broken(MemoryStatusFeed):
        async def publish(self, status: BudgetStatus) -> None:
            rounds.append(status)
            raise RuntimeError("a bug")

    rounds: list[BudgetStatus] = []
    wall, board = Turning(START), MemoryControlStore()
    desk = gateway([], limits=[tenant(100)])
    keeping = upkeep(desk, statuses=Broken(), board=board, wall=wall)

    with capture_logs() as said:
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            task = group.create_task(keeping.run())
            await wall.turned(20)
            task.cancel()

    assert [one["event"] for one in said] == ["housekeeping_failed"]
    assert len(rounds) > 1
    assert "RuntimeError: a bug" in said[0]["error"]


async def test_controls_are_followed_during_slow_tick() -> None:
    store, board, wall = Crowded(), MemoryControlStore(), Turning(START)
    ledger = AwayLedger([tenant(1000)], clock=wall)
    desk = gateway([], ledger=ledger, clock=wall, store=store)
    await reserved(ledger, ask(7, tenant="default", at=None))
    wall.advance_to(START + timedelta(hours=1))
    store.is_slow = True

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(upkeep(desk, board=board, wall=wall).run())
        await wall.turned(5)
        await ordered(board, HALT)
        await wall.turned(wall.turns + 2)
        task.cancel()

    assert desk.gate.halts.problem(asking().build()) is not None
