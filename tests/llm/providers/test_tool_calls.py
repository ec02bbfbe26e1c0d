"""What the calls of a tool come to as the text of an answer, and how that text is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.providers.hosted import ToolCall, answer_text
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Rejected
from tests.build import response
from tests.structured.asking import ORDER

VALID = '{"side": "BUY", "qty": 1.50}'
ANYTHING: dict[str, Any] = {"type": "object"}
NAMES = st.sampled_from(["answer", "Answer", "buy", ""])
CALLS = st.lists(st.builds(ToolCall, NAMES, st.sampled_from([VALID, "{}", "", "}]", f"}}] {VALID}", '"'])))


def test_the_input_of_the_one_call_is_the_text_as_it_was_written() -> None:
    written = '{"qty": 1.50, "qty": 1.5e0}\n'

    assert answer_text([ToolCall("answer", written)]) == written


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
def test_other_calls_are_read_as_no_object_under_any_policy(
    workflow: Any, schema: dict[str, Any], calls: list[ToolCall]
) -> None:
    outcome = read(response(answer_text(calls)), schema, PRESETS[workflow].output)

    assert isinstance(outcome, Rejected)


@given(CALLS)
def test_other_calls_are_all_reported_and_none_breaks_out_of_the_list(calls: list[ToolCall]) -> None:
    if len(calls) == 1 and calls[0].name == "answer":
        return

    assert json.loads(answer_text(calls)) == [
        {"name": call.name, "arguments": call.arguments} for call in calls
    ]
