"""Beside its calls a pool sees orders, ends what has run out, warns, and tells how all stands."""

import asyncio
from datetime import timedelta

from structlog.testing import capture_logs

from agentic_trading.clock import SimClock
from agentic_trading.governance.commands import AddHalt, RemoveHalt, SetLimit
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError
from agentic_trading.governance.ledger import Declined, ReservationState
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.governance.status_feed import MemoryStatusFeed
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import PLATFORM
from agentic_trading.worker.housekeeping import CHECKPOINT_EVERY_S, RECONCILE_EVERY_S
from tests.gateway import GOOD, START, asking, gateway
from tests.governance.asking import ask, reserved, spend, tenant
from tests.governance.away import AwayLedger
from tests.worker.ticking import Turning, Wall, events, ordered, upkeep

HALT = AddHalt(HaltScope.AGENT, "adviser-1")


async def test_command_is_adopted_and_recorded_once() -> None:
    board = MemoryControlStore()
    desk = gateway([], limits=[tenant(10**12)])
    keeping = upkeep(desk, board=board)
    await keeping.reconcile()
    await ordered(board, SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=5)))
    await ordered(board, HALT)

    assert await keeping.reconcile()
    assert not await keeping.reconcile()

    assert [one.body["kind"] for one in await events(desk, "operator.commanded")] == ["set_limit", "halt"]
    problem = desk.gate.halts.problem(asking().build())
    assert problem is not None
    assert problem.category is FailureKind.HALTED
    await desk.ledger.reserve(ask(1, tenant="default"))
    (counter,) = [one for one in await desk.ledger.balances("default") if one.scope is ScopeKind.TENANT]
    assert counter.ceiling.nusd == 5


async def test_resumed_agent_runs_again() -> None:
    board = MemoryControlStore()
    desk = gateway([GOOD])
    keeping = upkeep(desk, board=board)
    await ordered(board, HALT)
    await keeping.reconcile()
    halted = await desk.runner.run(asking().build())

    await ordered(board, RemoveHalt(HaltScope.AGENT, "adviser-1"))
    await keeping.reconcile()

    assert halted.result.failure is not None
    assert halted.result.failure.category is FailureKind.HALTED
    assert (await desk.runner.run(asking().build())).result.success


async def test_platform_halt_is_followed_and_recorded() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    await ordered(board, AddHalt(HaltScope.MODEL, "scripted/*"), PLATFORM)

    await upkeep(desk, board=board).reconcile()

    assert desk.gate.halts.problem(asking().build()) is not None
    assert [one.tenant_id for one in await events(desk, "operator.commanded")] == [PLATFORM]


async def test_restart_records_no_command_twice() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    await ordered(board, HALT)

    for _ in range(2):
        await upkeep(desk, board=board).reconcile()

    assert len(await events(desk, "operator.commanded")) == 1


class AwayBoard(MemoryControlStore):
    """A board that cannot be reached for the tenants in `away`."""

    def __init__(self, *away: str) -> None:
        super().__init__()
        self.away = set(away)

    async def read(self, tenant: str) -> TenantControls:
        if tenant in self.away:
            raise ControlsUnavailableError("the board", "connection refused")
        return await super().read(tenant)


async def test_unreachable_tenant_controls_are_read_later() -> None:
    board = AwayBoard()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, HALT)
    await ordered(board, AddHalt(HaltScope.MODEL, "gpt-5"), PLATFORM)
    board.away.add(PLATFORM)

    with capture_logs() as said:
        assert await keeping.reconcile()
    board.away.clear()
    assert await keeping.reconcile()

    assert [(one["event"], one["tenant"]) for one in said] == [("controls_not_read", PLATFORM)]
    assert len(await events(desk, "operator.commanded")) == 2


async def test_store_outage_and_recovery_logged_once() -> None:
    board = AwayBoard()
    keeping = upkeep(gateway([]), board=board)
    board.away.add(PLATFORM)

    with capture_logs() as said:
        for _ in range(3):
            await keeping.reconcile()
        board.away.clear()
        for _ in range(3):
            await keeping.reconcile()
        board.away.add(PLATFORM)
        await keeping.reconcile()

    events = [(one["event"], one.get("after"), one["tenant"]) for one in said]
    is_away = ("controls_not_read", None, PLATFORM)
    assert events == [is_away, ("recovered", "controls_not_read", PLATFORM), is_away]


