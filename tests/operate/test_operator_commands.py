"""Commands of operators reach one place, and wait until the workers there have acknowledged them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentic_trading.cli.budget_tables import command_location_of
from agentic_trading.governance.status_feed import BudgetStatus, FileStatusFeed
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.llm.event import PLATFORM
from agentic_trading.operate.budgets import BudgetLocationOptions, halt_command, open_location
from agentic_trading.operate.operator_commands import (
    ACKNOWLEDGED_WITHIN_S,
    CommandReach,
    execute_acknowledged,
)
from agentic_trading.platform.errors import OptionError
from tests.cli.conftest import _own_place  # noqa: F401 - an empty environment
from tests.governance.reporting import told
from tests.redis_server import RealServer
from tests.worker.ticking import Wall

LOG = "interactions.jsonl"
WHOLE = {"agent": None, "workflow": None, "model": None}


class Waits(Wall):
    """A clock on which a sleep is over at once, after something was done."""

    def __init__(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(datetime(2026, 1, 2, tzinfo=UTC))
        self.then = then
        self.slept_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.advance_to(self.now() + timedelta(seconds=seconds))
        if self.then is not None:
            await self.then()


@contextmanager
def running(folder: Path, *reports: BudgetStatus) -> Iterator[Path]:
    """Have a process run in a folder: its log is taken, and it has reported."""
    store = JsonFileInteractionStore(folder / LOG)
    asyncio.run(_begin(store, folder, reports))
    try:
        yield folder
    finally:
        asyncio.run(store.aclose())


async def _begin(store: JsonFileInteractionStore, folder: Path, reports: tuple[BudgetStatus, ...]) -> None:
    await store.open()
    for one in reports:
        await FileStatusFeed(folder).publish(one)


async def halted(
    where: BudgetLocationOptions, clock: Waits, tenant: str = "default"
) -> tuple[int, CommandReach]:
    controls, reach = await execute_acknowledged(
        where, tenant, halt_command(tenant, **WHOLE), "", clock=clock
    )
    return controls.serial, reach


def test_halt_is_acknowledged_by_reported_serial(tmp_path: Path) -> None:
    where = BudgetLocationOptions(tmp_path)

    async def follow() -> None:
        async with open_location(where) as place:
            serial = (await place.controls.read("default")).serial
            await place.statuses.publish(told("w-1", "default", controls_serial=serial))

    with running(tmp_path, told("w-1", "default")):
        clock = Waits(follow)
        _, reach = asyncio.run(halted(where, clock))

    assert (reach.acknowledged, reach.missing, reach.is_complete) == (("w-1",), (), True)
    assert clock.slept_s < ACKNOWLEDGED_WITHIN_S


@pytest.mark.parametrize("others", [(), ("w-2",)])
def test_halt_waits_three_seconds_for_silent_worker(others: tuple[str, ...], tmp_path: Path) -> None:
    where = BudgetLocationOptions(tmp_path)

    async def follow() -> None:
        async with open_location(where) as place:
            serial = (await place.controls.read("default")).serial
            for worker in others:
                await place.statuses.publish(told(worker, "default", controls_serial=serial))

    with running(tmp_path, *(told(worker, "default") for worker in ("w-1", *others))):
        clock = Waits(follow)
        _, reach = asyncio.run(halted(where, clock))

    assert (reach.acknowledged, reach.missing, reach.is_complete) == (others, ("w-1",), False)
    assert clock.slept_s == pytest.approx(ACKNOWLEDGED_WITHIN_S)
    assert "w-1 did not acknowledge it within 3 s" in reach.problem


def test_final_report_acknowledges_the_halt(tmp_path: Path) -> None:
    where = BudgetLocationOptions(tmp_path)

    async def halt() -> CommandReach:
        store = JsonFileInteractionStore(tmp_path / LOG)
        await _begin(store, tmp_path, (told("w-1", "default"),))

        async def follow() -> None:
            async with open_location(where) as place:
                serial = (await place.controls.read("default")).serial
                await place.statuses.publish(told("w-1", "default", is_running=False, controls_serial=serial))
            await store.aclose()

        _, reach = await halted(where, Waits(follow))
        return reach

    assert asyncio.run(halt()).is_complete


@pytest.mark.parametrize("is_running", [True, False])
def test_report_of_ended_process_does_not_acknowledge(tmp_path: Path, *, is_running: bool) -> None:
    asyncio.run(FileStatusFeed(tmp_path).publish(told("w-1", "default", is_running=is_running)))
    clock = Waits()

    _, reach = asyncio.run(halted(BudgetLocationOptions(tmp_path), clock))

    assert (reach.acknowledged, reach.missing, reach.is_complete) == ((), (), False)
    assert clock.slept_s == 0
    assert "no running process acknowledged it" in reach.problem


@pytest.mark.parametrize("followers", [("acme", "zenith"), ("acme",)])
def test_global_halt_waits_for_all_workers(followers: tuple[str, ...], own_redis: RealServer) -> None:
    where = BudgetLocationOptions(None, own_redis.url)

    async def halt() -> CommandReach:
        async with open_location(where) as place:

            async def follow() -> None:
                serial = (await place.controls.read(PLATFORM)).serial
                for tenant in followers:
                    await place.statuses.publish(told("w-1", tenant, platform_serial=serial))

            for tenant in ("acme", "zenith"):
                await place.statuses.publish(told("w-1", tenant, controls_serial=1))
            _, reach = await halted(where, Waits(follow), PLATFORM)
            return reach

    reach = asyncio.run(halt())

    assert reach.acknowledged == tuple(f"w-1 ({tenant})" for tenant in followers)
    assert reach.is_complete is (len(followers) == 2)


def test_location_defaults_to_the_running_folder(tmp_path: Path) -> None:
    for name in ("ended", "runs"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / LOG).touch()
    with running(tmp_path / "runs" / "runs", told("w-1", "default")):
        found = command_location_of(None, None)

    assert (found.folder, found.ledger_url) == (Path("runs/runs"), None)


def test_missing_location_is_refused_without_process(tmp_path: Path) -> None:
    (tmp_path / "runs" / "ended").mkdir(parents=True)
    (tmp_path / "runs" / "ended" / LOG).touch()
    asyncio.run(FileStatusFeed(tmp_path / "runs" / "ended").publish(told("w-1", "default")))

    with pytest.raises(OptionError, match=r"left out, and no session runs below runs, .* --store PATH"):
        command_location_of(None, None)


def test_missing_location_is_refused_if_ambiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "runs" / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
    with running(folders[0], told("w-1", "default")), running(folders[1], told("w-1", "default")):
        with pytest.raises(
            OptionError, match=r"2 places are live\. Allowed: one of --store runs/a, --store runs/b"
        ):
            command_location_of(None, None)
        named = command_location_of(folders[0], None)
    with running(folders[0]):
        monkeypatch.setenv("AGENTIC_LEDGER_URL", "redis://me:secret@127.0.0.1:1")
        with pytest.raises(OptionError, match=r"one of --ledger redis://127.0.0.1:1, --store runs/a"):
            command_location_of(None, None)

    assert named.folder == folders[0]


def test_location_defaults_to_configured_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LEDGER_URL", "redis://127.0.0.1:1")

    assert command_location_of(None, None).ledger_url == "redis://127.0.0.1:1"


def test_location_defaults_to_environment_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LOG).touch()
    monkeypatch.setenv("AGENTIC_STORE", str(tmp_path))

    assert command_location_of(None, None).folder == tmp_path
