"""`agent check`: a sound agent passes, and each source of chance is found with its place."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[3]
SHORT = ("--bars", 60)

FAULTY = '''
import asyncio
import gc
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel

import faulty_rules
from agentic_trading.clock import SystemClock
from agentic_trading.desk import Agent
from agentic_trading.desk.session.session_run import SessionSetup

COUNT = 0


class View(BaseModel):
    up: bool


class Sound(Agent):
    """Uses loggers, generators with a seed, and its own attributes."""

    timeframe = "1h"

    def __init__(self, **config):
        super().__init__(**config)
        self.chances = random.Random(7)
        self.closes = []

    async def on_bar(self, desk, bar):
        logging.getLogger(__name__).warning("bar")
        self.closes.append(bar.close)
        answer = await desk.decide("Up?", output=View, evidence={"close": bar.close})
        if answer and self.chances.random() < desk.chance() + 0.5:
            desk.buy(notional=100 * len(self.closes))


class Acting(Agent):
    timeframe = "1h"

    async def on_bar(self, desk, bar):
        desk.buy(notional=1000 + int(1000 * self.number(desk)))

    def number(self, desk):
        return 0


class Draws(Acting):
    def number(self, desk):
        secrets.token_hex(4)
        uuid.uuid4()
        os.urandom(1)
        random.Random().random()
        return random.random()


class Chooses(Acting):
    """Draws, but to no effect."""

    def number(self, desk):
        random.shuffle([1, 2, 3])
        return 0


class Clocks(Acting):
    def number(self, desk):
        return (time.time() + datetime.now().microsecond / 1e6) % 1


class Looks(Acting):
    """Looks up tomorrow in files of its own, in its time, in the network, and by a program."""

    def number(self, desk):
        SystemClock().now()
        subprocess.run(["true"], check=True)
        with suppress(OSError), socket.socket() as opened:
            opened.settimeout(0.1)
            opened.connect(("127.0.0.1", 9))
        return len(Path("tomorrow.csv").read_text()) / 100 + faulty_rules.number()


class Hashes(Acting):
    """Depends on the hash of a text, as the order of a set does."""

    async def on_bar(self, desk, bar):
        await desk.note(str(hash("up")))


class Counts(Acting):
    seen = []

    def number(self, desk):
        global COUNT
        COUNT += 1
        self.seen.append(desk.now)
        return (COUNT + len(self.seen)) % 7 / 10


class Peeks(Acting):
    """Finds the length of the run in the memory of the process."""

    def number(self, desk):
        setups = [each for each in gc.get_objects() if isinstance(each, SessionSetup)]
        return max(each.most_bars or 0 for each in setups) / 1000 if setups else 0


class Gathers(Acting):
    async def on_bar(self, desk, bar):
        await asyncio.gather(desk.decide("Up?", output=View), desk.decide("Down?", output=View))


class Forgets(Agent):
    timeframe = "1h"

    async def on_bar(self, desk, bar):
        desk.decide("Up?", output=View)
        desk.buy(weight=0.1)


class Above(Agent):
    """Requests a stop on the wrong side."""

    timeframe = "1h"

    async def on_bar(self, desk, bar):
        desk.buy(risk_pct=1, stop=bar.close + 1)


class Idle(Agent):
    pass
'''

RULES = """
def number():
    with open("tomorrow.csv") as file:
        return len(file.read()) / 100
"""

IMPORTING = """
from pathlib import Path

from agentic_trading.desk import Agent

TOMORROW = Path("tomorrow.csv").read_text()


class Importing(Agent):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a sound agent and faulty ones."""
    files = {"faulty": FAULTY, "faulty_rules": RULES, "importing": IMPORTING}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)  # of an earlier test, in another folder
    (tmp_path / "tomorrow.csv").write_text("up", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a report in JSON, by name."""
    return {row["name"]: row for row in json.loads(text)["checks"]}