async def test_halt_holds_while_ledger_is_away() -> None:
    board = MemoryControlStore()
    ledger = AwayLedger([tenant(10**12)])
    desk = gateway([], ledger=ledger)
    keeping = upkeep(desk, board=board)
    await ordered(board, SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=5)))
    await ordered(board, HALT)
    ledger.leave()

    with capture_logs() as said:
        await keeping.reconcile()
        await keeping.tick()

    assert [one["event"] for one in said] == ["controls_not_read", "housekeeping_failed"]
    assert desk.gate.halts.problem(asking().build()) is not None
    ledger.return_()
    assert await keeping.reconcile()
    assert len(await events(desk, "operator.commanded")) == 2
    await ledger.reserve(ask(1, tenant="default"))
    assert {
        one.ceiling.nusd for one in await ledger.balances("default") if one.scope is ScopeKind.TENANT
    } == {5}


async def test_expired_reservations_are_recorded_per_tenant() -> None:
    wall = Wall(START)
    ledger = AwayLedger([tenant(1000)], clock=wall)
    desk = gateway([], ledger=ledger, clock=wall)
    keeping = upkeep(desk, tenants=["a:b"])
    idle = await reserved(ledger, ask(7, tokens=3, tenant="a:b"))
    sent = await reserved(ledger, ask(70, tokens=30, tenant="a:b", principal="desk"))
    await ledger.dispatch(sent, lease_s=100)
    wall.advance_to(START + timedelta(seconds=101))

    await keeping.tick()
    await keeping.tick()

    told = await events(desk, "reservation.expired")
    facts = ("reservation_id", "state", "nusd", "tokens", "calls")
    assert [(one.tenant_id, *(one.body[fact] for fact in facts)) for one in told] == [
        ("a:b", idle, "released", 7, 3, 1),
        ("a:b", sent, "in_doubt", 70, 30, 1),
    ]
    reading = LedgerRebuild("a:b", "paper")
    for one in told:
        reading.read(one)
    (again,) = reading.entries()
    assert (again.request.reservation_id, again.state, again.charged) == (
        sent,
        ReservationState.IN_DOUBT,
        Amount(70, 30),
    )
    known = {again.request.scope_ids[kind] for kind in ScopeKind}
    assert known >= {"a:b", "agent-1", "analysis", "trace-1", "desk"}


async def test_budget_warning_is_recorded_once() -> None:
    desk = gateway([], ledger=AwayLedger([tenant(100)]))
    keeping = upkeep(desk)
    await spend(desk.ledger, ask(85, tenant="default"))
    await keeping.tick()
    await keeping.tick()
    await spend(desk.ledger, ask(15, tenant="default"))
    await keeping.tick()

    told = await events(desk, "budget.")
    assert [(one.kind, one.tenant_id, one.body["spent"], one.body["most"]) for one in told] == [
        ("budget.threshold_reached", "default", 85, 100),
        ("budget.exhausted", "default", 100, 100),
    ]


async def test_shared_ledger_warning_uses_ledger_day() -> None:
    servers = SimClock(START + timedelta(days=40))
    ledger = AwayLedger([tenant(100, window=Window.DAY)], clock=servers)
    desk = gateway([], ledger=ledger, clock=SimClock(START))
    await spend(ledger, ask(85, tenant="default", at=None))

    await upkeep(desk, windows_by=servers).tick()

    (warned,) = await events(desk, "budget.")
    assert warned.body["window_id"] == f"{servers.now():%Y-%m-%d}"


async def test_warning_is_recorded_once_per_ceiling() -> None:
    board = MemoryControlStore()
    clock = SimClock(START)
    desk = gateway([], ledger=AwayLedger([tenant(100)]), clock=clock)
    keeping = upkeep(desk, board=board)
    await keeping.tick()
    await spend(desk.ledger, ask(85, tenant="default"))

    with capture_logs() as said:
        for minutes, most in enumerate((100, 1000, 100, 90), start=1):
            clock.advance_to(START + timedelta(minutes=minutes))
            await ordered(board, SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=most)))
            await keeping.reconcile()
            await keeping.tick()

    assert [one.body["most"] for one in await events(desk, "budget.threshold_reached")] == [100, 90]
    assert said == []


