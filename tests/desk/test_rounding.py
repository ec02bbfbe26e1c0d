"""Rounded numbers are short and stable, and never anything but numbers."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.prompts import price, ratio, significant, stamp

finite = st.floats(min_value=-1e300, max_value=1e300)


@given(finite, st.integers(1, 12))
def test_rounding_twice_is_rounding_once(value: float, digits: int) -> None:
    once = significant(value, digits)

    assert significant(once, digits) == once


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_a_rounded_number_is_near_the_real_one(value: float) -> None:
    assert price(value) == pytest.approx(value, rel=5.1e-8)
    assert ratio(value) == pytest.approx(value, rel=5.1e-5)


def test_minus_zero_is_given_as_zero() -> None:
    assert json.dumps(significant(-0.0, 5)) == "0.0"


def test_what_is_not_there_stays_away() -> None:
    assert (price(None), ratio(None)) == (None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1.7976e308])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="Allowed: a finite number"):
        significant(value, 2)


def test_a_time_is_given_to_the_second_in_utc() -> None:
    assert stamp(datetime(2023, 3, 24, 14, 5, tzinfo=UTC)) == "2023-03-24T14:05:00Z"
