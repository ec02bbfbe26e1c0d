"""`agentic-trading`: the entry of the program. It imports so little that a signal ends it from the first moment."""

import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED: Final = 130
"""`ExitCode.INTERRUPTED`, which is not imported yet when it is needed."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command and leave with one of `ExitCode`; an error becomes one message, never a traceback.

    Without `args` this is the program itself: threads that wait for a dead disk do not keep it from ending.
    """
    words = sys.argv[1:] if args is None else args
    with _ended_at_once():
        from agentic_trading.cli.commands import command_tree
        from agentic_trading.cli.exits import ended_as_by_ctrl_c, run_to_exit

        with ended_as_by_ctrl_c():  # no moment in between is without a handler
            run_to_exit(
                lambda: command_tree()(words, prog_name="agentic-trading"),
                debug="--debug" in words,
                is_process=args is None,
            )


@contextmanager
def _ended_at_once() -> Generator[None]:
    """End the process on SIGINT and SIGTERM until something else handles them; a signal that is ignored stays ignored."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, f"Interrupted by {signal.Signals(number).name}; nothing was started.\n".encode())
        os._exit(_INTERRUPTED)  # an exception could be lost in an import that is under way

    before = {}
    if current_thread() is main_thread():
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
