"""The only reader of time."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from typing_extensions import override


class Clock(Protocol):
    """The time; everything that needs it is handed one of these."""

    def now(self) -> datetime:
        """Return the present moment in UTC; it never goes back within one clock."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start, for measuring how long real work took."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this clock's time; a simulated clock does not wait."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the machine's time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of real time; zero and less only yield."""
        await asyncio.sleep(max(0.0, seconds))


class SimClock:
    """A clock that stands still until `advance_to` sets it."""

    def __init__(self, start: datetime) -> None:
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the simulated moment."""
        return self._now

    def monotonic(self) -> float:
        """Return real seconds: how long work took is measured, not simulated."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:  # noqa: ARG002 - simulated time moves by `advance_to` only
        """Yield once without moving time: time moves only when nothing is in flight."""
        await asyncio.sleep(0)

    def advance_to(self, moment: datetime) -> None:
        """Set the time to `moment`; raises `ValueError` if that would go back."""
        if moment < self._now:
            raise ValueError(f"a clock cannot go back from {self._now.isoformat()} to {moment.isoformat()}")
        self._now = moment.astimezone(UTC)


class PacedClock(SimClock):
    """A simulated clock for calls that leave the process: the market's time stands still, and a wait is a real one."""

    @override
    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of real time: a call that left the process does not come back in simulated time."""
        await asyncio.sleep(max(0.0, seconds))


class MarketClock:
    """A clock that follows the market: the moment that `advance_to` last gave, plus the real time since then.

    With bars as they close it is the wall clock, but for the way that a bar takes; with bars of the past, a call
    has as long as it would have had then.
    """

    def __init__(self, start: datetime) -> None:
        self._market = start.astimezone(UTC)
        self._set_at = time.monotonic()

    def now(self) -> datetime:
        """Return the market's last moment, plus the real time since."""
        return self._market + timedelta(seconds=time.monotonic() - self._set_at)

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of real time; zero and less only yield."""
        await asyncio.sleep(max(0.0, seconds))

    def advance_to(self, moment: datetime) -> None:
        """Follow the market to `moment`; if real time has already passed it, go on from the present."""
        self._market = max(moment.astimezone(UTC), self.now())
        self._set_at = time.monotonic()
