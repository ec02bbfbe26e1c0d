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
    *said, last = done.stderr.splitlines()
    ended, loaded = json.loads(last)
    assert set(ended) <= set(codes), said
    return set(loaded)


def of_the_desk(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.startswith("agentic_trading.desk")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Return the folder of a log with a call and no event of the desk, and the ids of its trace and envelope."""
    folder, asked = tmp_path_factory.mktemp("plain"), envelope()

    async def ask() -> None:
        config = PlatformConfig(folder=folder)
        async with Platform(config, Ports(providers={"scripted": scripted()})) as platform:
            await platform.ask(asked)

    asyncio.run(ask())
    return str(folder), asked.trace_id, asked.envelope_id


def test_commands_without_model_load_no_sdk(session: Path, tmp_path: Path) -> None:
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


def test_gateway_commands_load_no_desk_module(
    session: Path, plain: tuple[str, str, str], tmp_path: Path
) -> None:
    log, trace_id, envelope_id = plain
    of_session = ("--store", str(shutil.copytree(session, tmp_path / "session")))
    calls = [
        ["--help"],
        ["trace", "--help"],
        ["models", "list"],
        ["prices", "show"],
        ["config", "show"],
        ["config", "check"],
        ["budget", "show", *of_session],
        ["budget", "history", *of_session],
        ["audit", "verify", str(session)],
        ["spend", *of_session],
        ["spend", "--store", log],
        ["trace", "list", "--store", log],
        ["trace", "show", trace_id, "--store", log],
        ["trace", "why", envelope_id, "--store", log],
    ]
    without_server = [
        ["halt", *of_session],
        ["resume", *of_session],
        ["dlq", "list", "--bus", NOWHERE],
        ["dlq", "replay", "--bus", NOWHERE],
        ["topics", "check", "--bus", NOWHERE],
        ["submit", "-", "--bus", NOWHERE],
        ["worker", "--bus", NOWHERE, "--ledger", NOWHERE, "--provider", "nowhere"],
    ]

    loaded = loaded_by(*calls) | loaded_by(*without_server, codes=(0, 1, 2, 3))

    assert of_the_desk(loaded) == set()
    assert {"agentic_trading.platform.worker", "rich"} <= loaded


def test_log_with_desk_events_loads_renderers(session: Path) -> None:
    loaded = of_the_desk(loaded_by(["trace", "list", "--store", str(session)]))

    assert "agentic_trading.desk.cli.renderers" in loaded
    assert {name for name in loaded if name.startswith("agentic_trading.desk.session")} == set()
