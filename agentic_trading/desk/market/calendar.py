"""Calendars of markets that are not always open: which bars can be missing."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Any, Final, Protocol

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import UnknownCalendarError
from agentic_trading.errors import extra_named

COLUMNS: Final = "day,opens,closes"
"""The header of a calendar as CSV."""


class Calendar(Protocol):
    """The open times of a market."""

    def missing_between(self, last: Bar, bar: Bar) -> int:
        """Return the number of bars that could have opened between two bars of the same length."""
        ...


def missing_between(last: Bar, bar: Bar, calendar: Calendar | None) -> int:
    """Return the number of bars that could have opened between two bars. Without a calendar, the market never closes."""
    if calendar is None:
        return (bar.open_time - last.close_time) // last.timeframe.length
    return calendar.missing_between(last, bar)


class OpenTimes:
    """A calendar of the open times of all bars, in order."""

    def __init__(self, opens: Sequence[datetime]) -> None:
        self._opens = opens

    def missing_between(self, last: Bar, bar: Bar) -> int:
        """Return the number of open times between two bars."""
        return bisect_left(self._opens, bar.open_time) - bisect_left(self._opens, last.close_time)


@dataclass(frozen=True, slots=True)
class MarketHours:
    """Hours of trading without a break, in UTC. A day with a break has two of them.

    Attributes:
        day: The date of the exchange. The hours may begin on the day before.
        opens: The first moment.
        closes: The first moment after it.

    """

    day: date
    opens: datetime
    closes: datetime


class ExchangeCalendar:
    """The hours of an exchange, in order.

    Bars of a day are counted by date. Shorter bars are counted from the open of the hours, or from the
    multiple of their length before it if the bars so far are on these multiples. After the last hours, no bar
    can be missing.
    """

    def __init__(self, name: str, hours: Sequence[MarketHours]) -> None:
        self.name = name
        self.hours = hours
        self._opens = [each.opens for each in hours]
        self._closes = [each.closes for each in hours]
        self._days = list(dict.fromkeys(each.day for each in hours))

    def missing_between(self, last: Bar, bar: Bar) -> int:
        """Return the number of bars that could have opened between two bars."""
        timeframe = last.timeframe
        if timeframe is Timeframe.D1:
            after = bisect_right(self._days, last.open_time.date())
            return max(bisect_left(self._days, bar.open_time.date()) - after, 0)
        from_open = self._is_from_open(last)
        missing = 0
        for hours in self.hours[bisect_right(self._closes, last.close_time) :]:
            first = hours.opens if from_open else timeframe.start_of(hours.opens)
            if first >= bar.open_time:
                break
            missing += _steps(
                first, max(last.close_time, first), min(bar.open_time, hours.closes), timeframe.length
            )
        return missing

    def since(self, first: datetime) -> "ExchangeCalendar":
        """Return the calendar without the hours that had ended at a time."""
        return ExchangeCalendar(self.name, self.hours[bisect_right(self._closes, first) :])

    def _is_from_open(self, bar: Bar) -> bool:
        """Return whether a bar is a multiple of its length after the open of its hours."""
        at = max(bisect_right(self._opens, bar.open_time) - 1, 0)
        return not (bar.open_time - self._opens[at]) % bar.timeframe.length if self._opens else True


def _steps(first: datetime, begin: datetime, end: datetime, length: timedelta) -> int:
    """Return how many multiples of `length` after `first` are in [begin, end)."""
    return max(-((first - end) // length) + ((first - begin) // length), 0)


def exchange_calendar(name: str, first: date | None = None) -> ExchangeCalendar:
    """Return the calendar of an exchange, from `exchange_calendars`. Takes about half a second.

    It ends a year from now. Without `first`, it begins 20 years ago.

    Raises:
        UnknownCalendarError: If there is no calendar with this name, or none for so early a time.
        MissingExtraError: If the package is not installed.

    """
    with extra_named():
        package: Any = import_module("exchange_calendars")
    if name not in package.get_calendar_names():
        raise UnknownCalendarError(name)
    start = {} if first is None else {"start": first.isoformat()}
    try:
        schedule = package.get_calendar(name, **start).schedule
    except ValueError as e:
        raise UnknownCalendarError(name, str(e)) from e
    return ExchangeCalendar(
        name,
        [
            hours
            for day, row in zip(schedule.index, schedule.itertuples(), strict=True)
            for hours in _hours_of(day.date(), row)
        ],
    )


def _hours_of(day: date, row: Any) -> Iterator[MarketHours]:
    opens, closes = _moment(row.open), _moment(row.close)
    # A day without a break has NaT here, which does not equal itself.
    if row.break_start == row.break_start:
        yield MarketHours(day, opens, _moment(row.break_start))
        opens = _moment(row.break_end)
    yield MarketHours(day, opens, closes)


def _moment(stamp: Any) -> datetime:
    moment: datetime = stamp.to_pydatetime().astimezone(UTC)
    return moment


def calendar_rows(calendar: ExchangeCalendar) -> Iterator[str]:
    """Yield a calendar as lines of CSV, with a header."""
    yield COLUMNS
    for each in calendar.hours:
        yield f"{each.day},{each.opens:%Y-%m-%dT%H:%M:%SZ},{each.closes:%Y-%m-%dT%H:%M:%SZ}"


def calendar_of(name: str, rows: Sequence[str]) -> ExchangeCalendar:
    """Return the calendar in lines of `calendar_rows`. Raises `ValueError` for other lines."""
    if not rows or rows[0] != COLUMNS:
        raise ValueError(f"line 1 is not {COLUMNS}")
    return ExchangeCalendar(name, [_hours(row) for row in rows[1:]])


def _hours(row: str) -> MarketHours:
    day, opens, closes = row.split(",")
    return MarketHours(date.fromisoformat(day), datetime.fromisoformat(opens), datetime.fromisoformat(closes))