async def test_warning_id_is_equal_across_workers() -> None:
    clock, ledger = SimClock(START), AwayLedger([tenant(100)])
    desks = [gateway([], ledger=ledger, clock=clock) for _ in range(2)]
    await spend(ledger, ask(85, tenant="default"))

    for number, desk in enumerate(desks):
        await upkeep(desk, worker=f"w-{number}").tick()
        clock.advance_to(clock.now() + timedelta(minutes=1))
        await spend(ledger, ask(1, tenant="default"))
    with capture_logs() as said:
        await upkeep(desks[0]).tick()  # after a restart

    found = [one for desk in desks for one in await events(desk, "budget.")]
    assert [one.body["spent"] for one in found] == [85, 86]
    assert len({one.id for one in found}) == 1
    assert said == []


async def test_five_minutes_of_refusals_record_exhaustion() -> None:
    clock, statuses = SimClock(START), MemoryStatusFeed()
    desk = gateway([GOOD], limits=[tenant(10)], clock=clock)
    keeping = upkeep(desk, statuses=statuses)
    for minute in range(6):
        clock.advance_to(START + timedelta(minutes=minute))
        await desk.runner.run(asking().build())
        await keeping.tick()
        before = await events(desk, "budget.exhausted")
        assert bool(before) is (minute == 5)

    (status,) = await statuses.read("default")
    (event,) = await events(desk, "budget.exhausted")
    denial = status.refusals[-1]
    assert (event.body["spent"], event.body["most"], event.body["unit"]) == (0, 10, "nano-USD")
    assert status.counters[0].exhausted == ("nano-USD",)
    assert (denial.scope, denial.id, denial.window, denial.unit) == (
        ScopeKind.TENANT, "default", Window.NONE, "nano-USD",
    )  # fmt: skip


async def test_reports_have_statuses_refusals_and_halts() -> None:
    board = MemoryControlStore()
    desk = gateway([GOOD], limits=[tenant(10)])
    keeping = upkeep(desk, board=board)
    await ordered(board, HALT, PLATFORM)
    await keeping.reconcile()
    await keeping.tick()
    before = keeping.reports()
    await ordered(board, RemoveHalt(HALT.scope, HALT.id), PLATFORM)
    await keeping.reconcile()
    await desk.runner.run(asking().build())

    found = keeping.reports()
    assert (before.halts[PLATFORM, HALT.scope], found.halts[PLATFORM, HALT.scope]) == (1, 0)
    assert [one.tenant for one in found.statuses] == ["default"]
    assert before.refused == {}
    assert list(found.refused.values()) == [1]


async def test_status_omits_ended_windows() -> None:
    clock, statuses = SimClock(START), MemoryStatusFeed()
    limits = [tenant(100, window=Window.MINUTE), tenant(100, window=Window.DAY)]
    desk = gateway([], limits=limits, clock=clock)
    keeping = upkeep(desk, statuses=statuses)
    await spend(desk.ledger, ask(1, tenant="default", at=START))
    await keeping.tick()
    (now,) = await statuses.read("default")
    clock.advance_to(START + timedelta(minutes=1))
    await keeping.tick()
    (later,) = await statuses.read("default")

    assert {one.window for one in now.counters} == {Window.MINUTE, Window.DAY}
    assert {one.window for one in later.counters} == {Window.DAY}
    assert later.windows_at == clock.now()


async def test_status_reports_applied_controls() -> None:
    statuses, board = MemoryStatusFeed(), MemoryControlStore()
    keeping = upkeep(gateway([]), statuses=statuses, board=board)
    halted = await ordered(board, HALT)
    for_all = await ordered(board, AddHalt(HaltScope.MODEL, "gpt-5"), PLATFORM)

    await keeping.tick()
    (before,) = await statuses.read("default")
    await keeping.reconcile()
    await keeping.tick()

    (after,) = await statuses.read("default")
    assert (before.controls_serial, before.platform_serial) == (0, 0)
    assert (after.controls_serial, after.platform_serial) == (halted.serial, for_all.serial)


