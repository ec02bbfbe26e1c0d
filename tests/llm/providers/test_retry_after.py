"""The wait that a server asks for: three forms, bounded, and nothing made of nonsense."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.hosted import LONGEST_WAIT_S, retry_after_s

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@given(st.integers(0, 86_400))
def test_three_spellings_of_one_wait_mean_the_same(seconds: int) -> None:
    spellings = (
        {"retry-after": str(seconds)},
        {"retry-after-ms": str(seconds * 1000)},
        {"retry-after": format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)},
    )

    assert {retry_after_s(headers, now=NOW) for headers in spellings} == {float(seconds)}


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_makes_a_wait_that_is_negative_or_longer_than_a_day(one: str, other: str) -> None:
    wait_s = retry_after_s({"retry-after-ms": one, "retry-after": other}, now=NOW)

    assert wait_s is None or 0 <= wait_s <= LONGEST_WAIT_S


@given(st.integers(0, 10**400))
def test_a_number_of_any_length_is_cut_to_a_day(number: int) -> None:
    assert retry_after_s({"Retry-After": str(number)}, now=NOW) == min(number, LONGEST_WAIT_S)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_date_of_any_year_gives_a_wait_within_a_day(at: datetime) -> None:
    wait_s = retry_after_s({"retry-after": format_datetime(at)}, now=NOW)

    # Mail and HTTP spell a year before 1000 like a short one of our time.
    assert wait_s is not None
    assert 0 <= wait_s <= LONGEST_WAIT_S


def test_milliseconds_go_before_seconds() -> None:
    assert retry_after_s({"Retry-After": "2", "Retry-After-Ms": "1500"}, now=NOW) == 1.5


def test_seconds_count_where_the_milliseconds_are_nonsense() -> None:
    assert retry_after_s({"retry-after": " 0.25 ", "retry-after-ms": "soon"}, now=NOW) == 0.25


def test_a_date_of_no_named_zone_is_read_as_utc() -> None:
    assert retry_after_s({"retry-after": "Fri, 02 Jan 2026 00:00:07 -0000"}, now=NOW) == 7


@pytest.mark.parametrize(
    "nonsense", ["", "soon", "-1", "nan", "inf", "1e3", "0x10", "٣", "1;2", "Fri, 99 Jan"]
)
def test_nonsense_is_no_wait(nonsense: str) -> None:
    assert retry_after_s({"retry-after": nonsense, "retry-after-ms": nonsense}, now=NOW) is None


def test_without_a_header_there_is_no_wait() -> None:
    assert retry_after_s({}, now=NOW) is None
