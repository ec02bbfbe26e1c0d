"""`spend` sums what calls cost by what is asked for."""

import asyncio
import json
from pathlib import Path

import pytest

from agentic_trading.app.cli.exits import ExitCode
from agentic_trading.llm import JsonFileInteractionStore
from tests.app.cli.conftest import Command
from tests.build import interaction

CALLS = (
    interaction(
        agent_id="analyst-1", model="m-1", cost_nusd=2_500_000_000, input_tokens=1_000, output_tokens=10
    ),
    interaction(
        agent_id="analyst-1", model="m-2", cost_nusd=500_000_000, input_tokens=2_000, output_tokens=20
    ),
    interaction(agent_id="trader-1", model="m-1", cost_nusd=7, input_tokens=3_000, success=False),
)


@pytest.fixture
def log() -> Path:
    """Return a log with three calls."""

    async def written() -> Path:
        store = JsonFileInteractionStore(Path("session/interactions.jsonl"))
        for call in CALLS:
            await store.store(call)
        await store.aclose()
        return store.path

    return asyncio.run(written())


def test_calls_are_summed_by_each_value_and_in_all(log: Path, command: Command) -> None:
    lines = [line.split() for line in command("spend", "--by", "agent", "--store", log).out.splitlines()]

    assert lines == [
        ["agent", "attempts", "failed", "tokens", "in", "tokens", "out", "USD"],
        ["analyst-1", "2", "0", "3,000", "30", "3.000000"],
        ["trader-1", "1", "1", "3,000", "20", "0.000000"],
        ["total", "3", "1", "6,000", "50", "3.000000"],
    ]


def test_money_stays_whole_as_json(log: Path, command: Command) -> None:
    report = json.loads(command("spend", "--by", "model, agent", "--store", log, "--json").out)

    assert report["by"] == ["model", "agent"]
    assert [(row["model"], row["agent"], row["cost_nusd"]) for row in report["rows"]] == [
        ("m-1", "analyst-1", 2_500_000_000),
        ("m-1", "trader-1", 7),
        ("m-2", "analyst-1", 500_000_000),
    ]
    assert report["total"]["cost_nusd"] == 3_000_000_007


def test_without_keys_only_the_total_is_left(log: Path, command: Command) -> None:
    report = json.loads(command("spend", "--by", "", "--store", log, "--json").out)
    drawn = command("spend", "--by", "", "--store", log).out.splitlines()

    assert (report["rows"], report["total"]["attempts"]) == ([], 3)
    assert len(drawn) == 2


def test_a_key_named_twice_counts_once(log: Path, command: Command) -> None:
    assert json.loads(command("spend", "--by", "day,day", "--store", log, "--json").out)["by"] == ["day"]


def test_an_unknown_key_tells_those_there_are(log: Path, command: Command) -> None:
    ended = command("spend", "--by", "agent,colour", "--store", log)

    assert ended.code == ExitCode.BAD_INPUT
    assert "agent, model, workflow, day, tenant, provider" in ended.err
