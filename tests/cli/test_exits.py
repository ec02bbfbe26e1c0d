"""Every way in which a command can end has its code, and none of them is a traceback."""

from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode, exit_code_of, run_to_exit
from agentic_trading.errors import TradingError
from agentic_trading.llm.errors import StoreError, StoreLockedError
from agentic_trading.platform.errors import OptionError
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreError(Path("log"), "no space"), ExitCode.LOG_UNUSABLE),
        (StoreLockedError(Path("log"), "locked"), ExitCode.LOG_UNUSABLE),
        (OptionError("--bars", 0, "1 and more"), ExitCode.BAD_INPUT),
        (TradingError("anything else"), ExitCode.BAD_INPUT),
    ],
)
def test_error_maps_to_exit_code(error: TradingError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_error_is_a_single_message(command: Command) -> None:
    ended = command("data", "describe", "nothing-here")

    assert ended.code == ExitCode.BAD_INPUT
    assert ended.err.count("\n") == 1
    assert "btcusdt-5m" in ended.err


def test_wrong_setting_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "loud")

    ended = command("trace", "list")

    assert ended.code == ExitCode.BAD_INPUT
    assert "AGENTIC_LOG_LEVEL" in ended.err


def fail() -> None:
    """Be a program with a mistake in it."""
    raise ZeroDivisionError("division by zero")


def test_internal_error_is_line_with_debug_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        run_to_exit(fail, debug=False)

    assert left.value.code == ExitCode.INTERNAL
    told = "Error: internal error: ZeroDivisionError: division by zero. For a traceback, run: agentic-trading --debug …\n"
    assert capsys.readouterr().err == told


def test_debug_shows_internal_error_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run_to_exit(fail, debug=True)

    assert left.value.code == ExitCode.INTERNAL
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "in fail" in told


def test_debug_shows_expected_error_traceback(command: Command) -> None:
    ended = command("--debug", "data", "describe", "nothing-here")

    assert ended.code == ExitCode.BAD_INPUT
    assert "Traceback" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--data", "btcusdt-5m", "--workers", "many"], "'--workers': it should be a valid integer\n"),
        (["trace", "list", "--limit", "0"], "'--limit': it should be greater than or equal to 1\n"),
        (
            ["run", "--data", "btcusdt-5m", "--mode", "live"],
            "'--mode': 'live' is not one of 'backtest', 'paper'",
        ),
    ],
)
def test_wrong_option_value_error_is_plain(words: list[str], told: str, command: Command) -> None:
    ended = command(*words)

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err
