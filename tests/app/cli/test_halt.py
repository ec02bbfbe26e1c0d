"""Halts on the command line: what is stopped, what is not, and what a wrong word is told."""

import shutil
from pathlib import Path

import pytest

from agentic_trading.app.cli.exits import ExitCode
from tests.app.cli.conftest import Command


@pytest.fixture
def place(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a session's folder, which every command means."""
    folder = Path(shutil.copytree(session, tmp_path / "session"))
    monkeypatch.setenv("AGENTIC_STORE", str(folder))
    return folder


@pytest.mark.usefixtures("place")
def test_a_halt_holds_until_exactly_it_is_taken_back(command: Command) -> None:
    halted = command("halt", "--agent", "cmt-analyst", "--why", "drifts")
    wrong = command("resume")
    shown = command("budget", "show")
    resumed = command("resume", "--agent", "cmt-analyst")

    assert "HALTED                agent cmt-analyst by " in halted.out
    assert (wrong.code, wrong.err) == (
        ExitCode.BAD_INPUT,
        "Error: tenant default: is not halted; allowed: agent cmt-analyst\n",
    )
    assert "HALTED: agent cmt-analyst, by " in shown.out
    assert ": drifts" in shown.out
    assert "HALTED" not in resumed.out


@pytest.mark.usefixtures("place")
def test_a_second_halt_of_the_same_is_told_of_the_first(command: Command) -> None:
    command("halt", "--why", "first")

    told = command("halt")

    assert told.code == ExitCode.BAD_INPUT
    assert "tenant default: is halted already, by " in told.err
    assert "first; allowed: to resume it" in told.err


@pytest.mark.usefixtures("place")
def test_what_is_halted_for_all_is_shown_to_each(command: Command) -> None:
    halted = command("halt", "--tenant", "*", "--model", "anthropic/*")

    assert "Controls of all tenants" in halted.out
    assert "HALTED: every tenant's model anthropic/*" in command("budget", "show").out


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--agent", "a", "--model", "b"),
            "--agent is given together with --model; allowed: one of them; halts of several scopes hold together",
        ),
        (("--workflow", "trading"), "allowed: analysis, planning, execution, general, *"),
        (("--agent", "cmt-*"), "--agent is 'cmt-*'; allowed: a whole name, or '*' for every agent"),
        (("--model", "claude-*"), "allowed: a whole name, or '*' for every model, or PROVIDER/*"),
        (("--agent", ""), "it has no id; allowed: an id, or '*' for every agent"),
        (("--tenant", ""), "it is for no tenant; allowed: "),
        (("--ledger", "localhost"), "allowed: redis://HOST:PORT"),
    ],
)
def test_a_wrong_halt_stops_nothing_and_says_what_is_allowed(
    words: tuple[str, ...], message: str, command: Command
) -> None:
    told = command("halt", *words)

    assert (told.code, told.out) == (ExitCode.BAD_INPUT, "")
    assert message in told.err


def test_a_run_in_a_folder_that_is_halted_asks_nobody_and_names_the_history(
    command: Command, place: Path
) -> None:
    command("halt", "--why", "closed")

    told = command("run", "--data", "btcusdt-5m", "--bars", 30, "--out", place)
    history = command("budget", "history")

    assert told.code == ExitCode.DONE
    assert "no decision, analysis  halted" in told.out
    assert f"agentic-trading budget history --store {place}" in told.out
    assert "denied" in history.out
    assert "tenant default is halted by " in history.out
