"""A cut answer is seen by what the provider says and by where the text ends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Usage
from agentic_trading.structured.decode import is_open, truncation_sign
from tests.build import response

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("reason", ["max_tokens", "length", "model_context_window_exceeded"])
def test_a_stop_reason_that_means_cut_is_a_sign(reason: str) -> None:
    assert reason in truncation_sign(response(stop_reason=reason), None)


@pytest.mark.parametrize(
    ("used", "cap", "cut"), [(99, 100, False), (100, 100, True), (101, 100, True), (10**9, None, False)]
)
def test_an_answer_as_long_as_the_cap_counts_as_cut(used: int, cap: int | None, cut: bool) -> None:  # noqa: FBT001 - a parameter of the table above
    assert bool(truncation_sign(response(usage=Usage(output_tokens=used)), cap)) is cut


@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1) | st.lists(VALUES), st.data())
def test_every_proper_beginning_of_an_object_or_array_is_open(value: object, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    end = data.draw(st.integers(1, len(text) - 1))

    assert is_open(text[:end])
    assert not is_open(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words",
        '"a string"',
        '{"a": "}"} and a "quote',
        '{"a": "\\""}',
        "[1] then [2]",
        'he said "no',
    ],
)
def test_a_text_whose_brackets_are_closed_is_not_open(text: str) -> None:
    assert not is_open(text)


@pytest.mark.parametrize(
    "text", ['[1] then {"a', '{"a": "b\\', '{"a": "b\\"}', "Here it is: {", '{"a": [1, 2}']
)
def test_a_text_that_ends_inside_something_is_open(text: str) -> None:
    assert is_open(text)
