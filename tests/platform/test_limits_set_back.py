"""A server that lost limits and halts: in every order of events no call passes a limit that was set, and a halt holds."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    RemoveHalt,
    RemoveLimit,
    SetLimit,
    execute_command,
)
from agentic_trading.governance.control_stores.redis import RedisControlStore, RedisStatusFeed
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm import FailureKind
from agentic_trading.llm.event import PLATFORM
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.operate.budget_log import LedgerRebuildReport, rebuild_ledger
from agentic_trading.platform import LedgerConfig, Platform, PlatformConfig, Ports
from tests.platform.calls import asked, envelope, scripted
from tests.redis_server import RealServer

TENANT = (ScopeKind.TENANT, ANY, Window.NONE)
HIGH, LOW = 40, 3


def at_most(calls: int) -> SetLimit:
    return SetLimit(Limit(*TENANT, calls=calls))


@dataclass
class Desk:
    """Workers on a server, an operator, and a provider that counts: its requests are the invoice."""

    folder: Path
    server: RealServer
    provider: ScriptedProvider = field(default_factory=scripted)
    asked_for: int = 0
    running: dict[str, AsyncExitStack] = field(default_factory=dict)
    platforms: dict[str, Platform] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        stack = AsyncExitStack()
        configured = PlatformConfig(
            folder=self.folder / "logs", name=name, ledger=LedgerConfig(url=self.server.url)
        )
        opened = Platform(configured, Ports(providers={"scripted": self.provider}))
        self.platforms[name] = await stack.enter_async_context(opened)
        self.running[name] = stack

    async def stop(self, name: str) -> None:
        del self.platforms[name]
        await self.running.pop(name).aclose()

    async def ask(self, calls: int, *, agent: str = "") -> list[FailureKind | None]:
        """Ask every worker for so many calls, one after the other."""
        found = []
        for platform in self.platforms.values():
            for _ in range(calls):
                self.asked_for += 1
                call = envelope(self.asked_for)
                if agent:
                    call = call.model_copy(update={"agent_id": agent})
                found += await asked(platform, call)
        return found

    async def command(self, *commands: OperatorCommand, tenant: str = "default") -> TenantControls:
        """Give commands, and wait until each running worker has applied them."""
        controls = TenantControls()
        async with self.controls() as store:
            for one in commands:
                now = SystemClock().now()
                controls = await execute_command(store, tenant, one, by="ann", why="", at=now)
        await self.followed(controls.version)
        return controls

    @asynccontextmanager
    async def controls(self) -> AsyncGenerator[RedisControlStore]:
        store = await asyncio.to_thread(RedisControlStore, self.server.url)
        try:
            yield store
        finally:
            await store.aclose()

    async def followed(self, version: int) -> None:
        feed = await asyncio.to_thread(RedisStatusFeed, self.server.url)
        try:
            async with asyncio.timeout(20):
                while True:
                    reports = [one for one in await feed.read("default") if one.is_running]
                    newest = sorted(one.limits_version for one in reports)
                    if len(newest) >= len(self.platforms) and all(one >= version for one in newest):
                        return
                    await asyncio.sleep(0.01)
        finally:
            await feed.aclose()

    async def rebuild(self) -> LedgerRebuildReport:
        logs = sorted(self.folder.glob("logs/*/interactions.jsonl"))
        return await rebuild_ledger(logs, self.server.url, "default")

    @property
    def invoice(self) -> int:
        return len(self.provider.requests)


@pytest.fixture
async def desk(tmp_path: Path, own_redis: RealServer) -> AsyncGenerator[Desk]:
    made = Desk(tmp_path, own_redis)
    yield made
    for name in list(made.running):
        await made.stop(name)


Loss = Callable[[Desk], Awaitable[None]]


async def is_emptied(desk: Desk) -> None:
    await asyncio.to_thread(_empty, desk.server)


def _empty(server: RealServer) -> None:
    server.kill()
    for path in server.append_only_files.iterdir():
        path.unlink()
    server.start()


async def is_set_back(desk: Desk) -> None:
    await asyncio.to_thread(desk.server.set_back, desk.folder / "older")


async def stays(desk: Desk) -> None:
    await desk.rebuild()


async def restarts_before_the_rebuild(desk: Desk) -> None:
    await desk.stop("a")
    with suppress(LedgerUnavailableError):
        await desk.start("a")
    await desk.rebuild()
    if "a" not in desk.running:
        await desk.start("a")


async def restarts_after_the_rebuild(desk: Desk) -> None:
    await desk.stop("a")
    await desk.rebuild()
    await desk.start("a")


async def is_replaced(desk: Desk) -> None:
    await desk.stop("a")
    await desk.rebuild()
    await desk.start("b")


async def gets_a_second(desk: Desk) -> None:
    await desk.rebuild()
    await desk.start("b")


WORKERS: tuple[Loss, ...] = (
    stays,
    restarts_before_the_rebuild,
    restarts_after_the_rebuild,
    is_replaced,
    gets_a_second,
)


@pytest.mark.parametrize(
    ("loss", "worker"),
    [
        pytest.param(loss, worker, marks=[] if worker is stays else [pytest.mark.soak])
        for loss in (is_emptied, is_set_back)
        for worker in WORKERS
    ],
    ids=lambda one: one.__name__,
)
async def test_invoice_stays_within_lowered_limit_after_loss(desk: Desk, loss: Loss, worker: Loss) -> None:
    await desk.command(at_most(HIGH))
    await desk.start("a")
    assert await desk.ask(1) == [None]
    await asyncio.to_thread(desk.server.copy, desk.folder / "older")
    await desk.command(at_most(LOW), AddHalt(HaltScope.AGENT, "bad"))
    assert await desk.ask(1) == [None]

    await loss(desk)
    await worker(desk)
    answers = await desk.ask(4)
    halted = await desk.ask(1, agent="bad")

    assert desk.invoice == LOW
    assert answers.count(None) == LOW - 2
    assert set(halted) == {FailureKind.HALTED}


@pytest.mark.parametrize("loss", [is_emptied, is_set_back], ids=lambda one: one.__name__)
async def test_rebuild_restores_limits_and_halts_from_logs(desk: Desk, loss: Loss) -> None:
    await desk.command(at_most(HIGH))
    await desk.start("a")
    await desk.ask(1)
    await asyncio.to_thread(desk.server.copy, desk.folder / "older")
    await desk.command(AddHalt(HaltScope.MODEL, "m"), tenant=PLATFORM)  # read before those of a tenant
    known = await desk.command(at_most(LOW), AddHalt(HaltScope.AGENT, "bad"))
    await desk.ask(1)
    await desk.stop("a")
    await loss(desk)

    report = await desk.rebuild()
    again = await desk.rebuild()

    async with desk.controls() as store:
        controls, platform = await store.read("default"), await store.read(PLATFORM)
    assert (controls.limits, controls.halts) == (known.limits, known.halts)
    assert [one.id for one in platform.halts] == ["m"]
    assert report.limits == again.limits == ("tenant * in all: 3 calls",)
    assert "halt agent bad" in report.restored
    assert report.halts == ("model m", "agent bad")
    assert again.restored == ()


async def test_removal_and_resume_survive_older_snapshot(desk: Desk) -> None:
    await desk.command(at_most(1), AddHalt(HaltScope.AGENT, "good"))
    await desk.start("a")
    await desk.ask(1)
    await asyncio.to_thread(desk.server.copy, desk.folder / "older")
    await desk.command(RemoveLimit(*TENANT), RemoveHalt(HaltScope.AGENT, "good"))
    await desk.ask(1)
    await is_set_back(desk)

    await restarts_after_the_rebuild(desk)

    assert await desk.ask(2, agent="good") == [None, None]


async def test_later_command_replaces_the_lost_command(desk: Desk) -> None:
    await desk.command(at_most(1))
    await desk.start("a")
    await desk.ask(1)
    await desk.stop("a")
    await is_emptied(desk)
    await desk.command(at_most(LOW))

    await desk.rebuild()
    await desk.start("a")

    assert await desk.ask(4) == [None, None, *[FailureKind.BUDGET_EXHAUSTED] * 2]


async def test_configured_limit_does_not_replace_lost_limit(desk: Desk) -> None:
    await desk.command(at_most(LOW))
    await desk.start("a")
    await desk.ask(1)
    await desk.stop("a")
    await is_emptied(desk)
    async with desk.controls() as store:
        now = SystemClock().now()
        await execute_command(store, "default", at_most(HIGH), by="config", why="", at=now)

    await desk.rebuild()
    await desk.start("b")

    assert (await desk.ask(4)).count(None) == LOW - 1


async def test_calls_wait_for_limits_after_rebuild(desk: Desk) -> None:
    """Another worker's log is named alone: the running worker knows a lower limit that no log there has."""
    await desk.command(at_most(HIGH))
    await desk.start("b")
    await desk.ask(1)
    await desk.stop("b")
    await desk.start("a")
    await desk.command(at_most(LOW))
    await is_emptied(desk)

    log = desk.folder / "logs" / "b" / "interactions.jsonl"
    await rebuild_ledger([log], desk.server.url, "default")
    await desk.ask(4)

    assert desk.invoice == LOW


async def test_unread_command_is_lost_with_the_server(desk: Desk) -> None:
    """The condition in `docs/explanation/budgets.md`: such a command is on the server alone."""
    await desk.command(at_most(HIGH))
    await desk.start("a")
    await desk.ask(1)
    await desk.stop("a")
    await asyncio.to_thread(desk.server.copy, desk.folder / "older")
    await desk.command(at_most(LOW))
    await is_set_back(desk)

    await desk.start("a")
    answers = await desk.ask(LOW + 1)

    assert answers.count(None) == LOW + 1
