"""Before a model is asked its user is told what to expect, and asked; nobody is asked where nobody can answer."""

import os
import pty
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, get_ident, get_native_id
from typing import Any

import pytest
import typer

from agentic_trading.cli.exits import ExitCode, ended_as_by_ctrl_c
from agentic_trading.desk.cli.run_output import confirm_run, preflight_text
from agentic_trading.desk.session.preflight import Preflight
from tests.cli.conftest import Command

IN_A_ROW = 100
"""How many times a thread must be found asleep to be one that waits to be written to, not for its turn."""


def expected(**changes: Any) -> Preflight:
    fields: dict[str, Any] = {
        "provider": "anthropic",
        "models": ("claude-sonnet-5-5", "claude-haiku-5-5"),
        "calls": 12,
        "max_calls": None,
        "bound_nusd": 1_270_000_000,
        "budget_nusd": 20_000_000_000,
        "seconds": 240.0,
        "seconds_a_call": 20.0,
    }
    return Preflight(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "claude-haiku-5-5): about 12 calls, more if answers are not accepted, at most 1.270000 USD if all are ac",
        ),
        (
            {},
            "accepted, never more than --budget-usd 20.00, about 4 minutes at 20 s per call.",
        ),
        (
            {"max_calls": 12, "bound_nusd": 0, "seconds": 20.0},
            "about 12 calls, never more than 12, at most 0 USD, less than a minute at 20 s per call.",
        ),
        (
            {"calls": None, "bound_nusd": None, "seconds": None, "seconds_a_call": None},
            "an unknown number of calls, because the data is a stream, never more than --budget-usd 20.00, until the stream",
        ),
        ({"calls": 0, "bound_nusd": 0, "seconds": 0.0}, "about 0 calls, more if"),
        ({"calls": 0, "bound_nusd": 0, "seconds": 0.0}, "--budget-usd 20.00, no time for calls."),
        (
            {"calls": None, "bound_nusd": 0, "seconds": None, "seconds_a_call": None},
            "an unknown number of calls, because the data is a stream, at most 0 USD, until the stream ends.",
        ),
        ({"goes_on": True}, "never more than the rest of --budget-usd 20.00, about"),
        (
            {"first_nusd": 160_000_000, "budget_nusd": 100_000},
            "never more than --budget-usd 0.000100, which is too small for the first call: it needs 0.160000 USD, ",
        ),
    ],
)
def test_preflight_text_describes_the_run(changes: dict[str, Any], text: str) -> None:
    assert text in preflight_text(expected(**changes))


def test_confirm_run_with_yes_does_not_ask(capsys: pytest.CaptureFixture[str]) -> None:
    confirm_run(expected(), yes=True)

    said = capsys.readouterr()
    assert "about 12 calls" in said.err
    assert said.out == ""


def test_confirm_run_needs_no_terminal_when_free(capsys: pytest.CaptureFixture[str]) -> None:
    confirm_run(expected(bound_nusd=0), yes=False)

    assert "at most 0 USD" in capsys.readouterr().err


def test_confirm_run_without_terminal_requires_yes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        confirm_run(expected(), yes=False)

    assert left.value.exit_code == ExitCode.BAD_INPUT
    assert "Use --yes to confirm." in capsys.readouterr().err


@contextmanager
def at_a_terminal(answer: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Put a terminal on standard input and standard error, at which somebody has typed `answer`; its screen is given."""
    screen, terminal = pty.openpty()
    os.write(screen, answer.encode())
    with (
        os.fdopen(terminal, "r", encoding="utf-8") as keys,
        Path(os.ttyname(terminal)).open("w", encoding="utf-8") as shown,
    ):
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "stderr", shown)
        yield screen
    os.close(screen)


def test_yes_at_terminal_continues_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with at_a_terminal("y\n", monkeypatch):
        confirm_run(expected(), yes=False)


@pytest.mark.parametrize("typed", ["n\n", "\n", "\x04"], ids=["no", "nothing", "the end of the input"])
def test_no_at_terminal_ends_before_sending(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with at_a_terminal(typed, monkeypatch), pytest.raises(typer.Exit) as left:
        confirm_run(expected(), yes=False)

    assert left.value.exit_code == ExitCode.INTERRUPTED


def test_unclear_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with at_a_terminal("perhaps\nYES\n", monkeypatch) as screen:
        confirm_run(expected(), yes=False)
        sys.stderr.flush()
        said = b""
        while said.count(b"Continue? [y/N]: ") < 2:  # a terminal hands out what it has so far
            said += os.read(screen, 4096)

    assert b"Please answer y or n." in said


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_signal_outside_read_interrupts_prompt(by: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes just before the reading begins, or on another thread, as here, does not break into it."""
    reader = Path(f"/proc/self/task/{get_native_id()}/stat")

    def interrupt(screen: int) -> None:
        said = b""
        while b"Continue?" not in said:
            said += os.read(screen, 256)
        asleep = 0
        while asleep < IN_A_ROW:
            asleep = asleep + 1 if " S " in reader.read_text(encoding="ascii") else 0
        signal.pthread_kill(get_ident(), by)

    with at_a_terminal("", monkeypatch) as screen, ended_as_by_ctrl_c():
        Thread(target=interrupt, args=[screen]).start()
        with pytest.raises(typer.Exit) as left:
            confirm_run(expected(), yes=False)

    assert left.value.exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("words", "told_of"),
    [
        (["--provider", "anthropic"], "--record"),
        (
            ["--provider", "anthropic", "--record"],
            "ANTHROPIC_API_KEY: providers.anthropic.secret is without a usable key",
        ),
        (["--provider", "anthropic", "--record", "--model", "claude-none"], "not in the table of models"),
        (["--provider", "openai", "--record"], "AGENTIC_MODELS_FILE"),
        (["--provider", "local"], "models fetch smollm2-135m"),
        (["--provider", "local", "--base-url", "http://host"], "--base-url"),
        (["--max-calls", "0"], "1 or more"),
    ],
)
def test_unusable_model_leaves_no_folder(
    words: list[str], told_of: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AGENTIC_SECRETS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTIC_MODELS_DIR", "no-weights-here")

    ended = command("run", "--data", "btcusdt-5m", *words, "--yes", "--out", "out")

    assert ended.code == ExitCode.BAD_INPUT
    assert told_of in ended.err
    assert not Path("out").exists()


def test_model_run_without_yes_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-a-test")

    ended = command(
        "run", "--data", "btcusdt-5m", "--bars", 450, "--provider", "anthropic", "--record", "--out", "out"
    )

    assert ended.code == ExitCode.BAD_INPUT
    assert "about " in ended.err
    assert "sk-of-a-test" not in ended.err
    assert not Path("out").exists()