async def test_tenants_are_warned_separately_once() -> None:
    clock = SimClock(START)
    statuses = MemoryStatusFeed()
    desk = gateway([], ledger=AwayLedger([tenant(100)]), clock=clock)
    keeping = upkeep(desk, statuses=statuses, tenants=["acme", "zenith"], outlives=True, wall=Wall(START))
    for name in ("acme", "zenith"):
        await spend(desk.ledger, ask(1, tenant=name, agent="same"))
    await keeping.tick()
    for name, nusd in (("acme", 84), ("zenith", 94)):
        await spend(desk.ledger, ask(nusd, tenant=name, agent="same"))
    for minutes in range(1, 4):
        clock.advance_to(START + timedelta(minutes=minutes))
        await keeping.tick()

    told = await events(desk, "budget.threshold_reached")
    assert [(one.tenant_id, one.body["spent"]) for one in told] == [("acme", 85), ("zenith", 95)]
    assert {one.tenant_id for one in await events(desk, "ledger.checkpointed")} == {"acme", "zenith"}
    for name, nusd in (("acme", 85), ("zenith", 95)):
        (status,) = await statuses.read(name)
        (counter,) = status.counters
        assert (status.worker, counter.id, counter.spent[0]) == ("w-1", name, nusd)
        assert counter.nusd_per_hour == (nusd - 1) * 20


async def test_shared_checkpoint_is_recorded_regularly() -> None:
    wall = Wall(START)
    desk = gateway([], limits=[tenant(1000)])
    keeping = upkeep(desk, outlives=True, wall=wall)
    await keeping.tick()
    await reserved(desk.ledger, ask(1, tenant="default"))
    await keeping.tick()
    assert len(await events(desk, "ledger.checkpointed")) == 1

    wall.advance_to(START + timedelta(seconds=CHECKPOINT_EVERY_S))
    await keeping.tick()
    await reserved(desk.ledger, ask(1, tenant="default"))
    await keeping.end()

    noted = await events(desk, "ledger.checkpointed")
    assert len(noted) == 3
    reading = LedgerRebuild("default", "paper")
    for one in noted:
        reading.read(one)
    assert reading.checkpoint == await desk.ledger.checkpoint("default")


async def test_local_ledger_checkpoint_is_not_recorded() -> None:
    desk = gateway([], limits=[tenant(1000)])
    keeping = upkeep(desk)

    await keeping.tick()
    await keeping.end()

    assert await events(desk, "ledger.checkpointed") == []


async def test_status_reports_calls_refusals_and_end() -> None:
    statuses, board = MemoryStatusFeed(), MemoryControlStore()
    desk = gateway([GOOD], limits=[tenant(10**12)])
    keeping = upkeep(desk, statuses=statuses, board=board)
    await ordered(board, AddHalt(HaltScope.AGENT, "adviser-2"))
    await keeping.reconcile()
    await desk.runner.run(asking().build())
    await desk.runner.run(asking().with_agent("adviser-2", "adviser").build())

    await keeping.tick()
    (running,) = await statuses.read("default")
    await keeping.end()
    (ended,) = await statuses.read("default")

    assert (running.is_running, ended.is_running, running.limits_version) == (True, False, 1)
    assert [(one.agent, one.kind) for one in running.refusals] == [("adviser-2", FailureKind.HALTED)]
    assert (running.calls.admitted, running.calls.refused, running.parked) == (1, 1, ())
    assert running.calls.charged_nusd == running.counters[0].spent[0] > 0


async def test_reconciler_polls_and_adopts_changes_immediately() -> None:
    statuses, board = MemoryStatusFeed(), MemoryControlStore()
    wall = Turning(START)
    desk = gateway([], limits=[tenant(100)])
    keeping = upkeep(desk, statuses=statuses, board=board, wall=wall)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(keeping.run())
        await wall.turned(3)
        await ordered(board, SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=5)))
        await wall.turned(wall.turns + 2)
        (seen,) = await statuses.read("default")
        task.cancel()

    assert seen.limits_version == 1
    assert set(wall.slept) == {RECONCILE_EVERY_S}
    assert isinstance(await desk.ledger.reserve(ask(6, tenant="default")), Declined)
