"""Messages, exit codes and signals of the program."""

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
"""Seconds after which an interrupted command, or a finished one with running threads, is ended."""

_RAISED_AGAIN_AFTER_S: Final = 0.01


class ExitCode(IntEnum):
    """The exit codes of the program. `meaning` is the text in `--help` and in the documentation."""

    DONE = 0
    FOUND_WRONG = 1
    BAD_INPUT = 2
    LOG_UNUSABLE = 3
    INTERNAL = 4
    PAUSED = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """The meaning of the code."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "success",
    ExitCode.FOUND_WRONG: "a check failed: divergence, broken log, unknown id, schema drift, rejected answer, "
    "unanswered question, or halt that no running worker acknowledged",
    ExitCode.BAD_INPUT: "invalid usage or input: an option, name, file or setting",
    ExitCode.LOG_UNUSABLE: "the log, output folder, ledger or bus cannot be used: not writable, locked, broken or unreachable",
    ExitCode.INTERNAL: "internal error (--debug prints a traceback)",
    ExitCode.PAUSED: "paused: input required",
    ExitCode.INTERRUPTED: "interrupted (completed answers are on disk)",
}


def exit_code_of(error: TradingError) -> ExitCode:
    """Return the exit code for an error that ends a command."""
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
    """Run a program. An error becomes one message and an exit code.

    With `debug`, a traceback is printed too. With `is_process`, threads may keep the process alive for at
    most `ENDS_WITHIN_S` after the program has ended.
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
    except Exception as e:  # noqa: BLE001 - otherwise Python would print a traceback
        hint = "" if debug else ". For a traceback, run: agentic-trading --debug …"
        _leave(ExitCode.INTERNAL, f"internal error: {type(e).__name__}: {e}{hint}", debug=debug)


def _leave(code: ExitCode, message: str, *, debug: bool) -> NoReturn:
    if debug:
        say(traceback.format_exc().rstrip(), err=True)
    say(f"Error: {message}", err=True)
    sys.exit(code)


def say(text: str, *, err: bool = False) -> None:
    """Print text with control characters escaped, on standard error if `err` is set."""
    from agentic_trading.operate.lines import printable_lines

    typer.echo(printable_lines(text), err=err)


def stop(code: ExitCode, message: str) -> NoReturn:
    """Print an error on standard error and end the command."""
    say(f"Error: {message}", err=True)
    raise typer.Exit(code)


def end_within(seconds: float, code: int) -> Timer:
    """End the process with `code` after `seconds`, unless the returned timer is canceled."""
    # Python waits for every thread at exit. A thread that waits for a dead disk would keep the process forever.

    def end() -> None:
        os.write(2, f"Exited after {seconds:g} s without waiting for a disk or a server.\n".encode())
        os._exit(code)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def ended_as_by_ctrl_c() -> Generator[None]:
    """Handle SIGTERM like Ctrl-C within the block.

    The process ends within `ENDS_WITHIN_S` of the first SIGTERM, and at once on a second one. Ignored signals
    stay ignored. On any thread but the main one, the block has no effect.
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
    """Raise an interrupt again if Python dropped it, as in a `__del__` or a callback of the import system."""
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
    """Wait until `stream` has input or has ended. The exception of a signal is raised here at once.

    Call it from the main thread.
    """
    # A plain read would continue until the next line after a signal that arrives just before it, or on another
    # thread. Every signal writes to the wakeup descriptor, so that `select` returns.
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
    """Ask the user to confirm, and end the command if the answer is no or there is no terminal.

    Args:
        what: The subject of the question, such as `the replay`.
        yes: Skip the question.
        otherwise: The message after a no.

    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        stop(ExitCode.BAD_INPUT, f"{what} must be confirmed, but there is no terminal. Use --yes to confirm.")
    if not _is_confirmed():
        stop(ExitCode.INTERRUPTED, otherwise)


def _is_confirmed() -> bool:
    """Return whether the user confirms. Ctrl-C, SIGTERM and the end of the input count as no."""
    try:
        return _read_confirmation()
    except (KeyboardInterrupt, EOFError):
        typer.echo(err=True)
        return False


def _read_confirmation() -> bool:
    """Ask until the answer is yes or no. An empty line is a no. Raises `EOFError` if the input ends."""
    while True:
        typer.echo("Continue? [y/N]: ", nl=False, err=True)
        wait_for_input(sys.stdin)
        if not (line := sys.stdin.readline()):
            raise EOFError
        said = line.strip()
        if said.lower() in {"y", "yes"}:
            return True
        if said.lower() in {"", "n", "no"}:
            return False
        say("Please answer y or n.", err=True)
