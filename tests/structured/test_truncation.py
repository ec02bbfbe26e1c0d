"""A cut answer is seen by what the provider says and by where the text ends."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Stage, Usage
from agentic_trading.structured.decode import is_open, truncation_sign
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Rejected
from tests.build import response
from tests.structured.asking import ORDER, REASKED, SEALED

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "reason",
    [
        "max_tokens",
        "length",
        "model_context_window_exceeded",
        "MAX_TOKENS",
        " Length ",
        "model_length",
        "error",
        "OTHER",
        "pause_turn",
        "a new word",
    ],
)
def test_incomplete_stop_reason_is_truncation_sign(reason: str) -> None:
    assert reason in truncation_sign(response(stop_reason=reason), None)


@pytest.mark.parametrize(
    "reason", ["stop", "STOP", "end_turn", "stop_sequence", "tool_use", "Tool_Calls", "eos_token", ""]
)
def test_complete_stop_reason_is_no_sign(reason: str) -> None:
    assert not truncation_sign(response(stop_reason=reason), None)


@given(st.text(min_size=1).filter(str.strip))
def test_unknown_stop_reason_is_never_accepted(reason: str) -> None:
    outcome = read(response('{"side":"BUY","qty":1}', stop_reason=f"x{reason}"), ORDER, REASKED)

    assert isinstance(outcome, Rejected)
    assert outcome.trace.verdict is Stage.TRUNCATED


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"side":"BUY","qty":1}', Stage.DONE),
        ('Here:\n```json\n{"side":"BUY","qty":1,}\n```', Stage.DONE),
        ('{"side":"BUY","qty":1} and', Stage.TRUNCATED),
        ('{"side":"BUY","qty":1', Stage.TRUNCATED),
        ("plain", Stage.JSON_PARSE),
    ],
)
def test_missing_stop_reason_requires_object_end(text: str, verdict: Stage) -> None:
    assert read(response(text, stop_reason=""), ORDER, REASKED).trace.verdict is verdict


@pytest.mark.parametrize("changes", [{"transport": "text"}, {"needs_stop_reason": True}])
def test_text_and_execution_require_stop_reason(changes: dict[str, Any]) -> None:
    outcome = read(response('{"side":"BUY","qty":1}', stop_reason=""), ORDER, REASKED, **changes)

    assert outcome.trace.verdict is Stage.TRUNCATED


def test_sentinel_does_not_replace_stop_reason() -> None:
    outcome = read(response('{"side":"BUY","qty":1,"end":"ok"}', stop_reason=""), ORDER, SEALED)

    assert outcome.trace.verdict is Stage.TRUNCATED


@pytest.mark.parametrize("reason", ["SAFETY", "Content_Filter", "RECITATION", "guardrail_intervened"])
def test_filter_stop_reason_is_refusal(reason: str) -> None:
    outcome = read(response('{"side":"BUY","qty":1}', stop_reason=reason), ORDER, REASKED)

    assert outcome.trace.verdict is Stage.REFUSAL


@pytest.mark.parametrize(
    ("used", "cap", "cut"), [(99, 100, False), (100, 100, True), (101, 100, True), (10**9, None, False)]
)
def test_answer_at_cap_counts_as_cut(used: int, cap: int | None, cut: bool) -> None:  # noqa: FBT001 - a parameter of the table above
    assert bool(truncation_sign(response(usage=Usage(output_tokens=used)), cap)) is cut


@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1) | st.lists(VALUES), st.data())
def test_every_proper_prefix_is_open(value: object, data: st.DataObject) -> None:
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
def test_balanced_text_is_not_open(text: str) -> None:
    assert not is_open(text)


@pytest.mark.parametrize(
    "text", ['[1] then {"a', '{"a": "b\\', '{"a": "b\\"}', "Here it is: {", '{"a": [1, 2}']
)
def test_text_ending_inside_value_is_open(text: str) -> None:
    assert is_open(text)
