"""`spend` sums what calls cost by what is asked for."""

import asyncio
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentic_trading.audit.spend import spend_report
from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.look_tables import as_table, ask_logs, spend_keys
from agentic_trading.cli.output import print_table
from agentic_trading.llm import JsonFileInteractionStore
from tests.audit.reading import call, write
from tests.build import interaction
from tests.cli.conftest import Command

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
        for each in CALLS:
            await store.store(each)
        await store.aclose()
        return store.path

    return asyncio.run(written())


def test_calls_are_summed_by_key_and_total(log: Path, command: Command) -> None:
    lines = [line.split() for line in command("spend", "--by", "agent", "--store", log).out.splitlines()]

    assert lines == [
        ["agent", "attempts", "failed", "tokens", "in", "tokens", "out", "USD"],
        ["analyst-1", "2", "0", "3,000", "30", "3.000000"],
        ["trader-1", "1", "1", "3,000", "20", "0.000000"],
        ["total", "3", "1", "6,000", "50", "3.000000"],
    ]


def test_money_is_exact_in_json(log: Path, command: Command) -> None:
    report = json.loads(command("spend", "--by", "model, agent", "--store", log, "--json").out)

    assert report["by"] == ["model", "agent"]
    assert [(row["model"], row["agent"], row["cost_nusd"]) for row in report["rows"]] == [
        ("m-1", "analyst-1", 2_500_000_000),
        ("m-1", "trader-1", 7),
        ("m-2", "analyst-1", 500_000_000),
    ]
    assert report["total"]["cost_nusd"] == 3_000_000_007


def test_empty_keys_leave_only_the_total(log: Path, command: Command) -> None:
    report = json.loads(command("spend", "--by", "", "--store", log, "--json").out)
    drawn = command("spend", "--by", "", "--store", log).out.splitlines()

    assert (report["rows"], report["total"]["attempts"]) == ([], 3)
    assert len(drawn) == 2


def test_duplicate_key_counts_once(log: Path, command: Command) -> None:
    assert json.loads(command("spend", "--by", "day,day", "--store", log, "--json").out)["by"] == ["day"]


def test_unknown_key_error_lists_allowed_keys(log: Path, command: Command) -> None:
    ended = command("spend", "--by", "agent,colour", "--store", log)

    assert ended.code == ExitCode.BAD_INPUT
    assert "agent, model, workflow, day, tenant, provider" in ended.err


def summed(width: int, by: str, log: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of a sum as they are drawn in a window of `width` columns."""
    keys = spend_keys(by)
    capsys.readouterr()
    report = ask_logs([log], lambda records: spend_report(records, *keys))
    print_table(as_table(report), on=Console(width=width))
    return capsys.readouterr().out.splitlines()


def test_narrow_window_shows_rows_as_lists(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = summed(80, "agent,model,workflow,tenant,day", log, capsys)

    assert [" ".join(line.split()) for line in lines[:10]] == [
        "analyst-1",
        "model m-1",
        "workflow general",
        "tenant default",
        "day 2026-01-02",
        "attempts 1",
        "failed 0",
        "tokens in 1,000",
        "tokens out 10",
        "USD 2.500000",
    ]
    assert lines.count("total") == 1
    assert max(map(len, lines)) <= 80


def test_wide_window_shows_keys_in_columns(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = summed(120, "agent,model,workflow,tenant,day", log, capsys)

    assert lines[0].split()[:5] == ["agent", "model", "workflow", "tenant", "day"]
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("words", "spent"),
    [
        (("--agent", "analyst-1"), {"m-1": 2_500_000_000, "m-2": 500_000_000}),
        (("--agent", "analyst-1", "--agent", "trader-1", "--model", "m-1"), {"m-1": 2_500_000_007}),
        (("--model", "m-1,m-2"), {"m-1": 2_500_000_007, "m-2": 500_000_000}),
        (("--workflow", "general", "--provider", "*"), {"m-1": 2_500_000_007, "m-2": 500_000_000}),
        (("--subject", "*"), {}),
        (("--failure", "*"), {}),
        (("--since", "2026-01-02", "--until", "2026-01-03"), {"m-1": 2_500_000_007, "m-2": 500_000_000}),
        (("--since", "2026-01-03"), {}),
        (("--trace", CALLS[1].trace_id[:13]), {"m-2": 500_000_000}),
    ],
    ids=[
        "agent",
        "two",
        "models",
        "provider",
        "subject",
        "failure",
        "day",
        "since",
        "trace",
    ],  # ids are drawn
)
def test_filters_select_attempts(
    words: tuple[str, ...], spent: dict[str, int], log: Path, command: Command
) -> None:
    report = json.loads(command("spend", "--by", "model", "--store", log, "--json", *words).out)

    assert {row["model"]: row["cost_nusd"] for row in report["rows"]} == spent


def test_several_logs_are_added(log: Path, command: Command) -> None:
    other = write(Path("other/interactions.jsonl"), call(model="m-2", cost_nusd=500_000_000))

    named = command("spend", "--by", "model", "--store", log, "--store", other)
    folder = command("spend", "--by", "model", "--store", ".")

    assert named.out == folder.out
    assert [line.split() for line in named.out.splitlines()[1:]] == [
        ["m-1", "2", "1", "4,000", "30", "2.500000"],
        ["m-2", "2", "0", "2,100", "40", "1.000000"],
        ["total", "4", "1", "6,100", "70", "3.500000"],
    ]


def test_folder_without_logs_is_refused(command: Command) -> None:
    ended = command("spend", "--store", ".")

    assert ended.code == ExitCode.BAD_INPUT
    assert (
        "--store is ., where there is no log. Allowed: a log, a folder with interactions.jsonl, or"
        in ended.err
    )
