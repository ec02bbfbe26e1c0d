"""The entry point of `agentic-trading`. It imports little, so that a signal ends it from the start."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED: Final = 130  # a copy, because `ExitCode` is not imported yet when the handler needs it

_COLLECTED_AFTER: Final = (20_000, 20, 50)
"""The thresholds of the garbage collector. With Python's own, it takes 15 % of the CPU time of `serve`."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and exit with an `ExitCode`. An error is printed as one message.

    Without `args`, this is the whole process, which then ends even if a thread waits for a dead disk.
    """
    words = sys.argv[1:] if args is None else args
    if args is None:
        gc.set_threshold(*_COLLECTED_AFTER)
    with _ended_at_once():
        from agentic_trading.cli.commands import command_tree
        from agentic_trading.cli.exits import ended_as_by_ctrl_c, run_to_exit

        with ended_as_by_ctrl_c():  # entered inside the other block, so that a handler is always installed
            run_to_exit(
                lambda: command_tree()(words, prog_name="agentic-trading"),
                debug="--debug" in words,
                is_process=args is None,
            )


@contextmanager
def _ended_at_once() -> Generator[None]:
    """End the process on SIGINT and SIGTERM until other handlers are set. Ignored signals stay ignored."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, f"Interrupted by {signal.Signals(number).name} before the command started.\n".encode())
        os._exit(_INTERRUPTED)  # not an exception, because it would be lost if an import is running

    before = {}
    if current_thread() is main_thread():
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
