"""The canonical spelling: one value, one text."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import (
    CanonicalError,
    canonical_bytes,
    canonical_bytes_and_value,
    ecmascript_number,
    exact_bytes,
    exact_value,
    sha256_hex,
    to_json_value,
    utc_text,
)

ascii_keys = st.text(st.characters(max_codepoint=127), max_size=8)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
safe_floats = (
    st.floats(1e-5, 1e16, exclude_max=True) | st.floats(-1e16, -1e-5, exclude_min=True) | st.just(0.0)
)
rfc_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | safe_floats | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ascii_keys, inner, max_size=4),
    max_leaves=12,
)
looks_alike = st.sampled_from(['a:2.0,"b', "-0.0]", "null", "1e-7", "five-minute", "1e+16}", ".0,"])
number_starts = st.sampled_from(['"', '":', '\\":', ",", "[", "{", ":", " ", "", "\\", "-", "1"])
number_like = st.sampled_from([
    "1.0",
    "-0.0",
    "1e5",
    "2.5e-7",
    "1e+16",
    "-3.0",
    "3e1f",
    "null",
    "NaN",
    "12.0.0",
])
number_ends = st.sampled_from([",", "]", "}", '"', " ", "", ", 1.5", '\\",', ":"])
look_alikes = (
    st.lists(st.tuples(number_starts, number_like, number_ends).map("".join), min_size=1, max_size=3).map(
        "".join
    )
    | st.uuids().map(str)
    | st.binary(max_size=20).map(sha256_hex)
)
any_finite = st.floats(allow_nan=False, allow_infinity=False)
values_with_look_alikes = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | any_finite
    | st.integers(-(2**54), 2**54).map(float)
    | st.sampled_from([0.0, -0.0, 1e-5, 1e16, 1e-7, 9.1e15, 42_500.0])
    | look_alikes,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(look_alikes | ascii_keys, inner, max_size=4)
    ),
    max_leaves=12,
)
exact_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def one_by_one(value: Any) -> str:
    """Spell `value` without the encoder in C: an oracle that knows nothing of the short cuts."""
    match value:
        case dict():
            members = (f"{one_by_one(key)}:{one_by_one(value[key])}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(one_by_one, value)) + "]"
        case float():
            return ecmascript_number(value)
        case int() if not isinstance(value, bool):
            return str(value)
        case _:
            return orjson.dumps(value).decode()


@given(rfc_values)
def test_canonical_bytes_match_rfc_8785(value: Any) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)


@given(st.lists(rfc_values, max_size=4), st.lists(looks_alike, min_size=1))
def test_number_like_text_is_unchanged(values: list[Any], texts: list[str]) -> None:
    value = {"a text of more than thirty-two characters": texts, "values": values}

    assert canonical_bytes(value) == rfc8785.dumps(value)
    assert to_json_value(value) == value


@given(st.dictionaries(text, looks_alike | text, max_size=4))
def test_object_of_texts_is_serialized_like_any_other(value: dict[str, str]) -> None:
    spelled, read = canonical_bytes_and_value(value)

    assert spelled == one_by_one(value).encode()
    assert list(read.items()) == sorted(value.items())


@given(values_with_look_alikes)
def test_number_like_text_does_not_change_serialization(
    value: Any,
) -> None:
    spelled, read = canonical_bytes_and_value(value)

    assert spelled == canonical_bytes(value) == one_by_one(value).encode()
    assert repr(read) == repr(json.loads(spelled))


@given(any_finite)
def test_floats_are_serialized_like_ecmascript(number: float) -> None:
    for surroundings in ({}, {"a text": "that is no number, and as long as a line"}):
        value: Any = {"x": number, **surroundings}

        assert canonical_bytes(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("number", [1e-7, -1e-7, 2e22, -2e22, 1.5e-9, -1.5e-9, 1.25e300, -1.25e300])
@pytest.mark.parametrize("beside", ["82536aa523e4b", "default:3e1f,12e5", "claude-4.1e7", "", "[-3e5"])
def test_exponents_are_serialized_in_any_position(number: float, beside: str) -> None:
    for value in (
        [number, beside],
        [beside, number],
        {"a": number, "b": beside},
        {"a": [[number]], "b": beside},
    ):
        assert canonical_bytes(value) == one_by_one(value).encode()


@given(any_finite)
def test_float_text_round_trips(number: float) -> None:
    assert float(ecmascript_number(number)) == number


@given(st.dictionaries(text, rfc_values, max_size=5))
def test_canonical_bytes_round_trip(value: dict[str, Any]) -> None:
    spelled = canonical_bytes(value)

    assert canonical_bytes(orjson.loads(spelled)) == spelled


@given(st.dictionaries(text, rfc_values, min_size=2, max_size=5))
def test_key_order_does_not_matter(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))

    assert canonical_bytes(turned) == canonical_bytes(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")])
def test_non_json_number_is_refused_with_path(number: Any) -> None:
    with pytest.raises(CanonicalError, match=r"\$\.bars\[1\]\.close"):
        canonical_bytes({"bars": [{"close": 1.5}, {"close": number}]})


@pytest.mark.parametrize("key", [1, None, 1.5, (1, 2), b"x", True])
def test_non_string_key_is_refused_with_path(key: Any) -> None:
    with pytest.raises(CanonicalError, match=r"\$\.levels: the key"):
        canonical_bytes({"levels": {key: 1}})


@pytest.mark.parametrize(
    "value", [{1, 2}, b"bytes", object(), 1j, datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)]
)
def test_unsupported_type_error_lists_allowed_types(value: Any) -> None:
    with pytest.raises(CanonicalError, match=r"\$\.x: .*allowed are str, int, finite float"):
        canonical_bytes({"x": value})


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(CanonicalError, match="lone surrogate"):
        canonical_bytes({"x": [text]})
    with pytest.raises(CanonicalError, match="lone surrogate"):
        canonical_bytes({text: 1})


def test_overlong_integer_is_refused() -> None:
    assert canonical_bytes([10**20]) == b"[100000000000000000000]"

    with pytest.raises(CanonicalError, match="21 digits"):
        canonical_bytes([10**21])


def test_excessive_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]

    with pytest.raises(CanonicalError, match="128 levels"):
        canonical_bytes(deep)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (-0.0, b"0"),
        (2.0, b"2"),
        ({"x": 3.0, "y": 4.5}, b'{"x":3,"y":4.5}'),
        (Decimal("1.50"), b'"1.50"'),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), b'"2026-01-02T01:04:05Z"'),
        (datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC), b'"2026-01-02T03:04:05.000060Z"'),
        (None, b"null"),
        ({"e1": None}, b'{"e1":null}'),
        ((1, "null"), b'[1,"null"]'),
    ],
)
def test_each_value_has_a_canonical_form(value: Any, spelled: bytes) -> None:
    assert canonical_bytes(value) == spelled


def test_enum_is_serialized_by_value() -> None:
    class Layer(StrEnum):
        TREND = "trend"

    assert canonical_bytes({Layer.TREND: Layer.TREND}) == b'{"trend":"trend"}'


def test_to_json_value_matches_the_wire() -> None:
    value = {"price": Decimal("42500.10"), "pair": ("BTC", "USDT"), "at": datetime(2026, 1, 2, tzinfo=UTC)}

    assert to_json_value(value) == {
        "price": "42500.10",
        "pair": ["BTC", "USDT"],
        "at": "2026-01-02T00:00:00Z",
    }


@given(st.dictionaries(text, exact_values, max_size=5))
def test_exact_bytes_keep_every_digit(value: dict[str, Any]) -> None:
    back = exact_value(exact_bytes(value))

    assert back == value
    assert exact_bytes(back) == exact_bytes(value)


@pytest.mark.parametrize("value", [{"x": 1.5j}, {"x": [Decimal("NaN")]}, {"x": {1: 2}}, {"x": "\ud800"}])
def test_exact_bytes_refuse_non_json_values(value: Any) -> None:
    with pytest.raises(CanonicalError, match=r"\$\.x"):
        exact_bytes(value)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_non_finite_number_after_null_is_refused(odd: float) -> None:
    value = {
        "position": None,
        "candles": [{"close": 42_500.0}, {"close": odd}],
        "symbol": "BTCUSDT",
        "limit": 1,
    }

    with pytest.raises(CanonicalError, match=r"\$\.candles\[1\]\.close"):
        canonical_bytes(value)


def test_repeated_hour_has_distinct_utc_times() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    assert [utc_text(first), utc_text(first.replace(fold=1))] == [
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:30:00Z",
    ]


def test_utc_text_converts_to_utc() -> None:
    assert utc_text(datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=-4)))) == "2026-07-01T16:00:00Z"
