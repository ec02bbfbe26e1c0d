"""What the program says in a line, and how it ends: its exit codes, its last message, and signals."""

import select
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import IntEnum
from socket import socketpair
from typing import NoReturn, TextIO

import typer

from agentic_trading.errors import TradingError


class ExitCode(IntEnum):
    """The program's exit codes; `meaning` is the sentence that `--help` and the documents give for each."""

    DONE = 0
    FOUND_WRONG = 1
    BAD_INPUT = 2
    LOG_UNUSABLE = 3
    INTERNAL = 4
    PAUSED = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What the code means."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FOUND_WRONG: "checked and found wrong: divergence, broken log, unknown id, schema drift, rejected answer, "
    "question without an answer, halt that no running worker acknowledged",
    ExitCode.BAD_INPUT: "bad usage or bad input: a flag, a name, a file, a setting",
    ExitCode.LOG_UNUSABLE: "the log, output folder, ledger or bus cannot be used: not writable, locked, broken, away",
    ExitCode.INTERNAL: "an internal error; --debug shows where",
    ExitCode.PAUSED: "paused: a question waits for an answer of yours",
    ExitCode.INTERRUPTED: "interrupted; all that was answered is on disk",
}


def exit_code_of(error: TradingError) -> ExitCode:
    """Return the code for an error that a command ends with."""
    from agentic_trading.bus.errors import BusSettingsError, BusUnavailableError, PartitionsElsewhereError
    from agentic_trading.governance.errors import (
        ControlsUnavailableError,
        ControlsUnreadableError,
        LedgerSettingsError,
        LedgerUnavailableError,
    )
    from agentic_trading.llm.errors import StoreError

    places = (
        BusSettingsError,
        BusUnavailableError,
        PartitionsElsewhereError,
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
    except Exception as e:  # noqa: BLE001 - the edge of the program: nothing above it could report it
        hint = "" if debug else "; agentic-trading --debug … shows where"
        _leave(ExitCode.INTERNAL, f"internal error: {type(e).__name__}: {e}{hint}", debug=debug)


def _leave(code: ExitCode, message: str, *, debug: bool) -> NoReturn:
    if debug:
        say(traceback.format_exc().rstrip(), err=True)
    say(f"Error: {message}", err=True)
    sys.exit(code)


def say(text: str, *, err: bool = False) -> None:
    """Print a text, on standard error with `err`; it may quote anything: nothing in it steers the terminal."""
    from agentic_trading.app.cli.output import printable_lines

    typer.echo(printable_lines(text), err=err)


def stop(code: ExitCode, message: str) -> NoReturn:
    """End the command with a message on standard error."""
    say(f"Error: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def ended_as_by_ctrl_c() -> Generator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does, for as long as the block lasts; for the main thread."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_input(stream: TextIO) -> None:
    """Wait until `stream` has something to read or has ended; whatever a signal raises, it raises here, at once.

    A reading is not broken off by a signal that comes just before it begins, nor by one that another thread takes:
    it would be heard only after the next line. This wait is ended by the signal's own mark, which every signal sets.
    For the main thread.
    """
    marked, mark = socketpair()
    mark.settimeout(0)
    awaited = [stream.fileno(), marked.fileno()]
    with marked, mark:
        before = signal.set_wakeup_fd(mark.fileno(), warn_on_full_buffer=False)
        try:
            while stream.fileno() not in select.select(awaited, [], [])[0]:
                marked.recv(1)
        finally:
            signal.set_wakeup_fd(before)


def confirm(what: str, *, yes: bool, otherwise: str) -> None:
    """Go on only if the user confirms `what`; `otherwise` is what is said after a no.

    With `yes` no question is put; without a terminal, and after a no, the command ends.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        stop(ExitCode.BAD_INPUT, f"this is no terminal, so {what} cannot be confirmed; allowed is --yes")
    if not _is_confirmed():
        stop(ExitCode.INTERRUPTED, otherwise)


def _is_confirmed() -> bool:
    """Ask; Ctrl-C, SIGTERM and the end of the input are a no."""
    with ended_as_by_ctrl_c():
        try:
            return _read_confirmation()
        except (KeyboardInterrupt, EOFError):
            typer.echo(err=True)
            return False


def _read_confirmation() -> bool:
    """Ask until the answer is a yes or a no, as which nothing at all counts; `EOFError` where the input ends."""
    while True:
        typer.echo("Go on? [y/N]: ", nl=False, err=True)
        wait_for_input(sys.stdin)
        if not (line := sys.stdin.readline()):
            raise EOFError
        said = line.strip()
        if said.lower() in {"y", "yes"}:
            return True
        if said.lower() in {"", "n", "no"}:
            return False
        say(f"{said!r} is neither yes nor no; allowed are y and n", err=True)
