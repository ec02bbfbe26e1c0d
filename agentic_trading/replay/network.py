"""A replay that cannot reach the network, whatever its code tries."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from agentic_trading.errors import TradingError

REACHING_OUT = frozenset({
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg",
    "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr",
})  # fmt: skip
"""The interpreter's own audit events (PEP 578) of everything that leaves the process."""


class NetworkBlockedError(TradingError, OSError):
    """Something tried to reach the network during a replay; `event` says how."""

    def __init__(self, event: str) -> None:
        self.event = event
        super().__init__(f"{event} during a replay; a replay answers from its log and reaches nothing else")


class _Guard:
    """Audit hooks cannot be taken back, so one is set for good and looks at how many replays are under way."""

    def __init__(self) -> None:
        self.replays = 0
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            sys.addaudithook(self._look)

    def _look(self, event: str, _args: tuple[Any, ...]) -> None:
        if self.replays and event in REACHING_OUT:
            raise NetworkBlockedError(event)


_GUARD = _Guard()


@contextmanager
def no_network() -> Generator[None]:
    """Let every attempt of this process to reach the network raise `NetworkBlockedError`, until the block ends."""
    _GUARD.set()
    _GUARD.replays += 1
    try:
        yield
    finally:
        _GUARD.replays -= 1
