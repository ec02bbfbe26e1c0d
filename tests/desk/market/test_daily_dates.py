"""The dates of daily bars: by the text, by the rule for UTC, and at midnight in code."""

from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.bar_cells import parse_day
from agentic_trading.desk.market.errors import BarError

DAYS = [datetime(2026, month, 15, tzinfo=UTC) for month in (1, 7)]
"""A day in winter and one in summer."""


def midnights(zone: str) -> list[datetime]:
    """Return midnight of these days in a time zone, in UTC."""
    return [day.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for day in DAYS]


@pytest.mark.parametrize(
    "zone",
    [
        *("Pacific/Honolulu", "America/Los_Angeles", "America/New_York", "America/Sao_Paulo", "UTC"),
        *("Europe/London", "Europe/Moscow", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tokyo"),
    ],
)
def test_midnight_in_utc_has_the_local_date(zone: str) -> None:
    found = [parse_day(f"{moment:%Y-%m-%d %H:%M}") for moment in midnights(zone)]
    of_epochs = [parse_day(str(int(moment.timestamp()))) for moment in midnights(zone)]

    assert (found, of_epochs) == (DAYS, DAYS)


@pytest.mark.parametrize("zone", ["Australia/Sydney", "Pacific/Auckland"])
def test_midnight_east_of_tokyo_needs_its_offset(zone: str) -> None:
    in_utc = [parse_day(f"{moment:%Y-%m-%d %H:%M}") for moment in midnights(zone)]
    with_offset = [parse_day(moment.astimezone(ZoneInfo(zone)).isoformat()) for moment in midnights(zone)]

    assert [(day - found).days for day, found in zip(DAYS, in_utc, strict=True) if found] == [1, 1]
    assert with_offset == DAYS


@pytest.mark.parametrize(
    ("zone", "hour", "minute"),
    [("Asia/Tokyo", 9, 0), ("Europe/London", 8, 0), ("America/New_York", 9, 30), ("America/Chicago", 8, 30)],
)
def test_open_of_a_session_in_utc_has_the_local_date(zone: str, hour: int, minute: int) -> None:
    opens = [day.replace(hour=hour, minute=minute, tzinfo=ZoneInfo(zone)).astimezone(UTC) for day in DAYS]

    assert [parse_day(f"{moment:%Y-%m-%d %H:%M}") for moment in opens] == DAYS


@pytest.mark.parametrize("hour", [5, 15])
def test_daily_bar_in_code_opens_at_midnight(hour: int) -> None:
    one = Decimal(1)

    with pytest.raises(BarError, match="00:00 in UTC of the bar's date at its exchange, such as 2026-"):
        Bar(
            symbol="ACME",
            timeframe=Timeframe.D1,
            open_time=DAYS[0].replace(hour=hour),
            open=one,
            high=one,
            low=one,
            close=one,
            volume=one,
        )
