"""Calendars of exchanges: which bars can be missing, and the hours of a package as rows of a file."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache

import exchange_calendars
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.calendar import (
    ExchangeCalendar,
    calendar_of,
    calendar_rows,
    exchange_calendar,
)
from agentic_trading.desk.market.errors import UnknownCalendarError
from agentic_trading.desk.market.feed import Gap
from agentic_trading.desk.market.feeds import MemoryFeed

NYSE = exchange_calendar("XNYS", date(2024, 11, 1))
HONG_KONG = exchange_calendar("XHKG", date(2024, 11, 1))
CHICAGO = exchange_calendar("CMES", date(2024, 11, 1))


def bar(opens: str, timeframe: Timeframe) -> Bar:
    one = Decimal(1)
    return Bar(
        symbol="A", timeframe=timeframe, open_time=datetime.fromisoformat(f"{opens}Z"),
        open=one, high=one, low=one, close=one, volume=one,
    )  # fmt: skip


async def gaps(bars: Sequence[Bar], calendar: ExchangeCalendar) -> list[Gap]:
    feed = MemoryFeed(bars, symbol="A", timeframe=bars[0].timeframe, calendar=calendar)
    return [item async for item in feed if isinstance(item, Gap)]


@pytest.mark.parametrize(
    ("calendar", "timeframe", "last", "next_bar", "missing"),
    [
        # Over a night, a weekend and Thanksgiving, and after the early close of the day after it.
        (NYSE, "5m", "2024-11-25T20:55", "2024-11-26T14:30", 0),
        (NYSE, "5m", "2024-11-22T20:55", "2024-11-25T14:30", 0),
        (NYSE, "5m", "2024-11-27T20:55", "2024-11-29T14:30", 0),
        (NYSE, "5m", "2024-11-29T17:55", "2024-12-02T14:30", 0),
        # The clocks of New York change on the weekend before 2024-11-04.
        (NYSE, "5m", "2024-11-01T19:55", "2024-11-04T14:30", 0),
        (NYSE, "5m", "2024-11-25T15:00", "2024-11-25T15:15", 2),
        (NYSE, "5m", "2024-11-25T20:50", "2024-11-26T14:35", 2),
        (NYSE, "5m", "2024-11-25T20:55", "2024-11-27T14:30", 78),
        (NYSE, "5m", "2024-11-27T20:55", "2024-12-02T14:30", 42),
        # Trades before the open and after the close.
        (NYSE, "5m", "2024-11-25T21:40", "2024-11-26T13:05", 0),
        (NYSE, "5m", "2024-11-26T13:05", "2024-11-26T14:40", 2),
        # Bars of an hour from the open, and from the full hour.
        (NYSE, "1h", "2024-11-25T20:30", "2024-11-26T14:30", 0),
        (NYSE, "1h", "2024-11-25T19:30", "2024-11-26T15:30", 2),
        (NYSE, "1h", "2024-11-25T20:00", "2024-11-26T14:00", 0),
        (NYSE, "1h", "2024-11-25T19:00", "2024-11-26T15:00", 2),
        (NYSE, "4h", "2024-11-25T20:00", "2024-11-26T12:00", 0),
        (NYSE, "4h", "2024-11-25T12:00", "2024-11-26T12:00", 2),
        (NYSE, "1d", "2024-11-27T00:00", "2024-11-29T00:00", 0),
        (NYSE, "1d", "2024-11-26T00:00", "2024-12-02T00:00", 2),
        # A break at noon, after which the bars are counted from its end.
        (HONG_KONG, "1h", "2024-11-25T03:30", "2024-11-25T05:00", 0),
        (HONG_KONG, "1h", "2024-11-25T02:30", "2024-11-25T06:00", 2),
        (HONG_KONG, "5m", "2024-11-25T03:55", "2024-11-25T05:00", 0),
        (HONG_KONG, "5m", "2024-11-25T03:50", "2024-11-25T05:05", 2),
        # A session that begins on the evening before, and a market without a break.
        (CHICAGO, "1h", "2024-11-25T22:00", "2024-11-25T23:00", 0),
        (CHICAGO, "1h", "2024-11-25T12:00", "2024-11-25T15:00", 2),
    ],
)  # fmt: skip
def test_bars_are_missing_only_in_hours_of_exchange(
    calendar: ExchangeCalendar, timeframe: str, last: str, next_bar: str, missing: int
) -> None:
    length = Timeframe(timeframe)

    assert calendar.missing_between(bar(last, length), bar(next_bar, length)) == missing


@cache  # a second of CPU for each exchange
def calendars(name: str) -> tuple[exchange_calendars.ExchangeCalendar, ExchangeCalendar]:
    """Return the calendar of an exchange in the public package, and ours."""
    source = exchange_calendars.get_calendar(name, start="2024-01-02", end="2024-12-30")
    return source, exchange_calendar(name, date(2024, 1, 2))


@given(
    name=st.sampled_from(["XNYS", "XHKG", "XTKS", "XLON", "24/7"]),
    timeframe=st.sampled_from([Timeframe.M5, Timeframe.M15, Timeframe.M30, Timeframe.H1]),
    first=st.integers(0, 150),
    kept=st.data(),
)
async def test_missing_bars_equal_those_left_out(
    name: str, timeframe: Timeframe, first: int, kept: st.DataObject
) -> None:
    source, calendar = calendars(name)
    days = source.sessions[first : first + 4]
    period = pd.Timedelta(timeframe.length)
    index = source.trading_index(days[0], days[-1], period, intervals=False, force_close=False, closed="left")
    opens = [moment.to_pydatetime().astimezone(UTC) for moment in index]
    chosen = kept.draw(st.lists(st.sampled_from(opens), min_size=2, unique=True).map(sorted))
    bars = [bar(each.isoformat()[:-6], timeframe) for each in chosen]

    found = await gaps(bars, calendar)

    within = [each for each in opens if chosen[0] <= each <= chosen[-1]]
    assert sum(gap.missing for gap in found) == len(within) - len(chosen)


def test_no_bar_is_missing_after_the_last_day() -> None:
    last = NYSE.hours[-1].closes + timedelta(days=3)
    begin, end = (bar((last + timedelta(days=days)).isoformat()[:16], Timeframe.H1) for days in (0, 9))

    assert NYSE.missing_between(begin, end) == 0
    assert ExchangeCalendar("empty", []).missing_between(begin, end) == 0


@pytest.mark.parametrize("calendar", [NYSE, HONG_KONG, CHICAGO])
def test_calendar_is_read_as_it_was_written(calendar: ExchangeCalendar) -> None:
    again = calendar_of(calendar.name, list(calendar_rows(calendar)))

    assert (again.name, again.hours) == (calendar.name, calendar.hours)


@pytest.mark.parametrize(
    "rows", [[], ["day"], ["day,opens,closes", "2024-01-02"], ["day,opens,closes", "a,b,c"]]
)
def test_other_rows_are_refused(rows: list[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the standard library
        calendar_of("XNYS", rows)


def test_unknown_name_and_early_start_are_refused() -> None:
    with pytest.raises(UnknownCalendarError, match=r"'NYSEE': there is no calendar.* such as XNYS"):
        exchange_calendar("NYSEE")
    with pytest.raises(UnknownCalendarError, match="XKRX"):
        exchange_calendar("XKRX", date(1950, 1, 1))
