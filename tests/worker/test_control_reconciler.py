"""Orders are followed as they stand on the board: what is not known lets nothing run, and what began anew is new."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentic_trading.clock import SimClock
from agentic_trading.governance.commands import AddHalt, RemoveHalt, RemoveLimit, SetLimit
from agentic_trading.governance.control_stores.file import FileControlStore, MemoryControlStore
from agentic_trading.governance.controls_document import KEPT_ACTIONS, HaltScope, TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, ControlsUnreadableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import PLATFORM
from tests.gateway import START, MemoryGateway, asking, gateway
from tests.governance.asking import ask, tenant
from tests.worker.ticking import events, ordered, upkeep

HALT = AddHalt(HaltScope.AGENT, "adviser-1")
OTHER_HALT = AddHalt(HaltScope.AGENT, "adviser-2")
IN_A_YEAR = 365 * 24 * 60


def up_to(nusd: int) -> SetLimit:
    return SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd))


def why_not(desk: MemoryGateway, agent: str = "adviser-1", tenant_id: str = "default") -> str:
    """Return why an agent's call may not run; empty if it may."""
    envelope = asking().with_agent(agent, "adviser").with_tenant(tenant_id).build()
    problem = desk.gate.halts.problem(envelope)
    if problem is None:
        return ""
    assert problem.category is FailureKind.HALTED
    return problem.description


async def ceiling(desk: MemoryGateway) -> int | None:
    """Return what the tenant may spend, by its ledger."""
    await desk.ledger.reserve(ask(0, tenant="default"))
    balances = await desk.ledger.balances("default")
    return next(one.ceiling.nusd for one in balances if one.scope is ScopeKind.TENANT)


class Unsure(MemoryControlStore):
    """A board that raises `error` for the tenants in `unknown`."""

    def __init__(self, error: Exception, *unknown: str) -> None:
        super().__init__()
        self.error = error
        self.unknown = set(unknown)

    async def read(self, tenant: str) -> TenantControls:
        if tenant in self.unknown:
            raise self.error
        return await super().read(tenant)


AWAY = ControlsUnavailableError("the board", "connection refused")
UNREADABLE = ControlsUnreadableError("the board", "version: what is that")
BUG = RuntimeError("a bug in an adapter")


GoesBack = Callable[[MemoryControlStore, TenantControls], None]


def is_lost(board: MemoryControlStore, _: TenantControls) -> None:
    board._documents.clear()


def is_an_old_copy(board: MemoryControlStore, before: TenantControls) -> None:
    board._documents["default"] = before


@pytest.mark.parametrize(("goes_back", "found"), [(is_lost, 0), (is_an_old_copy, 1)])
async def test_commands_lost_by_store_are_restored(goes_back: GoesBack, found: int) -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    before = await ordered(board, OTHER_HALT)
    known = await ordered(board, HALT)
    await keeping.reconcile()
    goes_back(board, before)

    with capture_logs() as said:
        assert await keeping.reconcile()
        assert not await keeping.reconcile()

    assert [(one["event"], one["seen"], one["found"]) for one in said] == [("controls_rolled_back", 2, found)]
    assert "halt agent adviser-1" in said[0]["restored"]
    assert "ann" in why_not(desk)
    assert set((await board.read("default")).halts) == set(known.halts)


async def test_old_copy_cannot_undo_newer_limit() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    before = await ordered(board, OTHER_HALT)
    for number in range(KEPT_ACTIONS + 1):
        await ordered(board, up_to(number), minute=number + 1)
    await keeping.reconcile()
    board._documents["default"] = before

    await keeping.reconcile()

    assert await ceiling(desk) == KEPT_ACTIONS
    assert (await board.read("default")).limits == (up_to(KEPT_ACTIONS).limit,)


@pytest.mark.parametrize("orders_before", [1, 2, 7])
async def test_command_after_loss_keeps_earlier_commands(
    orders_before: int,
) -> None:
    board = MemoryControlStore()
    desk = gateway([], limits=[tenant(10**12)])
    keeping = upkeep(desk, board=board)
    for number in range(orders_before):
        await ordered(board, up_to(number + 10), why="before")
    await keeping.reconcile()
    board._documents.clear()
    await ordered(board, HALT, why="after", minute=1)

    with capture_logs() as said:
        assert await keeping.reconcile()
        assert not await keeping.reconcile()

    assert [(one["event"], one["seen"], one["found"]) for one in said] == [
        ("controls_rolled_back", orders_before, 1)
    ]
    assert "after" in why_not(desk)
    assert await ceiling(desk) == orders_before + 9
    told = [one.body["why"] for one in await events(desk, "operator.commanded")]
    assert told == ["before"] * orders_before + ["after"]


async def test_newer_command_wins_over_lost_command() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, up_to(1))
    await ordered(board, HALT)
    await keeping.reconcile()
    board._documents.clear()
    await ordered(board, up_to(50))
    await ordered(board, HALT)
    await ordered(board, RemoveHalt(HALT.scope, HALT.id))

    await keeping.reconcile()

    assert await ceiling(desk) == 50
    assert why_not(desk) == ""


async def test_halt_survives_store_loss() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, HALT)
    await ordered(board, OTHER_HALT)
    await keeping.reconcile()
    board._documents.clear()
    await ordered(board, OTHER_HALT, why="again", minute=1)

    await keeping.reconcile()

    assert all(why_not(desk, agent) for agent in ("adviser-1", "adviser-2"))


