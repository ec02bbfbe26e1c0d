"""Whatever a model writes, only a valid answer says something."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.client.response import ANSWER_SCHEMA, parse_llm_response


@given(st.text())
def test_parse_llm_response_never_raises(raw: str) -> None:
    parsed = parse_llm_response(raw)

    assert parsed.raw_response == raw
    assert parsed.is_valid is (parsed.error is None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(ANSWER_SCHEMA["properties"], JSON)))
def test_invalid_answer_has_empty_fields(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields)

    parsed = parse_llm_response(raw)

    if parsed.is_valid:
        assert parsed.conclusion == fields["conclusion"]
        assert parsed.confidence == fields.get("confidence")
        assert parsed.next_action == fields.get("next_action", "finalize")
    elif parsed.violations:
        assert (parsed.conclusion, parsed.reasoning, parsed.files, parsed.sub_tasks) == ("", "", [], [])
        assert (parsed.should_continue, parsed.should_ask_user, parsed.display_text) == (False, False, raw)
