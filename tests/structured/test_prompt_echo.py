"""An object that the model was shown is known again, however its members are ordered and wherever it stood."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.structured.pipeline import object_digests, value_digest
from tests.structured.test_truncation import VALUES


def shown(text: str) -> frozenset[bytes]:
    """Return the marks of what stands in a text that can be looked into."""
    marks = object_digests(text)
    assert marks is not None
    return marks


OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@given(OBJECTS, st.integers(0, 3))
def test_nested_object_is_found_in_text(value: dict[str, Any], depth: int) -> None:
    data = json.dumps(value)
    for _ in range(depth):
        data = json.dumps({"content": f"Say {data} or [{data}]"})

    assert value_digest(value) in shown(f"Data: {data}\nEnd")


@given(OBJECTS)
def test_member_order_does_not_change_digest(value: dict[str, Any]) -> None:
    assert value_digest(dict(reversed(value.items()))) == value_digest(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": {}}, {"a": []}),
    ],
)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert value_digest(one) != value_digest(other)


def test_equal_numbers_have_equal_digests() -> None:
    assert (
        value_digest({"a": Decimal("1.50")})
        == value_digest({"a": Decimal("1.5")})
        == value_digest({"a": 1.5})
    )
    assert value_digest({"a": 10}) == value_digest({"a": Decimal("1E+1")})


def test_object_with_slips_is_recognized() -> None:
    assert value_digest({"a": 1}) in shown("Say {'a': 1,} now")


@pytest.mark.parametrize("text", ["", "no object", "{a: }", '{"a": ', "[1, 2]", "{" * 100])
def test_text_without_objects_has_no_digests(text: str) -> None:
    assert shown(text) == frozenset()


@pytest.mark.parametrize("text", ["{" * 100_000, "{a} " * 1_000])
def test_complex_text_has_unknown_digests(text: str) -> None:
    assert object_digests(text) is None


def test_long_unclear_text_has_unknown_digests() -> None:
    assert object_digests("{a: '" + "x" * 100_000) is None
    assert object_digests("{a: '" + "x" * 1_000) == frozenset()


def test_deep_value_is_digested_without_error() -> None:
    deep: Any = {"a": 1}
    for _ in range(300):
        deep = [deep]

    assert value_digest({"b": deep}) in shown(json.dumps({"b": deep}))
