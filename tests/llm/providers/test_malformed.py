"""Texts are broken in the ways in which models break them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.fault_injection import malform

TEXT = '{"a": "x, \\"y\\": z", "b": [1, {"c": null}], "d": 2.5}'
CHANCE = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("way", "where", "text"),
    [
        (0.0, 0.0, '{"a": "x, \\"y\\": z"  "b": [1, {"c": null}], "d": 2.5}'),
        (0.0, 0.9, '{"a": "x, \\"y\\": z", "b": [1, {"c": null}]  "d": 2.5}'),
        (0.25, 0.0, '{a: "x, \\"y\\": z", "b": [1, {"c": null}], "d": 2.5}'),
        (0.25, 0.9, '{"a": "x, \\"y\\": z", "b": [1, {"c": null}], d: 2.5}'),
        (0.5, 0.0, '{"a": 0, "b": [1, {"c": null}], "d": 2.5}'),
        (0.5, 0.5, '{"a": "x, \\"y\\": z", "b": [1, {"c": "n/a"}], "d": 2.5}'),
        (0.5, 0.9, '{"a": "x, \\"y\\": z", "b": [1, {"c": null}], "d": "n/a"}'),
        (0.75, 0.0, TEXT + "\n\nI hope this helps."),
    ],
)
def test_each_way_breaks_expected_place(way: float, where: float, text: str) -> None:
    assert malform(TEXT, way=way, where=where) == text


@given(CHANCE, CHANCE, st.text())
def test_text_without_quotes_is_always_changed(way: float, where: float, text: str) -> None:
    assert malform(text, way=way, where=where) != text or '"' in text


@given(CHANCE, CHANCE)
def test_broken_object_never_equals_original(way: float, where: float) -> None:
    try:
        assert json.loads(malform(TEXT, way=way, where=where)) != json.loads(TEXT)
    except json.JSONDecodeError:
        assert way < 0.5 or way >= 0.75
