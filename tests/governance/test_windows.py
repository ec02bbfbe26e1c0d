"""Windows begin and end where the clocks of their zone say, also when these change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.limits import Window, Windows

ZONES = ["America/New_York", "Europe/London", "Asia/Tokyo", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana",
         "Africa/Cairo", "America/Asuncion", "UTC"]  # fmt: skip
MICRO = timedelta(microseconds=1)
MILLI = timedelta(milliseconds=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def id_at(zone: str, window: Window, moment: datetime) -> str:
    return Windows(ZoneInfo(zone)).at(moment)[window].id


def around(zone: str, window: Window, moment: datetime) -> list[str]:
    """Return the ids of a microsecond and a millisecond before a moment, of it and of a millisecond after."""
    moments = (moment - MILLI, moment - MICRO, moment, moment + MILLI)
    return [id_at(zone, window, one) for one in moments]


# (zone, UTC moment at which a new window begins, id before, id after)
@pytest.mark.parametrize(
    ("zone", "begins", "before", "after"),
    [
        ("America/New_York", "2026-03-08T05:00:00", "2026-03-07", "2026-03-08"),  # a day of 23 hours begins
        ("America/New_York", "2026-03-09T04:00:00", "2026-03-08", "2026-03-09"),  # and ends
        ("America/New_York", "2026-11-01T04:00:00", "2026-10-31", "2026-11-01"),  # a day of 25 hours begins
        ("America/New_York", "2026-11-02T05:00:00", "2026-11-01", "2026-11-02"),  # and ends
        ("Europe/London", "2026-03-29T00:00:00", "2026-03-28", "2026-03-29"),
        ("Europe/London", "2026-03-29T23:00:00", "2026-03-29", "2026-03-30"),
        ("Europe/London", "2026-10-24T23:00:00", "2026-10-24", "2026-10-25"),
        ("Europe/London", "2026-10-26T00:00:00", "2026-10-25", "2026-10-26"),
        ("Asia/Tokyo", "2026-03-08T15:00:00", "2026-03-08", "2026-03-09"),  # never changes
        ("Asia/Tokyo", "2026-11-01T15:00:00", "2026-11-01", "2026-11-02"),
        (
            "Asia/Kolkata",
            "2026-03-08T18:30:00",
            "2026-03-08",
            "2026-03-09",
        ),  # half an hour off, never changes
        ("Asia/Kolkata", "2026-11-01T18:30:00", "2026-11-01", "2026-11-02"),
        (
            "Australia/Lord_Howe",
            "2026-04-04T13:00:00",
            "2026-04-04",
            "2026-04-05",
        ),  # a day of 24 1/2 hours begins
        ("Australia/Lord_Howe", "2026-04-05T13:30:00", "2026-04-05", "2026-04-06"),  # and ends
        (
            "Australia/Lord_Howe",
            "2026-10-03T13:30:00",
            "2026-10-03",
            "2026-10-04",
        ),  # a day of 23 1/2 hours begins
        ("Australia/Lord_Howe", "2026-10-04T13:00:00", "2026-10-04", "2026-10-05"),  # and ends
        ("Africa/Cairo", "2026-04-23T22:00:00", "2026-04-23", "2026-04-24"),  # a day without a midnight
    ],
)
def test_day_begins_at_local_midnight(zone: str, begins: str, before: str, after: str) -> None:
    assert around(zone, Window.DAY, utc(begins)) == [before, before, after, after]


@pytest.mark.parametrize(
    ("zone", "begins", "before", "after"),
    [
        ("America/New_York", "2026-03-01T05:00:00", "2026-02", "2026-03"),
        ("America/New_York", "2026-04-01T04:00:00", "2026-03", "2026-04"),  # clocks changed in between
        (
            "America/New_York",
            "2026-11-01T04:00:00",
            "2026-10",
            "2026-11",
        ),  # and change again on this very day
        ("America/New_York", "2026-12-01T05:00:00", "2026-11", "2026-12"),
        ("Europe/London", "2026-03-01T00:00:00", "2026-02", "2026-03"),
        ("Europe/London", "2026-03-31T23:00:00", "2026-03", "2026-04"),
        ("Europe/London", "2026-09-30T23:00:00", "2026-09", "2026-10"),
        ("Europe/London", "2026-11-01T00:00:00", "2026-10", "2026-11"),
        ("Asia/Tokyo", "2026-03-31T15:00:00", "2026-03", "2026-04"),
        ("Asia/Tokyo", "2026-10-31T15:00:00", "2026-10", "2026-11"),
        ("Asia/Kolkata", "2026-03-31T18:30:00", "2026-03", "2026-04"),
        ("Asia/Kolkata", "2026-12-31T18:30:00", "2026-12", "2027-01"),
        ("Australia/Lord_Howe", "2026-03-31T13:00:00", "2026-03", "2026-04"),
        ("Australia/Lord_Howe", "2026-04-30T13:30:00", "2026-04", "2026-05"),
        ("Australia/Lord_Howe", "2026-09-30T13:30:00", "2026-09", "2026-10"),
        ("Australia/Lord_Howe", "2026-10-31T13:00:00", "2026-10", "2026-11"),
    ],
)
def test_month_begins_at_local_midnight(zone: str, begins: str, before: str, after: str) -> None:
    assert around(zone, Window.MONTH, utc(begins)) == [before, before, after, after]


@pytest.mark.parametrize(
    ("zone", "within", "hours"),
    [
        ("America/New_York", "2026-03-08T16:00:00", 23),
        ("America/New_York", "2026-11-01T16:00:00", 25),
        ("Europe/London", "2026-03-29T12:00:00", 23),
        ("Europe/London", "2026-10-25T12:00:00", 25),
        ("Asia/Tokyo", "2026-03-08T12:00:00", 24),
        ("Asia/Kolkata", "2026-11-01T12:00:00", 24),
        ("Australia/Lord_Howe", "2026-04-04T20:00:00", 24.5),
        ("Australia/Lord_Howe", "2026-10-03T20:00:00", 23.5),
    ],
)
def test_day_length_follows_clock_changes(zone: str, within: str, hours: float) -> None:
    end = Windows(ZoneInfo(zone)).at(utc(within))[Window.DAY].over_by
    assert end is not None
    begin = end - timedelta(hours=hours)

    before, first, last, after = (
        id_at(zone, Window.DAY, moment) for moment in (begin - MILLI, begin, end - MILLI, end)
    )

    assert first == last == id_at(zone, Window.DAY, utc(within))
    assert len({before, first, after}) == 3


@pytest.mark.parametrize(
    ("zone", "twice", "minutes", "hours"),
    [
        ("Europe/London", "2026-10-25T00:59:59.999", "2026-10-25T01:59+0100", ["2026-10-25T01+0100", "2026-10-25T01+0000"]),
        ("Australia/Lord_Howe", "2026-04-04T14:59:59.999", "2026-04-05T01:59+1100", ["2026-04-05T01+1100", "2026-04-05T01+1030"]),
    ],
)  # fmt: skip
def test_repeated_minute_and_hour_ids_differ(zone: str, twice: str, minutes: str, hours: list[str]) -> None:
    last = utc(twice)

    assert id_at(zone, Window.MINUTE, last) == minutes
    assert [id_at(zone, Window.HOUR, moment) for moment in (last, last + MILLI)] == hours
    assert id_at(zone, Window.MINUTE, last) != id_at(zone, Window.MINUTE, last + MILLI)


def test_repeated_hour_is_two_windows() -> None:
    first, second = utc("2026-11-01T05:30:00"), utc("2026-11-01T06:30:00")

    hours = [id_at("America/New_York", Window.HOUR, moment) for moment in (first, second)]

    assert hours == ["2026-11-01T01-0400", "2026-11-01T01-0500"]


def test_skipped_hour_has_no_window() -> None:
    assert id_at("America/New_York", Window.HOUR, utc("2026-03-08T06:59:59")) == "2026-03-08T01-0500"
    assert id_at("America/New_York", Window.HOUR, utc("2026-03-08T07:00:00")) == "2026-03-08T03-0400"


def test_half_hour_zone_uses_local_hours() -> None:
    assert id_at("Asia/Kolkata", Window.HOUR, utc("2026-01-02T00:29:59")) == "2026-01-02T05+0530"
    assert id_at("Asia/Kolkata", Window.HOUR, utc("2026-01-02T00:30:00")) == "2026-01-02T06+0530"


def test_minute_window_changes_total_never_ends() -> None:
    windows = Windows()

    assert windows.at(utc("2026-01-02T03:04:59.999999"))[Window.MINUTE].id == "2026-01-02T03:04+0000"
    assert windows.at(utc("2026-01-02T03:05:00"))[Window.MINUTE].id == "2026-01-02T03:05+0000"
    assert windows.at(utc("2026-01-02T03:05:00"))[Window.NONE].id == ""
    assert windows.at(utc("2026-01-02T03:05:00"))[Window.NONE].over_by is None


def test_windows_are_cached_within_a_minute() -> None:
    windows = Windows(ZoneInfo("Asia/Tokyo"))
    moment = utc("2026-01-02T03:04:05")

    assert windows.at(moment) is windows.at(moment + timedelta(seconds=54))
    assert windows.at(moment) is not windows.at(moment + timedelta(seconds=55))


def test_naive_timestamp_is_rejected() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        Windows().at(datetime(2026, 1, 2))  # noqa: DTZ001 - that is the point


moments = st.datetimes(datetime(2015, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants naive bounds and gives the zone


@given(st.sampled_from(ZONES), moments, st.sampled_from([w for w in Window if w is not Window.NONE]))
def test_window_id_changes_at_stated_end(zone: str, moment: datetime, window: Window) -> None:
    span = Windows(ZoneInfo(zone)).at(moment)[window]

    assert span.over_by is not None
    assert moment < span.over_by
    assert id_at(zone, window, span.over_by) != span.id


@given(st.sampled_from(ZONES), moments, st.sampled_from([w for w in Window if w is not Window.NONE]))
def test_window_start_is_found_by_id(zone: str, moment: datetime, window: Window) -> None:
    windows = Windows(ZoneInfo(zone))
    ids = {one: span.id for one, span in windows.at(moment).items()}

    start = windows.start_of(window, ids[window])

    assert start <= moment
    longer = list(Window)[list(Window).index(window) :]
    assert {one: windows.at(start)[one].id for one in longer} == {one: ids[one] for one in longer}
    assert id_at(zone, window, start - MICRO) != ids[window]


@given(st.sampled_from(ZONES), moments, st.sampled_from([Window.DAY, Window.MONTH]))
def test_day_and_month_last_until_end(zone: str, moment: datetime, window: Window) -> None:
    span = Windows(ZoneInfo(zone)).at(moment)[window]

    assert span.over_by is not None
    assert id_at(zone, window, span.over_by - MICRO) == span.id
