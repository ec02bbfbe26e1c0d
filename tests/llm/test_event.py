"""The bytes of an event: one spelling, whether its body was spelled before or read."""

from datetime import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm import Event

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2.0, -0.0, 1e16, 1e-7, "1.0, 1.5", "3e1f", '":1e5', "null"])
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.timezones())  # noqa: DTZ001
events = st.fixed_dictionaries(
    {
        "kind": texts.filter(bool),
        "id": texts,
        "trace_id": texts,
        "time": moments,
        "body": st.dictionaries(texts, values, max_size=4),
    },
    optional={
        "causation_id": texts,
        "tenant_id": texts,
        "as_of": st.none() | moments,
        "extra_of_a_newer_writer": values,
    },
)


def as_one_value(event: Event) -> bytes:
    """Spell an event without the bytes that its body has already."""
    return canonical_bytes({**event.model_dump(), **(event.model_extra or {})})


@given(events)
def test_an_event_is_spelled_as_one_canonical_value(fields: dict[str, Any]) -> None:
    event = Event(**fields)

    assert event.wire == as_one_value(event)


@given(events)
def test_an_event_that_was_read_is_spelled_as_it_was_written(fields: dict[str, Any]) -> None:
    written = Event(**fields).wire

    read = Event.from_wire(written)

    assert read.wire == as_one_value(read) == written
