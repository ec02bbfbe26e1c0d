"""What asks no model loads no SDK, what makes no strategy nothing of the extra for these, and the gateway no module of the desk."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_trading.platform import Platform, PlatformConfig, Ports
from tests.platform.calls import envelope, scripted

SDKS = {"aiohttp", "anthropic", "openai", "xllamacpp"}
FOR_STRATEGIES = {"numpy", "jinja2", "matplotlib"}
MEASURE = """
import json, sys
from agentic_trading.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as e:
        codes.append(e.code or 0)
print(json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)
"""
NOWHERE = "redis://127.0.0.1:1"


def loaded_by(*commands: list[str], codes: tuple[int, ...] = (0,)) -> set[str]:
    """Return the modules that commands, called one after the other, have loaded when each has ended with one of `codes`."""
    command = [sys.executable, "-c", MEASURE, json.dumps(commands)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True)
    ended, loaded = json.loads(done.stderr.splitlines()[-1])
    assert set(ended) <= set(codes), done.stderr
    return set(loaded)


def of_the_desk(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.startswith("agentic_trading.desk")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a log of a gateway: a call, and no event of the desk."""
    folder = tmp_path_factory.mktemp("plain")

    async def ask() -> None:
        config = PlatformConfig(folder=folder)
        async with Platform(config, Ports(providers={"scripted": scripted()})) as platform:
            await platform.ask(envelope())

    asyncio.run(ask())
    return str(folder)


def test_what_asks_no_model_loads_no_sdk(session: Path, tmp_path: Path) -> None:
    bars = ("--data", "btcusdt-5m", "--bars")

    loaded = loaded_by(
        ["--help"],
        ["run", "--help"],
        ["run", *bars, "100", "--provider", "rules", "--out", str(tmp_path / "rules")],
        ["trace", "list", "--store", str(session)],
        ["replay", "run", str(session)],
        ["run", *bars, "500", "--provider", "recorded", "--from", str(session), "--out", str(tmp_path / "out")],
    )  # fmt: skip

    assert loaded & (SDKS | FOR_STRATEGIES) == set()
    assert "agentic_trading" in loaded


def test_commands_of_the_gateway_load_no_module_of_the_desk(
    session: Path, plain: str, tmp_path: Path
) -> None:
    copied = str(shutil.copytree(session, tmp_path / "session"))

    loaded = loaded_by(
        ["--help"],
        ["models", "list"],
        ["models", "check"],
        ["prices", "show"],
        ["config", "show"],
        ["halt", "--store", copied],
        ["budget", "show", "--store", copied],
        ["budget", "history", "--store", copied],
        ["audit", "verify", str(session)],
        ["spend", "--store", copied],
        ["spend", "--store", plain],
        ["trace", "list", "--store", plain],
        ["dlq", "list", "--bus", NOWHERE],
        ["topics", "check", "--bus", NOWHERE],
        ["submit", "-", "--bus", NOWHERE],
        ["worker", "--bus", NOWHERE, "--ledger", NOWHERE, "--provider", "nowhere"],
        codes=(0, 1, 2, 3),  # a halt without a worker, a provider and servers that are not there
    )

    assert of_the_desk(loaded) == set()
    assert {"agentic_trading.platform.worker", "rich"} <= loaded


def test_a_log_with_events_of_the_desk_loads_its_renderers(session: Path) -> None:
    loaded = of_the_desk(loaded_by(["trace", "list", "--store", str(session)]))

    assert "agentic_trading.desk.cli.renderers" in loaded
    assert {name for name in loaded if name.startswith("agentic_trading.desk.session")} == set()
