"""Parse the cells of a row: numbers, and the times of vendors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from agentic_trading.desk.market.bar import EPOCH

NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
WHOLE: Final = re.compile(r"(-?[0-9]{1,18})(\.0{1,18})?")  # because data frames write counts with a fraction
DIGITS: Final = re.compile(r"([0-9]+)(\.0+)?")
MICROSECONDS_PER_TICK: Final = {10: 1_000_000, 13: 1_000, 16: 1}
"""By number of digits: seconds, milliseconds and microseconds."""
CALENDAR_DIGITS: Final = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
YEAR_FIRST: Final = re.compile(r"([0-9]{4})([./])([0-9]{2})\2([0-9]{2})")
TIME_OF_DAY: Final = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})?")
NEXT_DATE_FROM_HOUR: Final = 15
"""The hour in UTC from which the day of a daily bar is the next date.

A day that begins at midnight in Asia or Europe begins on the date before in UTC, at 15:00 or later. A session
in the Americas begins before.
"""


def number(text: str) -> Decimal | None:
    """Return a decimal number with all its digits. Separators, infinities and NaN are not accepted."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def whole(text: str) -> int | None:
    """Return a whole number of at most 18 digits."""
    found = WHOLE.fullmatch(text)
    return int(found[1]) if found else None


def parse_time(text: str) -> datetime | None:
    """Return a time in UTC, which is also assumed without an offset. Accepted are `TIMES`."""
    moment = _moment(text)
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError:
        return None


def parse_day(text: str) -> datetime | None:
    """Return midnight in UTC of the date of a daily bar.

    A text with an offset has its own date. Other times are in UTC, and from 15:00 on they mean the next date.
    """
    moment = _moment(text)
    if moment is None:
        return None
    try:
        if not moment.utcoffset() and moment.hour >= NEXT_DATE_FROM_HOUR:
            moment += timedelta(days=1)
    except OverflowError:
        return None
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC)


def _moment(text: str) -> datetime | None:
    """Return a time with its own offset."""
    try:
        if found := DIGITS.fullmatch(text):
            return _of_digits(found[1])
        if found := YEAR_FIRST.match(text):
            text = f"{found[1]}-{found[3]}-{found[4]}{text[found.end() :]}"
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _of_digits(digits: str) -> datetime | None:
    if (tick := MICROSECONDS_PER_TICK.get(len(digits))) is not None:
        return EPOCH + timedelta(microseconds=int(digits) * tick)
    layout = CALENDAR_DIGITS.get(len(digits))
    return None if layout is None else datetime.strptime(digits, layout).replace(tzinfo=UTC)


def joined_time(date: str, time: str) -> str:
    """Return the text of a time with its date and its time of day in two cells."""
    if found := TIME_OF_DAY.fullmatch(time):
        time = f"{found[1]}:{found[2]}:{found[3] or '00'}"
    if len(date) == 8 and DIGITS.fullmatch(date):
        date = f"{date[:4]}-{date[4:6]}-{date[6:]}"
    return f"{date} {time}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The parser of one field, a description of the allowed texts, and whether the field is required."""

    read: Callable[[str], object | None]
    allowed: str
    required: bool = True


TIMES: Final = (
    "epoch seconds (10 digits), milliseconds (13) or microseconds (16), YYYYMMDD, YYYYMMDDHHMM, "
    "YYYYMMDDHHMMSS, or an ISO 8601 time such as 2026-01-05 14:30"
)
_NUMBER = Cell(number, "a decimal number such as 27953.83")

CELLS: Final[Mapping[str, Cell]] = MappingProxyType({
    "open_time": Cell(parse_time, TIMES),
    "open": _NUMBER,
    "high": _NUMBER,
    "low": _NUMBER,
    "close": _NUMBER,
    "volume": _NUMBER,
    "quote_volume": Cell(number, "a decimal number, or nothing", required=False),
    "trades": Cell(whole, "a whole number, or nothing", required=False),
    "taker_buy_volume": Cell(number, "a decimal number, or nothing", required=False),
})
"""The fields of a bar."""

DAILY_CELLS: Final = MappingProxyType({**CELLS, "open_time": Cell(parse_day, TIMES)})
"""The fields of a bar of a day."""
