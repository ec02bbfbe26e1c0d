"""The shipped program with a clock that another process moves, for `paper_month`.

Run: python -m benchmarks.paper_month_program FILE COMMAND... Only the clock that checks live bars is replaced. Everything else is the
program of `agentic-trading`.
"""

import asyncio
import mmap
import os
import struct
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from typing_extensions import override

from agentic_trading.cli.main import main
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.desk.session import trading
from agentic_trading.platform.config import RunMode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
POLL_S = 0.0005
_TIME = struct.Struct("<q")


class SharedTime:
    """A time in a file that two processes have mapped. One of them sets it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _TIME.size)
        self._memory = mmap.mmap(self._file, _TIME.size)

    def set(self, moment: datetime) -> None:
        """Set the time."""
        _TIME.pack_into(self._memory, 0, (moment - EPOCH) // MICROSECOND)

    def now(self) -> datetime:
        """Return the time."""
        count: int = _TIME.unpack_from(self._memory)[0]
        return EPOCH + count * MICROSECOND


class MovedClock(SystemClock):
    """A clock whose time another process sets. Its `sleep` ends when that time has come."""

    def __init__(self, shared: SharedTime) -> None:
        self._shared = shared
        self._read = shared.now()

    @override
    def now(self) -> datetime:
        """Return the shared time."""
        self._read = self._shared.now()
        return self._read

    @override
    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep for `seconds` of the shared time, counted from the last `now`.

        Not from the time of this call, because the caller has computed `seconds` from the last `now`, and the time may
        have jumped by minutes since then.
        """
        return self._until(self._read + timedelta(seconds=seconds))

    async def _until(self, end: datetime) -> None:
        # Polls, because the time is set in another process, and a clock that waits there would need a thread.
        while self.now() < end:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


def clock_of(shared: SharedTime, mode: RunMode) -> Clock | None:
    """Return the clock that decides if a bar has closed, as `trading.wall_clock` does."""
    return MovedClock(shared) if mode == "paper" else None


if __name__ == "__main__":
    moved = SharedTime(Path(sys.argv.pop(1)))
    trading.wall_clock = lambda mode: clock_of(moved, mode)
    main()
