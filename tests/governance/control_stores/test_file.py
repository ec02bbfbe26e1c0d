"""Orders in a folder hold between processes, are all or nothing, and what is not theirs is left alone."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agentic_trading.governance.commands import AddHalt, SetLimit, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, ControlsUnreadableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from tests.build import NOW

PROCESSES, EACH = 3, 20
ORDERS = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.commands import AddHalt, execute_command

async def main(folder, name, count):
    board = FileControlStore(Path(folder))
    for number in range(int(count)):
        halt = AddHalt(HaltScope.AGENT, f"{name}-{number}")
        await execute_command(board, "acme", halt, by=name, why="", at=datetime(2026, 1, 2, tzinfo=UTC))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def board(tmp_path: Path) -> FileControlStore:
    return FileControlStore(tmp_path)


def path(folder: Path, tenant: str = "acme") -> Path:
    return folder / f"controls-{tenant}.json"


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def halt(board: FileControlStore, agent: str = "cmt-1") -> TenantControls:
    return await execute_command(board, "acme", AddHalt(HaltScope.AGENT, agent), by="ann", why="", at=NOW)


async def test_concurrent_processes_lose_no_commands(tmp_path: Path, board: FileControlStore) -> None:
    def run() -> None:
        command = [sys.executable, "-c", ORDERS, str(tmp_path)]
        processes = [subprocess.Popen([*command, f"p{number}", str(EACH)]) for number in range(PROCESSES)]
        assert [process.wait() for process in processes] == [0] * PROCESSES

    await asyncio.to_thread(run)

    controls = await board.read("acme")
    assert controls.version == PROCESSES * EACH
    assert {one.id for one in controls.halts} == {f"p{n}-{i}" for n in range(PROCESSES) for i in range(EACH)}


async def test_controls_document_is_plain_json(tmp_path: Path, board: FileControlStore) -> None:
    limit = Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=25 * 10**9, calls=1000)
    await execute_command(board, "acme", SetLimit(limit), by="ann", why="a new desk", at=NOW)
    await execute_command(
        board, "acme", AddHalt(HaltScope.AGENT, "cmt-1"), by="bob", why="", at=NOW + timedelta(hours=1)
    )

    document = json.loads(path(tmp_path).read_text(encoding="utf-8"))

    assert document["version"] == 2
    assert document["limits"] == [
        {"scope": "tenant", "id": "*", "window": "day", "nusd": 25 * 10**9, "calls": 1000}
    ]
    assert document["halts"] == [
        {"scope": "agent", "id": "cmt-1", "by": "bob", "why": "", "at": "2026-01-02T01:00:00Z"}
    ]
    assert document["actions"][0]["after"] == "25 USD, 1000 calls"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "document: Invalid JSON"),
        ("{", "document: Invalid JSON"),
        ("[]", "document: Input should be an object"),
        ("{}", "version: is missing or 0"),
        ('{"version": "x"}', "version: Input should be a valid integer"),
        ('{"version": 1, "pauses": []}', "pauses: Extra inputs are not permitted"),
        ('{"version": 1, "limits": [{"scope": "tenant", "id": "*", "window": "day"}]}', "has no ceiling"),
        (
            '{"version": 1, "limits": [{"scope": "team", "id": "*", "window": "day", "calls": 1}]}',
            "limits.0.scope",
        ),
        ("\xff", "document: Invalid JSON"),
    ],
)
async def test_invalid_document_is_rejected_unchanged(
    tmp_path: Path, board: FileControlStore, content: str, said: str
) -> None:
    raw = content.encode("latin-1")
    path(tmp_path).write_bytes(raw)

    with pytest.raises(ControlsUnreadableError, match="it, or move it away") as caught:
        await board.read("acme")
    with pytest.raises(ControlsUnreadableError):
        await board.replace("acme", TenantControls(version=1))

    assert said in caught.value.reason
    assert caught.value.where == str(path(tmp_path))
    assert path(tmp_path).read_bytes() == raw


async def test_leftover_of_dead_writer_is_overwritten(tmp_path: Path, board: FileControlStore) -> None:
    await halt(board)
    path(tmp_path).with_name("controls-acme.json.new").write_text('{"version": 2, "ha', encoding="utf-8")

    assert (await board.read("acme")).version == 1
    assert (await halt(board, "cmt-2")).version == 2
    assert names_in(tmp_path) == ["controls-acme.json", "controls.lock"]


async def test_failed_write_keeps_previous_document(tmp_path: Path, board: FileControlStore) -> None:
    before = await halt(board)
    path(tmp_path).with_name("controls-acme.json.new").mkdir()

    with pytest.raises(ControlsUnavailableError, match="cannot be reached"):
        await halt(board, "cmt-2")

    assert await board.read("acme") == before


async def test_unreachable_path_is_named_in_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path(tmp_path).mkdir()

    for folder in (tmp_path / "file", tmp_path):
        board = FileControlStore(folder)
        with pytest.raises(ControlsUnavailableError) as caught:
            await board.read("acme")
        assert caught.value.where == str(path(folder))
        with pytest.raises(ControlsUnavailableError):
            await board.replace("acme", TenantControls(version=1))


async def test_tenant_name_never_escapes_folder(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    for tenant in ("../../up", "/etc/x", "a\0b", "..", "\ud800"):
        assert await FileControlStore(folder).replace(tenant, TenantControls(version=1))

    assert names_in(tmp_path) == ["board"]
    assert len(names_in(folder)) == 6
