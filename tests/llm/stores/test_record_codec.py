"""What a record's bytes say is what the record said, for every record."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.llm import Event, RecordError
from agentic_trading.llm.log_line import index_row_of, read_line
from agentic_trading.llm.store import ChainHead
from agentic_trading.llm.stores.record_codec import id_of, identity_of, interactions, record_of, write_line
from tests.build import event, interaction

fractions = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda number: not str(number).lstrip("-").isdigit()
)
exact_numbers = (
    st.integers(-(10**40), 10**40) | fractions
)  # a Decimal without a point or an exponent is read as int
answers = st.recursive(
    st.none() | st.booleans() | st.text() | exact_numbers,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
floats = st.floats(-(2.0**53), 2.0**53)
contexts = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**53), 2**53) | floats,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=30)
@given(
    parsed=st.dictionaries(st.text(), answers, max_size=3),
    text=st.text(),
    context=st.dictionaries(st.text(), contexts, max_size=3),
)
def test_interaction_round_trips_digit_for_digit(
    parsed: dict[str, Any], text: str, context: dict[str, Any]
) -> None:
    answered = interaction(parsed_output=parsed, raw_output=text, context=context, instructions=f"x{text}")

    line, _ = write_line(answered.wire, ChainHead())
    read = record_of(read_line(line).record)

    (again,) = interactions([read])
    assert again == answered
    assert repr(again.result.parsed_output) == repr(answered.result.parsed_output)
    assert again.wire == answered.wire


@settings(max_examples=30)
@given(
    body=st.dictionaries(st.text(), contexts, max_size=3),
    extra=st.dictionaries(st.sampled_from(["x", "y"]), contexts),
)
def test_event_line_round_trip_is_equal(body: dict[str, Any], extra: dict[str, Any]) -> None:
    recorded = event(body=body, **extra)

    line, _ = write_line(recorded.wire, ChainHead())

    assert record_of(read_line(line).record) == recorded


def test_interaction_is_recognized_in_any_order() -> None:
    answered = interaction()
    fields = b'"interaction_id":"%b",' % answered.interaction_id.encode()

    turned = answered.wire.replace(fields, b"")[:-1] + b"," + fields[:-1] + b"}"

    assert record_of(turned) == answered
    assert index_row_of(turned) == index_row_of(answered.wire)


@pytest.mark.parametrize("raw", [b"{}", b"[]", b'{"kind":"k"}', b'{"interaction_id":"1"}', b"no json"])
def test_unknown_record_type_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        record_of(raw)


def test_record_id_matches_interaction_or_event() -> None:
    answered, recorded = interaction(), event(id="e")

    assert (id_of(answered), id_of(recorded)) == (answered.interaction_id, "e")


def test_interaction_facts_hold_keys_and_cost() -> None:
    answered = interaction(
        trace_id="t", causation_id="c", envelope_id="e", subject="BTCUSDT", occurrence=3, attempt_number=2, model="",
        agent_id="a", workflow="planning", tenant_id="fund", parsed_output={"p": Decimal("1.0")}, success=False,
    )  # fmt: skip

    facts = index_row_of(answered.wire)

    assert (facts.id, facts.kind, facts.trace_id, facts.causation_id) == (
        answered.interaction_id,
        "interaction",
        "t",
        "c",
    )
    assert (facts.envelope_id, facts.request_hash, facts.occurrence) == (
        "e",
        answered.envelope.request_hash,
        3,
    )
    assert (facts.agent, facts.workflow, facts.provider, facts.tenant) == (
        "a",
        "planning",
        "anthropic",
        "fund",
    )
    assert (facts.attempt, facts.success, facts.cost_nusd, facts.day) == (2, False, 600_000, "2026-01-02")


def test_event_facts_keep_only_text_subject() -> None:
    named, unnamed = event(body={"subject": "BTCUSDT"}), event(body={"subject": ["BTCUSDT"]})

    assert (index_row_of(named.wire).subject, index_row_of(unnamed.wire).subject) == ("BTCUSDT", "")
    assert (index_row_of(named.wire).kind, index_row_of(named.wire).attempt) == ("bar.closed", 0)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b'"input_tokens":10', b'"input_tokens":9223372036854775808', "input_tokens"),
        (b'"input_tokens":10', b'"input_tokens":"10"', "input_tokens"),
        (b'"workflow":', b'"workflows":', "workflow"),
        (b'"context":{', b'"context":{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b",", "nested too deeply"),
        (b'"tenant_id":', b'"tenant_id":1,"ignored":', "tenant_id"),
        (b'"interaction_id":"', b'"interaction_id":null,"ignored":"', "interaction_id"),
    ],
    ids=["too large", "text for a number", "missing", "nested", "number for a text", "null for an id"],
)
def test_facts_that_no_index_can_hold_are_refused(before: bytes, after: bytes, reason: str) -> None:
    raw = interaction(input_tokens=10).wire
    assert before in raw

    with pytest.raises(ValueError, match=reason):
        index_row_of(raw.replace(before, after, 1))


def test_event_with_interaction_id_is_refused() -> None:
    odd = Event.from_wire(event().wire[:-1] + b',"interaction_id":"x"}')

    with pytest.raises(RecordError, match=r"it has an interaction_id .*\. Leave it out"):
        identity_of(odd)
