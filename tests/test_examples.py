"""The examples run, and print what their lessons show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_trading.llm.limits import NANO
from examples.embedded_bot.run import BUDGET_USD, STAND_ASIDE, trade
from tests import redis_server

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "01_ask": "direction='up' confidence=0.7\n2 attempts, ",
    "02_own_schema": '{"side":"buy","quantity":0.150}\nattempt 1: ',
    "03_own_provider": '{"trend": "up"} 1550 nUSD\nthe cluster is not reachable 0 nUSD\n',
    "04_budget_and_halt": 'first    {"side": "long"}\nhalted   halted\ncall 2   {"side": "long"}\ncall 3   budget_exhausted\n',
    "05_workers": "Answer(Trend(direction='up'), attempts=1, cost_nusd=250000)\n" * 8,
    "06_fallback": '{"direction": "up"}\nscripted-1: server_error\nscripted-prompted-1: answered\n',
    "07_replay": '{"side": "long"} 264000 nUSD  ->  {"side": "long"} 0 nUSD\n',
    "08_ask_a_log": "Which agent spent the most?  concluded: Compare the agents. They are equal. ",
}
"""The numbered examples, and the output that each begins with."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SCRIPTS)
def test_numbered_example_prints_expected_output(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    server = redis_server.servers()[0]
    arguments = [request.getfixturevalue("redis_named")(server)] if name == "05_workers" else []

    run = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / f"{name}.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert SCRIPTS[name] in run.stdout
    assert "Traceback" not in run.stderr


def test_numbered_examples_are_short_and_run() -> None:
    scripts = {script.stem: script for script in (ROOT / "examples").glob("0*.py")}

    assert set(scripts) == set(SCRIPTS)
    assert [
        name for name, script in scripts.items() if len(script.read_text("utf-8").splitlines()) >= 60
    ] == []


async def test_bot_obeys_halt_and_budget_across_restart(tmp_path: Path) -> None:
    report = await trade(tmp_path)

    halted, spent = f"{STAND_ASIDE}: halted", f"{STAND_ASIDE}: budget_exhausted"
    assert report.starts == [
        ["long", "long", halted],
        [halted],
        ["long", "long", "long", spent, spent],
    ]
    assert 0 < report.spent_nusd <= BUDGET_USD * NANO


@pytest.mark.soak
@pytest.mark.timeout(90)  # it starts the program seven times
def test_tour_finds_tampering_and_rejects_truncation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    tour = subprocess.run(
        ["sh", ROOT / "examples" / "tour.sh"],  # noqa: S607 - the shell of the machine
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert tour.returncode == 0, tour.stderr
    steps = [step.partition("\n")[2] for step in tour.stdout.split("== ")]
    assert "8 order.filled" in steps[2]
    assert steps[3].startswith("broken\n")
    assert "its hash is not that of its bytes" in steps[3]
    assert steps[4].startswith("identical, byte for byte\n")
    assert steps[5] == '{"symbol": "BTCUSDT", "side": "BUY", "qty": 0.15}\n'
    assert "rejected: truncated" in tour.stderr
