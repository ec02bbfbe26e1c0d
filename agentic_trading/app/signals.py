"""What SIGINT and SIGTERM do to a session: an orderly end."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import current_thread, main_thread

from agentic_trading.desk.session import TradingSession


@dataclass(slots=True)
class StopSignals:
    """Stops the session it holds when the process is told to end; `came` says that it was."""

    came: bool = False
    _session: TradingSession | None = None

    def hold(self, session: TradingSession) -> None:
        """Stop `session` when a signal comes, or at once if one has come."""
        self._session = session
        if self.came:
            session.stop()

    def stop(self) -> None:
        """Take a signal."""
        self.came = True
        if self._session is not None:
            self._session.stop()


@contextmanager
def stopped_by_signals() -> Generator[StopSignals]:
    """Turn the first SIGINT or SIGTERM into a stop; a second one of the same kind ends the program at once.

    Signals reach the main thread only: on any other one nothing is changed, and nothing comes.
    """
    signals = StopSignals()
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
