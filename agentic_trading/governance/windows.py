"""Which minute, hour, day and month a moment belongs to, in one named time zone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum


class Window(StrEnum):
    """For how long spending adds up; `none` is for ever."""

    NONE = "none"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """One window: its id, and the moment (UTC) from which on it is surely over; None if it never is."""

    id: str
    over_by: datetime | None


_FOREVER = TimeWindow("", None)
_MINUTE = timedelta(minutes=1)


class Windows:
    """Windows of one time zone.

    A day lasts from local midnight to the next: 23 or 25 hours where clocks change. An hour and a minute carry their
    offset from UTC, so that an hour that comes twice is two hours.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self._since = self._until = datetime.min.replace(tzinfo=UTC)
        self._spans: Mapping[Window, TimeWindow] = {}

    def at(self, moment: datetime) -> Mapping[Window, TimeWindow]:
        """Return the windows of `moment`; within one minute it is the same object again.

        Raises `ValueError` for a moment without a time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment.isoformat()} has no time zone; allowed are aware datetimes")
        if not self._since <= moment < self._until:  # every offset in use changes at a full minute
            self._since = moment.astimezone(UTC).replace(second=0, microsecond=0)
            self._until = self._since + _MINUTE
            self._spans = self._spans_from(self._since)
        return self._spans

    def _spans_from(self, minute: datetime) -> Mapping[Window, TimeWindow]:
        local = minute.astimezone(self.zone)
        day = local.replace(hour=0, minute=0, fold=0)
        next_day = (day + timedelta(days=1)).astimezone(UTC)
        next_month = (day.replace(day=1) + timedelta(days=32)).replace(day=1).astimezone(UTC)
        spelled = local.isoformat(timespec="minutes")
        offset = spelled[16:].replace(":", "")
        return {
            Window.NONE: _FOREVER,
            Window.MINUTE: TimeWindow(spelled[:16] + offset, minute + _MINUTE),
            Window.HOUR: TimeWindow(spelled[:13] + offset, minute + timedelta(minutes=60 - local.minute)),
            Window.DAY: TimeWindow(spelled[:10], next_day),
            Window.MONTH: TimeWindow(spelled[:7], next_month),
        }
