"""Clocks, and times as users write them. All other modules get the time from a `Clock`, never from `time` or `datetime`."""

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, Protocol

from typing_extensions import override


class Clock(Protocol):
    """A source of time. Pass one to every component that needs it."""

    def now(self) -> datetime:
        """Return the current UTC time. It never goes backwards."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds, for measuring elapsed real time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of this clock's time. Simulated clocks return immediately."""
        ...


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        """Return the system time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return monotonic seconds of the system."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of real time. Zero or less only yields to other tasks."""
        await asyncio.sleep(max(0.0, seconds))


class SimClock:
    """A simulated clock. Its time changes only through `advance_to`."""

    def __init__(self, start: datetime) -> None:
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the simulated time."""
        return self._now

    def monotonic(self) -> float:
        """Return real monotonic seconds, because elapsed time is measured and not simulated."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:  # noqa: ARG002 - simulated time moves by `advance_to` only
        """Yield once to other tasks. The time does not change."""
        await asyncio.sleep(0)

    def advance_to(self, moment: datetime) -> None:
        """Set the time. Raises `ValueError` if `moment` is earlier than the current time."""
        if moment < self._now:
            raise ValueError(f"a clock cannot go back from {self._now.isoformat()} to {moment.isoformat()}")
        self._now = moment.astimezone(UTC)


class PacedClock(SimClock):
    """A `SimClock` whose `sleep` waits in real time, for backtests that call a real model."""

    @override
    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of real time."""
        await asyncio.sleep(max(0.0, seconds))


class MarketClock:
    """A clock that follows the market.

    Its time is that of the last `advance_to`, plus the real time since then. With live bars it is close to
    the wall clock. With historical bars, a call has the same time as it would have had live.
    """

    def __init__(self, start: datetime) -> None:
        self._market = start.astimezone(UTC)
        self._set_at = time.monotonic()

    def now(self) -> datetime:
        """Return the last market time, plus the real time since then."""
        return self._market + timedelta(seconds=time.monotonic() - self._set_at)

    def monotonic(self) -> float:
        """Return monotonic seconds of the system."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of real time. Zero or less only yields to other tasks."""
        await asyncio.sleep(max(0.0, seconds))

    def advance_to(self, moment: datetime) -> None:
        """Move to `moment`, unless real time has already passed it."""
        self._market = max(moment.astimezone(UTC), self.now())
        self._set_at = time.monotonic()


MOMENTS: Final = "2026-06-20, 2026-06-20T10:00Z, now, today, yesterday, or an age such as 90m, 12h, -2h or 7d"
"""The texts that `parse_moment` accepts. Times are in UTC unless they have an offset."""

DURATIONS: Final = "a duration such as 90m, 12h or 7d"
"""The texts that `parse_duration` accepts."""

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS: Final = MappingProxyType({"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"})


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the time of a text in UTC.

    Args:
        text: One of `MOMENTS`. A day means its start.
        now: The present, from which an age counts back.

    Raises:
        ValueError: If the text has another form, or the time is not in the calendar.

    """
    now = now.astimezone(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": today, "yesterday": today - timedelta(days=1)}
    try:
        if text in named:
            return named[text]
        if _DURATION.fullmatch(text.removeprefix("-")):
            return now - parse_duration(text.removeprefix("-"))
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as e:
        raise ValueError(f"{text!r} is not a time. Allowed: {MOMENTS}") from e


def parse_duration(text: str) -> timedelta:
    """Return the length of time in a text, such as `90m`.

    Raises:
        ValueError: If the text has another form, or the time is too long.

    """
    found = _DURATION.fullmatch(text)
    try:
        if found is not None:
            return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        pass
    raise ValueError(f"{text!r} is not a duration. Allowed: {DURATIONS}")