async def test_workers_agree_after_store_loss() -> None:
    board = MemoryControlStore()
    desk, other = gateway([]), gateway([])
    keeping, other_keeping = upkeep(desk, board=board), upkeep(other, board=board)
    await ordered(board, up_to(7))
    before = await ordered(board, HALT)
    await keeping.reconcile()
    await other_keeping.reconcile()
    board._documents["default"] = TenantControls()
    await ordered(board, OTHER_HALT)

    for one in (keeping, other_keeping, keeping, other_keeping):
        await one.reconcile()
    settled = await board.read("default")
    for one in (keeping, other_keeping):
        assert not await one.reconcile()

    assert settled == await board.read("default")
    assert settled.serial > before.serial
    assert {one.id for one in settled.halts} == {"adviser-1", "adviser-2"}
    assert (await ceiling(desk), await ceiling(other)) == (7, 7)


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_limits_of_new_store_reach_ledger(*, is_same_process: bool) -> None:
    clock = SimClock(START)
    board = MemoryControlStore(clock=clock)
    desk = gateway([], limits=[tenant(10**12)])
    keeping = upkeep(desk, board=board)
    for number in range(5):
        await ordered(board, up_to(number + 10))
    await keeping.reconcile()
    board._documents.clear()
    clock.advance_to(START + timedelta(minutes=1))
    await ordered(board, up_to(3), minute=1)

    following = keeping if is_same_process else upkeep(desk, board=board)
    await following.reconcile()
    assert await ceiling(desk) == 3

    wanted = RemoveLimit(ScopeKind.TENANT, ANY, Window.NONE)
    await ordered(board, wanted, minute=-5)  # by somebody whose clock is slow
    await following.reconcile()
    assert await ceiling(desk) is None


async def test_limits_reach_ledger_after_fast_clock() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, up_to(1000), minute=IN_A_YEAR)
    await keeping.reconcile()
    for number in range(KEPT_ACTIONS):
        await ordered(board, RemoveHalt(HALT.scope, HALT.id) if number % 2 else HALT, minute=1)
    await keeping.reconcile()
    await ordered(board, up_to(10), minute=2)

    assert await upkeep(desk, board=board).reconcile()

    assert await ceiling(desk) == 10


async def test_limit_after_unnumbered_document_reaches_ledger() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    before = await ordered(board, up_to(1000), minute=IN_A_YEAR)
    board._documents["default"] = TenantControls.model_validate(before.model_dump(exclude={"serial"}))
    await upkeep(desk, board=board).reconcile()
    await ordered(board, up_to(10), minute=1)

    assert await upkeep(desk, board=board).reconcile()

    assert await ceiling(desk) == 10


@pytest.mark.parametrize("error", [AWAY, UNREADABLE, BUG], ids=["away", "unreadable", "bug"])
async def test_unread_controls_halt_the_tenant(error: Exception) -> None:
    board = Unsure(error, "acme")
    desk = gateway([])
    keeping = upkeep(desk, board=board, tenants=["acme", "zenith"])

    with capture_logs() as said:
        await keeping.reconcile()
    before = why_not(desk, tenant_id="acme"), why_not(desk, tenant_id="zenith")
    board.unknown.clear()
    await keeping.reconcile()

    assert [(one["event"], one["tenant"]) for one in said] == [("controls_not_read", "acme")]
    assert str(error) in before[0]
    assert "not known what is halted for tenant acme" in before[0]
    assert before[1] == ""
    assert why_not(desk, tenant_id="acme") == ""


async def test_unread_platform_controls_halt_everything() -> None:
    board = Unsure(AWAY, PLATFORM)
    desk = gateway([])
    keeping = upkeep(desk, board=board)

    await keeping.reconcile()

    assert "connection refused" in why_not(desk)


async def test_unreadable_platform_command_halts_calls(tmp_path: Path) -> None:
    board = FileControlStore(tmp_path)
    await ordered(board, AddHalt(HaltScope.TENANT, ANY), PLATFORM)
    path = tmp_path / "controls-%2A.json"
    path.write_text(path.read_text().replace('"version"', '"newer": 1, "version"', 1))
    desk = gateway([])

    await upkeep(desk, board=board).reconcile()

    assert "newer" in why_not(desk)


@pytest.mark.parametrize(
    ("error", "runs"), [(AWAY, True), (BUG, True), (UNREADABLE, False)], ids=["away", "bug", "unreadable"]
)
async def test_known_controls_hold_unless_unreadable(error: Exception, *, runs: bool) -> None:
    board = Unsure(error)
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, OTHER_HALT)
    await keeping.reconcile()
    board.unknown.add("default")

    await keeping.reconcile()
    meanwhile = why_not(desk)
    board.unknown.clear()
    assert not await keeping.reconcile()

    assert (meanwhile == "") is runs
    assert why_not(desk) == ""
    assert "ann" in why_not(desk, "adviser-2")


async def test_every_command_after_loss_is_recorded() -> None:
    board = MemoryControlStore()
    desk = gateway([])
    keeping = upkeep(desk, board=board)
    await ordered(board, HALT)
    await keeping.reconcile()
    board._documents.clear()
    await ordered(board, OTHER_HALT, why="after", minute=1)
    await ordered(board, RemoveHalt(OTHER_HALT.scope, OTHER_HALT.id), why="after", minute=2)

    await keeping.reconcile()

    told = [(one.body["version"], one.body["why"]) for one in await events(desk, "operator.commanded")]
    assert told == [(1, "odd"), (1, "after"), (2, "after")]
