"""Rounded numbers are short and stable, and never anything but numbers."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.prompts import price, ratio, significant, stamp

finite = st.floats(min_value=-1e300, max_value=1e300)


@given(finite, st.integers(1, 12))
def test_rounding_is_idempotent(value: float, digits: int) -> None:
    once = significant(value, digits)

    assert significant(once, digits) == once


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_rounded_number_is_near_original(value: float) -> None:
    assert price(value) == pytest.approx(value, rel=5.1e-8)
    assert ratio(value) == pytest.approx(value, rel=5.1e-5)


def test_minus_zero_serialized_as_zero() -> None:
    assert json.dumps(significant(-0.0, 5)) == "0.0"


def test_missing_number_stays_missing() -> None:
    assert (price(None), ratio(None)) == (None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1.7976e308])
def test_nonfinite_number_is_rejected(value: float) -> None:
    with pytest.raises(ValueError, match="Allowed: a finite number"):
        significant(value, 2)


def test_timestamp_has_utc_seconds() -> None:
    assert stamp(datetime(2023, 3, 24, 14, 5, tzinfo=UTC)) == "2023-03-24T14:05:00Z"