def checked(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    """Check an agent in a process of its own, in which no guard stops a blocking call."""
    program = Path(sys.executable).with_name("agentic-trading")
    shown = map(str, (program, "agent", "check", *words))
    return subprocess.run([*shown], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.timeout(120)
def test_sound_agent_passes_all_checks(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Sound", "--bars", 300)

    assert ended.code == ExitCode.DONE, ended.out
    assert "library=faulty message=bar" in ended.err
    assert "All checks passed" in ended.out
    assert ended.out.count(" ok: ") == 12
    assert "Not seen: C code that draws or reads by itself, such as numpy.random" in ended.out


@pytest.mark.timeout(120)
def test_example_agent_passes_with_its_settings(folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "breakout.py", folder)
    (folder / "breakout.toml").write_text("lookback = 10\n", encoding="utf-8")

    ended = checked(folder, "breakout:Breakout", "--agent-config", "breakout.toml", "--data", "btcusdt-5m,ethusdt-5m", *SHORT, "--json")  # fmt: skip

    result = json.loads(ended.stdout)
    assert (ended.returncode, result["passed"], result["bars"]) == (ExitCode.DONE, True, 120)
    assert all(row["passed"] for row in result["checks"])


REPLAYS = {"replay, 1 worker", "replay, 8 workers", "replay, new process"}
CHANGES = {"same twice", "no look-ahead"} | REPLAYS
AGAIN = CHANGES - {"replay, new process"}
"""What differs if only the first run of a process is as recorded."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("agent", "failed", "row", "found"),
    [
        ("Draws", CHANGES | {"random"}, "random", ["os.urandom", "random.Random without a seed", "random"]),
        ("Chooses", {"random"}, "random", ["random"]),
        ("Clocks", CHANGES | {"clocks"}, "clocks", ["time.time", "datetime.now"]),
        ("Counts", AGAIN | {"state"}, "state", ["faulty.COUNT", "faulty.Counts.seen"]),
    ],
)
def test_chance_and_state_are_found_with_their_place(
    agent: str, failed: set[str], row: str, found: list[str], folder: Path, command: Command
) -> None:
    ended = command("agent", "check", f"faulty:{agent}", *SHORT, "--json")

    assert ended.code == ExitCode.FOUND_WRONG
    of = rows(ended.out)
    assert {name for name, each in of.items() if each["passed"] is False} == failed
    assert [name for name in found if not any(name in place for place in of[row]["places"])] == []
    if row != "state":
        assert all(place.startswith("faulty.py:") for place in of[row]["places"])
    if "same twice" in failed:
        assert "$.body" in of["same twice"]["difference"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("agent", "found"),
    [
        (
            "faulty:Looks",
            {
                "files": ["faulty.py:90 open tomorrow.csv", "faulty_rules.py:3 open tomorrow.csv"],
                "clocks": ["datetime.now"],
                "network": ["socket.connect"],
                "processes": ["subprocess.Popen"],
            },
        ),
        ("importing:Importing", {"files": ["importing.py:6 open tomorrow.csv"]}),
    ],
)
def test_outside_is_named_with_its_place(agent: str, found: dict[str, list[str]], folder: Path) -> None:
    ended = checked(folder, agent, *SHORT, "--json")

    assert (ended.returncode, ended.stderr) == (ExitCode.FOUND_WRONG, "")
    of = rows(ended.stdout)
    assert {row for row in found if of[row]["passed"] is not False} == set()
    for row, names in found.items():
        assert [name for name in names if not any(name in place for place in of[row]["places"])] == [], of[
            row
        ]


@pytest.mark.timeout(120)
def test_decision_that_depends_on_later_bars_is_found(folder: Path) -> None:
    ended = checked(folder, "faulty:Peeks", *SHORT)  # not in this process, which has the runs of other tests

    assert ended.returncode == ExitCode.FOUND_WRONG
    assert "no look-ahead         FAILED" in ended.stdout
    assert "first difference: line 2 (intent.approved of BTCUSDT" in ended.stdout
    assert "$.body.quantity was" in ended.stdout


@pytest.mark.timeout(120)
def test_order_of_a_set_is_found_in_a_new_process(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Hashes", *SHORT, "--json")

    assert ended.code == ExitCode.FOUND_WRONG
    of = rows(ended.out)
    assert {name for name, each in of.items() if not each["passed"]} == {"replay, new process"}
    assert "$.body.text was" in of["replay, new process"]["difference"]


@pytest.mark.timeout(120)
def test_questions_at_the_same_time_fail_the_run(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Gathers", *SHORT, "--json")

    of = rows(ended.out)
    assert ended.code == ExitCode.FOUND_WRONG
    assert "at once with `decide_all`" in of["run"]["detail"]
    assert {name for name, row in of.items() if row["passed"] is None} == CHANGES


@pytest.mark.timeout(120)
def test_agent_without_decisions_passes_with_a_note(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Idle", "--bars", 1)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "needs 2 bars or more" in ended.out
    assert "Note: the agent decided nothing on these bars" in ended.out


@pytest.mark.timeout(120)
def test_question_without_await_is_named_with_its_line(folder: Path) -> None:
    line = FAULTY.splitlines().index('        desk.decide("Up?", output=View)') + 1

    ended = checked(folder, "faulty:Forgets", *SHORT, "--json")

    of = rows(ended.stdout)
    assert {name for name, row in of.items() if not row["passed"]} == {"run"}
    assert of["run"]["places"] == [f"faulty.py:{line} Desk.decide (5 times)"]
    assert "A call without `await` does nothing" in of["run"]["detail"]
    assert of["files"]["detail"] == "not used"


@pytest.mark.timeout(120)
def test_denied_requests_are_counted_with_their_rule(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Above", *SHORT)

    assert ended.code == ExitCode.DONE
    shown = " ".join(ended.out.split())  # without line breaks, because the output is as wide as a pipe
    assert "10 decision lines, 0 orders, 0 fills, 5 denied requests (stop_loss 5)" in shown
    assert "Note: the agent had no fill on these bars" in shown


def test_standard_input_is_refused(folder: Path, command: Command) -> None:
    ended = command("agent", "check", "faulty:Idle", "--data", "BTCUSDT=-")

    assert ended.code == ExitCode.BAD_INPUT
    assert "the bars are read several times" in ended.err
