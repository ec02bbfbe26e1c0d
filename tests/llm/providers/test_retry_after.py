"""The wait that a server asks for: three forms, bounded, and nothing made of nonsense."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.hosted import LONGEST_WAIT_S, retry_after_s

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@given(st.integers(0, 86_400))
def test_three_retry_after_forms_agree(seconds: int) -> None:
    spellings = (
        {"retry-after": str(seconds)},
        {"retry-after-ms": str(seconds * 1000)},
        {"retry-after": format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)},
    )

    assert {retry_after_s(headers, now=NOW) for headers in spellings} == {float(seconds)}


@given(st.text(max_size=60), st.text(max_size=60))
def test_wait_stays_between_zero_and_day(one: str, other: str) -> None:
    wait_s = retry_after_s({"retry-after-ms": one, "retry-after": other}, now=NOW)

    assert wait_s is None or 0 <= wait_s <= LONGEST_WAIT_S


@given(st.integers(0, 10**400))
def test_long_number_wait_is_capped(number: int) -> None:
    assert retry_after_s({"Retry-After": str(number)}, now=NOW) == min(number, LONGEST_WAIT_S)


@given(st.datetimes(timezones=st.just(UTC)))
def test_date_wait_stays_within_day(at: datetime) -> None:
    wait_s = retry_after_s({"retry-after": format_datetime(at)}, now=NOW)

    # Mail and HTTP spell a year before 1000 like a short one of our time.
    assert wait_s is not None
    assert 0 <= wait_s <= LONGEST_WAIT_S


def test_milliseconds_take_precedence_over_seconds() -> None:
    assert retry_after_s({"Retry-After": "2", "Retry-After-Ms": "1500"}, now=NOW) == 1.5


def test_seconds_used_if_milliseconds_invalid() -> None:
    assert retry_after_s({"retry-after": " 0.25 ", "retry-after-ms": "soon"}, now=NOW) == 0.25


def test_zoneless_date_is_read_as_utc() -> None:
    assert retry_after_s({"retry-after": "Fri, 02 Jan 2026 00:00:07 -0000"}, now=NOW) == 7


@pytest.mark.parametrize(
    "nonsense", ["", "soon", "-1", "nan", "inf", "1e3", "0x10", "٣", "1;2", "Fri, 99 Jan"]
)
def test_invalid_retry_after_is_ignored(nonsense: str) -> None:
    assert retry_after_s({"retry-after": nonsense, "retry-after-ms": nonsense}, now=NOW) is None


def test_missing_header_gives_no_wait() -> None:
    assert retry_after_s({}, now=NOW) is None
