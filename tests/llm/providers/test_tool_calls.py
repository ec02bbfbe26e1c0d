"""What the calls of a tool come to as the text of an answer, and how that text is read."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.providers.hosted import ToolCall, text_of_calls
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Rejected
from tests.build import response
from tests.structured.asking import ORDER

VALID = '{"side": "BUY", "qty": 1.50}'
ANYTHING: dict[str, Any] = {"type": "object"}
NAMES = st.sampled_from(["answer", "Answer", "buy", ""])
CALLS = st.lists(st.builds(ToolCall, NAMES, st.sampled_from([VALID, "{}", "", "}]", f"}}] {VALID}", '"'])))


def test_single_call_input_is_text_verbatim() -> None:
    written = '{"qty": 1.50, "qty": 1.5e0}\n'

    assert text_of_calls([ToolCall("answer", written)]) == (written, "")


@pytest.mark.parametrize(
    "calls",
    [
        [ToolCall("answer", VALID), ToolCall("answer", '{"side": "SELL", "qty": 9}')],
        [ToolCall("answer", VALID), ToolCall("answer", VALID)],
        [ToolCall("buy", VALID)],
        [ToolCall("answer", VALID), ToolCall("buy", "{}")],
    ],
)
@pytest.mark.parametrize("schema", [ORDER, ANYTHING])
@pytest.mark.parametrize("workflow", PRESETS)
def test_unexpected_calls_are_always_rejected(
    workflow: Any, schema: dict[str, Any], calls: list[ToolCall]
) -> None:
    text, tool_called = text_of_calls(calls)
    outcome = read(response(text, tool_called=tool_called), schema, PRESETS[workflow].output)

    assert isinstance(outcome, Rejected)


@given(CALLS)
def test_several_calls_are_reported_as_json(calls: list[ToolCall]) -> None:
    text, tool_called = text_of_calls(calls)

    assert bool(tool_called) is (len(calls) != 1 or calls[0].name != "answer")
    if len(calls) != 1:
        assert json.loads(text) == [{"name": call.name, "arguments": call.arguments} for call in calls]
        assert not re.fullmatch(r"[a-zA-Z0-9_-]+", tool_called)
