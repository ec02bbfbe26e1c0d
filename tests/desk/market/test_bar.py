"""A bar says when it is known and refuses to contradict itself."""

from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from pydantic import ValidationError

from agentic_trading.desk.market.bar import Bar, Timeframe, TradingYear
from agentic_trading.desk.market.errors import BarError
from agentic_trading.desk.metrics import performance
from tests.desk.market.bars import MONDAY, bar, series


def fields(**changed: object) -> dict[str, object]:
    return {
        "symbol": "BTCUSDT",
        "timeframe": "5m",
        "open_time": "2026-01-05T00:00:00Z",
        "open": "10.00",
        "high": "12",
        "low": "9",
        "close": "11",
        "volume": "3",
        **changed,
    }


@pytest.mark.parametrize("timeframe", list(Timeframe))
def test_bar_available_at_close(timeframe: Timeframe) -> None:
    made = bar(0, timeframe=timeframe)

    assert made.close_time - made.open_time == timedelta(seconds=timeframe.seconds)
    assert made.available_at == made.close_time


def test_window_boundary_opens_next_window() -> None:
    assert Timeframe.H4.start_of(MONDAY + timedelta(hours=4)) == MONDAY + timedelta(hours=4)
    assert Timeframe.H4.start_of(MONDAY + timedelta(hours=4, microseconds=-1)) == MONDAY


def year_of(timeframe: Timeframe, days: Iterable[int], first: time, bars: int) -> TradingYear:
    """Return the year of a market with `bars` bars on each of `days` after Monday, from `first` on."""
    year = TradingYear(timeframe)
    for day in days:
        opened = datetime.combine(MONDAY.date() + timedelta(days=day), first, UTC)
        for place in range(bars):
            year.add(opened + place * timeframe.length)
    return year


WORKDAYS = [day for day in range(52) if day % 7 < 5 and day not in {14, 21}]
"""36 sessions of 52 days: two were holidays."""


@pytest.mark.parametrize(
    ("timeframe", "days", "first", "bars", "of_session", "sessions"),
    [
        (Timeframe.M5, WORKDAYS, time(14, 30), 78, 78, 252),
        (Timeframe.M5, range(9), time(), 288, 288, 365),
        (Timeframe.M5, range(2), time(), 288, 288, 365),
        (Timeframe.M5, range(2), time(14, 30), 78, 78, 252),
        (Timeframe.M5, [day for day in range(14) if day % 7 < 5], time(), 288, 288, 260),
        (Timeframe.M5, range(5), time(), 288, 288, 365),
        (Timeframe.H1, WORKDAYS, time(14), 7, 7, 252),
        (Timeframe.D1, WORKDAYS, time(), 1, 1, 252),
        (Timeframe.D1, range(3), time(), 1, 1, 252),
        (Timeframe.D1, range(30), time(), 1, 1, 365),
    ],
)
def test_trading_year_follows_data_sessions(
    timeframe: Timeframe, days: Iterable[int], first: time, bars: int, of_session: int, sessions: int
) -> None:
    year = year_of(timeframe, days, first, bars)

    assert (year.bars_per_session, year.sessions_per_year) == (of_session, sessions)
    assert year.bars == of_session * sessions


def test_half_day_keeps_year_length() -> None:
    year = year_of(Timeframe.M5, WORKDAYS, time(14, 30), 78)
    for place in range(42):
        year.add(
            datetime.combine(MONDAY.date() + timedelta(days=53), time(14, 30), UTC)
            + place * Timeframe.M5.length
        )

    assert year.bars == 78 * 252


def test_partial_day_counts_as_always_open() -> None:
    evening = year_of(Timeframe.M5, [0], time(18), 72)
    for place in range(100):
        evening.add(MONDAY + timedelta(days=1) + place * Timeframe.M5.length)

    assert evening.bars == 365 * 288


def test_loss_of_52_days_is_annualized() -> None:
    year = year_of(Timeframe.M5, WORKDAYS, time(14, 30), 78)
    bars = 78 * len(WORKDAYS)
    equity = [100.0] * bars + [96.02]

    figures = performance(equity, [0.0] * bars, bars_per_year=year.bars)

    assert figures.cagr == pytest.approx(-0.2475, abs=0.0001)


def test_bar_keeps_source_digits() -> None:
    made = Bar.model_validate(fields())

    assert str(made.open) == "10.00"
    assert '"open":"10.00"' in made.model_dump_json()


@given(series(most=5))
def test_bar_round_trips_through_json(bars: list[Bar]) -> None:
    for made in bars:
        assert Bar.model_validate_json(made.model_dump_json()) == made


def test_missing_optional_fields_are_unset() -> None:
    made = Bar.model_validate(fields())

    assert (made.quote_volume, made.trades, made.taker_buy_volume) == (None, None, None)


def test_open_time_is_converted_to_utc() -> None:
    in_berlin = datetime(2026, 1, 5, 1, tzinfo=timezone(timedelta(hours=1)))

    assert Bar.model_validate(fields(open_time=in_berlin)).open_time.tzinfo is UTC
    assert Bar.model_validate(fields(open_time=in_berlin)).open_time == MONDAY


def test_bar_is_immutable() -> None:
    with pytest.raises(ValidationError):
        bar().close = Decimal(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"open_time": "2026-01-05T00:01:00Z"}, "open_time", "2026-01-05T00:01:00+00:00"),
        ({"open_time": "1969-12-31T23:55:00Z"}, "open_time", "1969-12-31T23:55:00+00:00"),
        ({"open_time": "9999-12-31T23:55:00Z"}, "open_time", "9999-12-31T23:55:00+00:00"),
        ({"low": "10.5"}, "low", "10.5"),
        ({"low": "11.5", "high": "11.7"}, "low", "11.5"),
        ({"high": "10.9"}, "high", "10.9"),
        ({"high": "9.5"}, "high", "9.5"),
        ({"low": "0"}, "low", "0"),
        ({"low": "-1"}, "low", "-1"),
        ({"high": "1e19"}, "high", "1E+19"),
        ({"volume": "-0.1"}, "volume", "-0.1"),
        ({"volume": "1e19"}, "volume", "1E+19"),
        ({"quote_volume": "-1"}, "quote_volume", "-1"),
        ({"trades": -1}, "trades", "-1"),
        ({"taker_buy_volume": "3.1"}, "taker_buy_volume", "3.1"),
    ],
)
def test_contradiction_error_has_field_and_value(changed: dict[str, object], field: str, value: str) -> None:
    with pytest.raises(BarError) as refused:
        Bar.model_validate(fields(**changed))

    assert refused.value.field == field
    assert str(refused.value.value) == value
    assert str(refused.value).endswith(f"allowed: {refused.value.allowed}")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "ten"])
def test_only_finite_numbers_are_prices(number: str) -> None:
    with pytest.raises(ValidationError, match="close"):
        Bar.model_validate(fields(close=number))


def test_naive_timestamp_is_rejected() -> None:
    with pytest.raises(ValidationError, match="open_time"):
        Bar.model_validate(fields(open_time="2026-01-05T00:00:00"))
