"""`run --agent` and `replay run --agent`: the example trades and replays, and a folder never chooses code."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[3]
RUN = ("run", "--data", "btcusdt-5m", "--provider", "rules", "--bars", 600)

FAILING = """
from agentic_trading.desk import Agent

class Failing(Agent):
    timeframe = "1h"

    async def on_bar(self, desk, bar):
        desk.buy(notional=1000)
        raise RuntimeError("no idea")
"""

MARKING = """
from pathlib import Path

Path("imported").touch()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the example and a failing agent."""
    shutil.copy(ROOT / "examples" / "breakout.py", tmp_path)
    (tmp_path / "failing_agent.py").write_text(FAILING, encoding="utf-8")
    (tmp_path / "marking_agent.py").write_text(MARKING, encoding="utf-8")
    for name in ("breakout", "failing_agent"):  # of an earlier test, in another folder
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.timeout(120)
def test_example_agent_trades_and_replays(folder: Path, command: Command) -> None:
    (folder / "breakout.toml").write_text("lookback = 10\n", encoding="utf-8")
    agent = ("--agent", "breakout:Breakout")

    ran = command(*RUN, *agent, "--agent-config", "breakout.toml", "--out", "own")
    assert ran.code == ExitCode.DONE, ran.err
    assert "replay run own --agent breakout:Breakout --workers 8" in ran.out
    manifest = json.loads((folder / "own" / "run.json").read_bytes())
    assert (manifest["version"], manifest["agent"]["config"]) == (3, {"lookback": 10})

    replayed = command("replay", "run", "own", *agent)
    assert (replayed.code, replayed.err) == (ExitCode.DONE, "")
    assert command("audit", "verify", "own").code == ExitCode.DONE

    with (folder / "breakout.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert (
        "the source of breakout:Breakout is not that of run 1" in command("replay", "run", "own", *agent).err
    )


@pytest.mark.timeout(120)
def test_folder_never_chooses_code(folder: Path, command: Command) -> None:
    assert command(*RUN, "--agent", "breakout:Breakout", "--out", "own").code == ExitCode.DONE
    path = folder / "own" / "run.json"
    path.write_text(path.read_text().replace("breakout:Breakout", "marking_agent:Marking"))

    refused = command("replay", "run", "own")
    resumed = command(*RUN, "--out", "own", "--resume")
    for reading in (("trace", "list", "--store", "own"), ("report", "own"), ("audit", "verify", "own")):
        command(*reading)

    assert (refused.code, resumed.code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert "--agent is left out. Allowed: --agent marking_agent:Marking" in refused.err
    assert not (folder / "imported").exists()


def test_error_of_agent_ends_backtest_with_exit_code_2(folder: Path, command: Command) -> None:
    ended = command(*RUN, "--agent", "failing_agent:Failing", "--out", "failed")

    assert ended.code == ExitCode.BAD_INPUT
    assert "Failing.on_bar raised RuntimeError: no idea (failing_agent.py:9)" in ended.err
    assert "agent.failed" in command("records", "--kind", "agent.failed", "--store", "failed").out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--agent", "breakout"), "MODULE:CLASS"),
        (("--agent", "breakout:Missing"), "which is missing in its module"),
        (("--agent", "breakout:Verdict"), "which is not a subclass of Agent"),
        (("--agent", "no_such_module:Agent"), "whose module raised ModuleNotFoundError"),
        (("--agent", "planner"), "Allowed: cmt for this data"),
        (("--agent-config", "x.toml"), "together with --agent"),
        (("--agent", "breakout:Breakout", "--agent-config", "x.toml"), "x.toml"),
        (("--agent", "breakout:Breakout", "--agent-config", "wrong.toml"), "has no setting 'lookbak'"),
    ],
)
def test_wrong_agent_is_refused(
    options: tuple[str, ...], message: str, folder: Path, command: Command
) -> None:
    (folder / "wrong.toml").write_text("lookbak = 10\n", encoding="utf-8")

    refused = command(*RUN, *options, "--out", "own")

    assert refused.code == ExitCode.BAD_INPUT
    assert message in refused.err
    assert not (folder / "own").exists()
