"""What SIGINT and SIGTERM do to a session: an orderly end."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import current_thread, main_thread

import structlog

from agentic_trading.desk.session import TradingSession

log = structlog.get_logger()


@dataclass(slots=True)
class StopSignals:
    """Stops the session it holds when the process is told to end, or the task while there is none; `came` says that it was."""

    task: asyncio.Task[object] | None
    came: bool = False
    _session: TradingSession | None = None

    def hold(self, session: TradingSession) -> None:
        """Stop `session` when a signal comes from now on."""
        self._session = session

    def stop(self) -> None:
        """Take a signal."""
        self.came = True
        if self._session is not None:
            log.warning("stopping after the calls under way; the same signal again ends at once")
            self._session.stop()
        elif self.task is not None:
            self.task.cancel()


@contextmanager
def stopped_by_signals() -> Generator[StopSignals]:
    """Turn the first SIGINT or SIGTERM into a stop; a second one of the same kind ends the program at once.

    Before a session is held the first one cancels the present task, from within the loop: a handler of Python's own
    would cancel it between any two steps of whatever the loop is doing. Signals reach the main thread only: on any
    other one nothing is changed, and nothing comes.
    """
    signals = StopSignals(asyncio.current_task())
    loop = asyncio.get_running_loop()
    heard = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()

    def first(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        signals.stop()

    for number in heard:
        loop.add_signal_handler(number, first, number)
    try:
        yield signals
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
