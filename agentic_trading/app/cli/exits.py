"""What the program says to the shell when it ends."""

import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn

import typer

from agentic_trading.errors import TradingError


class ExitCode(IntEnum):
    """The program's exit codes; `meaning` is the sentence that `--help` and the documents give for each."""

    DONE = 0
    FOUND_WRONG = 1
    BAD_INPUT = 2
    LOG_UNUSABLE = 3
    INTERNAL = 4
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What the code tells."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FOUND_WRONG: "checked and found wrong: divergence, broken log, unknown id, schema drift, rejected answer",
    ExitCode.BAD_INPUT: "bad usage or bad input: a flag, a name, a file, a setting",
    ExitCode.LOG_UNUSABLE: "the log, output folder or ledger cannot be used: not writable, locked, broken, away",
    ExitCode.INTERNAL: "an internal error; --debug shows where",
    ExitCode.INTERRUPTED: "interrupted; all that was answered is on disk",
}


def exit_code_of(error: TradingError) -> ExitCode:
    """Return the code for an error that a command ends with."""
    from agentic_trading.governance.errors import (
        ControlsUnavailableError,
        ControlsUnreadableError,
        LedgerSettingsError,
        LedgerUnavailableError,
    )
    from agentic_trading.llm.errors import StoreError

    places = (
        StoreError,
        LedgerUnavailableError,
        LedgerSettingsError,
        ControlsUnavailableError,
        ControlsUnreadableError,
    )
    return ExitCode.LOG_UNUSABLE if isinstance(error, places) else ExitCode.BAD_INPUT


def run_to_exit(program: Callable[[], object], *, debug: bool) -> None:
    """Run a program that may leave by itself; an error becomes one message and its code, with `debug` a traceback too."""
    try:
        program()
    except TradingError as e:
        _leave(exit_code_of(e), str(e), debug=debug)
    except Exception as e:  # noqa: BLE001 - the edge of the program: nothing above it could tell the user
        hint = "" if debug else "; agentic-trading --debug … shows where"
        _leave(ExitCode.INTERNAL, f"internal error: {type(e).__name__}: {e}{hint}", debug=debug)


def _leave(code: ExitCode, message: str, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    typer.echo(f"Error: {message}", err=True)
    sys.exit(code)


def stop(code: ExitCode, message: str) -> NoReturn:
    """End the command with a message on standard error."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(code)
