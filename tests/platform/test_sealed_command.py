"""The sealed command of a configuration: a platform and a run ship segments, and count those that are not shipped."""

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agentic_trading.llm import Event, JsonFileInteractionStore
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import local_gateway, port_adapters
from agentic_trading.platform.config import LogConfig, PlatformConfig, ProviderConfig
from agentic_trading.platform.platform import Platform
from agentic_trading.platform.settings import load_config
from tests.build import event

COPY = "import shutil, sys; shutil.copy(*sys.argv[1:])"


@pytest.fixture(autouse=True)
def time_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for all commands by closing."""
    monkeypatch.setattr("agentic_trading.llm.stores.jsonl.shipping.CLOSES_WITHIN_S", 100.0)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Return the folder to which segments are shipped."""
    folder = tmp_path / "copies"
    folder.mkdir()
    return folder


def config(tmp_path: Path, script: str, *words: str) -> PlatformConfig:
    command = shlex.join([sys.executable, "-ISc", script, *words])
    log = LogConfig(segment_bytes=1 << 16, sealed_command=command)
    return PlatformConfig(folder=tmp_path / "state", log=log, providers={"rules": ProviderConfig()})


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def record_two_segments(record: Callable[[Event], Awaitable[object]]) -> None:
    for number in range(2):
        await record(event(id=f"e-{number}", body={"text": "x" * (1 << 16)}))


async def test_platform_ships_sealed_segments(tmp_path: Path, copies: Path) -> None:
    async with Platform(config(tmp_path, COPY, "{path}", str(copies))) as platform:
        await record_two_segments(platform.record)
        counted = platform.statistics().unshipped

    found = await asyncio.to_thread(contents, copies)
    state = await asyncio.to_thread(contents, tmp_path / "state")
    names = {"interactions-00000000000000000001.jsonl", "interactions.seals.jsonl"}
    assert counted is not None
    assert names <= found.keys()
    assert found.items() <= state.items()


async def test_shipped_files_are_a_log(tmp_path: Path, copies: Path) -> None:
    log = port_adapters.log_for(
        "paper", tmp_path / "interactions.jsonl", config=config(tmp_path, COPY, "{path}", str(copies))
    )
    async with aclosing(log):
        await record_two_segments(log.record)

    await asyncio.to_thread((copies / "interactions.jsonl").touch)
    async with aclosing(port_adapters.records_of(copies / "interactions.jsonl")) as records:
        verification = await records.verify()

    assert (verification.is_intact, verification.lines) == (True, 1)


async def test_platform_without_command_does_not_count_segments(tmp_path: Path) -> None:
    settings = PlatformConfig(folder=tmp_path, providers={"rules": ProviderConfig()})

    async with Platform(settings) as platform:
        assert platform.statistics().unshipped is None


async def test_local_gateway_ships_segments_of_its_store(tmp_path: Path, copies: Path) -> None:
    command = shlex.join([sys.executable, "-ISc", COPY, "{path}", str(copies)])
    store = JsonFileInteractionStore(tmp_path / "log.jsonl", segment_bytes=1 << 16, sealed_command=command)

    async with (
        aclosing(store),
        local_gateway(ScriptedProvider(["{}"]), store=store, budget_usd=Decimal(1)) as gateway,
    ):
        await record_two_segments(gateway.record)

    assert "log-00000000000000000001.jsonl" in await asyncio.to_thread(contents, copies)


def test_store_refuses_text_that_is_not_a_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a program and its arguments"):
        JsonFileInteractionStore(tmp_path / "log.jsonl", sealed_command="")


async def test_run_ships_sealed_segments(tmp_path: Path, copies: Path) -> None:
    settings = config(tmp_path, COPY, "{path}", str(copies))
    log = port_adapters.log_for("backtest", tmp_path / "run" / "interactions.jsonl", config=settings)

    async with aclosing(log):
        await record_two_segments(log.record)

    assert "interactions.seals.jsonl" in await asyncio.to_thread(contents, copies)


async def test_warning_has_no_secret_of_the_platform(tmp_path: Path) -> None:
    settings = config(tmp_path, "import sys; sys.exit('401 for key sk-5ecret-0f-the-platform')")
    settings.redaction.add("sk-5ecret-0f-the-platform")
    log = port_adapters.log_for("paper", tmp_path / "interactions.jsonl", config=settings)

    with capture_logs() as logged:
        async with aclosing(log):
            await record_two_segments(log.record)

    assert logged[0]["stderr"] == "401 for key ***"


def test_command_in_a_file_is_loaded(tmp_path: Path) -> None:
    command = "rclone copy {path} 'remote:a bucket/{log}/'"
    file = tmp_path / "agentic-trading.toml"
    file.write_text(f"[log]\nsealed_command = {json.dumps(command)}\n", encoding="utf-8")

    loaded = load_config(file)

    assert loaded.log.sealed_command == command
    assert PlatformConfig(**loaded.public_values()) == loaded
    assert (
        PlatformConfig(log=LogConfig(sealed_command=command)).config_sha256 != PlatformConfig().config_sha256
    )
    assert PlatformConfig(log=LogConfig(sealed_command=None)).config_sha256 == PlatformConfig().config_sha256
