"""The input of a call is cut out of a message as it was written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.providers.anthropic.messages import calls_in
from agentic_trading.llm.providers.hosted import ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def message(*inputs: str) -> str:
    """Return a message that calls the answer tool with each of `inputs`, between blocks of text."""
    said = '{"text":"}],\\"input\\":{}","type":"text"}'
    calls = ",".join(f'{{ "type":"tool_use","input":{one} ,"name":"answer"}} ,{said}' for one in inputs)
    return f'{{"usage":{{"content":[]}},\n"content" : [{said},{calls}] , "stop_reason":"tool_use"}}'


@given(
    written=st.lists(st.tuples(JSON, st.sampled_from([None, 0, 1, "\t"])), min_size=1, max_size=3),
    plain=st.booleans(),
)
def test_tool_input_round_trips_verbatim(written: list[tuple[Any, Any]], *, plain: bool) -> None:
    inputs = [json.dumps(value, indent=indent, ensure_ascii=plain) for value, indent in written]

    found = calls_in(message(*inputs).encode("utf-8", "surrogatepass"))

    assert found == [ToolCall("answer", one) for one in inputs]


@pytest.mark.parametrize(
    "written",
    [
        '{"size": 1.50, "size": 1.5}',
        '{"n": 123456789012345678901234567890, "x": 0.1000000000000000055511151231257827}',
        '{"n": ' + "9" * 5000 + "}",
        '{"x": 1e999, "y": -0}',
        '{"a": "\\ud83d"}',
    ],
)
def test_details_lost_by_parsing_are_kept(written: str) -> None:
    assert calls_in(message(written).encode()) == [ToolCall("answer", written)]


def test_utf16_message_is_read() -> None:
    assert calls_in(message('{"a":"ü"}').encode("utf-16")) == [ToolCall("answer", '{"a":"ü"}')]


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "[]",
        "5",
        '{"content":5}',
        '{"content":[5]}',
        '{"content":[],"content":[]}',
        '{"content":[{"type":"tool_use","name":"answer"}]}',
        '{"content":[{"type":"tool_use","name":"answer","input":{},"input":{"a":1}}]}',
        '{"content":[{"type":"text","type":"tool_use"}]}',
        '{"content"',
        '{"content":[',
        '{"content":[{"type" "text"}]}',
    ],
)
def test_malformed_or_ambiguous_message_is_refused(nonsense: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        calls_in(nonsense.encode())


def test_message_without_calls_gives_empty_list() -> None:
    assert calls_in(b'{"content":[{"type":"text","text":"hi"}]}') == []
