"""Messages of the program, and how it ends: its exit codes, its last message, and signals."""

import asyncio
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from socket import socketpair
from threading import Timer, current_thread, get_ident, main_thread
from types import FrameType
from typing import Final, NoReturn, TextIO

import typer

from agentic_trading.errors import TradingError

INTERRUPTED: Final = "Interrupted."

ENDS_WITHIN_S: Final = 5.0
"""How long an interrupted command, and the threads of one that has ended, may keep the process."""

_RAISED_AGAIN_AFTER_S: Final = 0.01


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


def run_to_exit(program: Callable[[], object], *, debug: bool, is_process: bool = False) -> None:
    """Run a program that may leave by itself; an error becomes one message and its code, with `debug` a traceback too.

    If the program `is_process`, its threads may keep the process for `ENDS_WITHIN_S` after its end.
    """
    try:
        _run(program, debug=debug)
    except SystemExit as e:
        if is_process:
            end_within(ENDS_WITHIN_S, e.code if isinstance(e.code, int) else int(e.code is not None))
        raise


def _run(program: Callable[[], object], *, debug: bool) -> None:
    try:
        program()
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(INTERRUPTED, err=True)
        sys.exit(ExitCode.INTERRUPTED)
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
    from agentic_trading.cli.output import printable_lines

    typer.echo(printable_lines(text), err=err)


def stop(code: ExitCode, message: str) -> NoReturn:
    """End the command with a message on standard error."""
    say(f"Error: {message}", err=True)
    raise typer.Exit(code)


def end_within(seconds: float, code: int) -> Timer:
    """End the process with `code` after `seconds`, if it has not ended by then.

    Python waits at its end for every thread. One that waits for a dead disk or server would keep the process for ever.
    """

    def end() -> None:
        os.write(2, f"Ended after {seconds:g} s without waiting for a disk or a server.\n".encode())
        os._exit(code)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def ended_as_by_ctrl_c() -> Generator[None]:
    """Let SIGTERM act as Ctrl-C does, for as long as the block lasts; a second one ends the process at once.

    After the first one the process ends within `ENDS_WITHIN_S`, whatever waits. A signal that is ignored stays ignored. On
    another thread than the main one nothing is changed.
    """
    limit: Timer | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal limit
        if limit is not None:
            os._exit(ExitCode.INTERRUPTED)
        limit = end_within(ENDS_WITHIN_S, ExitCode.INTERRUPTED)
        by_ctrl_c = signal.getsignal(signal.SIGINT)  # of Python, or of the loop that runs
        if not callable(by_ctrl_c):
            raise KeyboardInterrupt
        by_ctrl_c(number, frame)

    actions = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: interrupt}
    before = {number: signal.getsignal(number) for number in actions if current_thread() is main_thread()}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, actions[number])
        with _raised_again_if_dropped() if before else nullcontext():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if limit is not None:
            limit.cancel()


@contextmanager
def _raised_again_if_dropped() -> Generator[None]:
    """Raise an interrupt again that Python drops, as it does in a `__del__` and in callbacks of the import system."""
    report = sys.unraisablehook

    def raise_again(dropped: "sys.UnraisableHookArgs") -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            report(dropped)
            return
        timer = Timer(_RAISED_AGAIN_AFTER_S, signal.pthread_kill, (get_ident(), signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = report


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
