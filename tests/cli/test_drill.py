"""The drill of a lost ledger, command by command as its page has it, on a real server that is wiped."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from agentic_trading.cli.exits import ExitCode
from tests import redis_server
from tests.cli.conftest import Command, Ended

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operate/ledger-rebuild.md").read_text(encoding="utf-8")
FIRST, *DRILL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for block in DRILL for line in block.splitlines()]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[redis_server.RealServer]:
    """Give the server of the drill and the prices of a rehearsal, as the first block of the page has them."""
    prices = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert prices
    (tmp_path / "rehearsal.json").write_text(prices[1], encoding="utf-8")
    (tmp_path / "drill").mkdir()
    with redis_server.own_server("valkey") as own:
        monkeypatch.setenv("AGENTIC_LEDGER_URL", own.url)
        monkeypatch.setenv("AGENTIC_PRICES_FILE", "rehearsal.json")
        yield own


def done(line: str, command: Command, server: redis_server.RealServer) -> Ended:
    """Do what a line of the page says; what it prints goes where it says."""
    words = shlex.split(line.partition(" || ")[0], comments=True)
    if words[0] == "redis-cli":
        assert words[1:] == ["-u", "$AGENTIC_LEDGER_URL", "FLUSHALL"]
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
        return Ended(0, "", "")
    assert words[0] == "agentic-trading"
    words, file = (words[1:-2], words[-1]) if words[-2] == ">" else (words[1:], "")
    ended = command(*words)
    if file:
        Path(file).write_text(ended.out, encoding="utf-8")
    return ended


def written(name: str) -> Any:
    return json.loads(Path(f"drill/{name}.json").read_text(encoding="utf-8"))


def test_rebuild_restores_a_lost_ledger(command: Command, server: redis_server.RealServer) -> None:
    ended = [(line, done(line, command, server)) for line in LINES]

    wanted = [int(found[1]) if (found := re.search(r"# exit code (\d)", line)) else 0 for line in LINES]
    assert [(line, each.code) for line, each in ended] == list(zip(LINES, wanted, strict=True))
    assert wanted.count(ExitCode.LOG_UNUSABLE) == 1
    [counter] = [each for each in written("before")["counters"] if each["scope"] == "tenant"]
    spent = counter["spent"][0]
    assert spent > 0
    assert (written("rebuilt")["knew_nusd"], written("rebuilt")["charged_nusd"]) == (0, spent)
    assert (written("again")["knew_nusd"], written("again")["charged_nusd"]) == (spent, spent)
    assert written("rebuilt")["kept"] == written("again")["kept"] == []
    limits = [written(name)["controls"]["limits"] for name in ("before", "after")]
    assert limits[0] == limits[1] != []
    assert "services start redis" in FIRST
