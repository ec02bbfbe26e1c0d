"""The bytes of an event: one spelling, whether its body was spelled before or read."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm import Event
from agentic_trading.llm.errors import UnknownKindError, UnreadableBodyError
from agentic_trading.llm.event import EventBody, Kinds
from tests.build import NOW, event

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
        "tenant_id": texts,
        "time": moments,
        "body": st.dictionaries(texts, values, max_size=4),
    },
    optional={
        "causation_id": texts,
        "as_of": st.none() | moments,
        "extra_of_a_newer_writer": values,
    },
)


def as_one_value(event: Event) -> bytes:
    """Spell an event without the bytes that its body has already."""
    return canonical_bytes({**event.model_dump(), **(event.model_extra or {})})


@given(events)
def test_event_wire_is_canonical(fields: dict[str, Any]) -> None:
    written = Event(**fields)

    assert written.wire == as_one_value(written)


@given(events)
def test_read_event_reserializes_unchanged(fields: dict[str, Any]) -> None:
    written = Event(**fields).wire

    read = Event.from_wire(written)

    assert read.wire == as_one_value(read) == written


class Weighed(EventBody, frozen=True):
    """A body with a field that came later."""

    KIND = "cargo.weighed"

    scale: str = "main"
    kilograms: int


class Loaded(EventBody, frozen=True):
    """A body without fields."""

    KIND = "cargo.loaded"


CARGO = Kinds[Weighed | Loaded](Weighed, Loaded)


def test_event_body_round_trips() -> None:
    written = Weighed(kilograms=3, scale="spare").as_event(
        event_id="w-1", trace_id="t", tenant_id="acme", time=NOW, causation_id="c", as_of=NOW
    )

    assert (written.kind, written.id, written.causation_id, written.as_of) == (
        "cargo.weighed",
        "w-1",
        "c",
        NOW,
    )
    read = Event.from_wire(written.wire)
    assert CARGO.of(read) == Weighed(kilograms=3, scale="spare")
    assert [*read.body] == [*written.body] == ["kilograms", "scale"]
    assert read.model_dump_json() == written.model_dump_json()
    assert CARGO.namespaces == {"cargo"}


def test_newer_body_fields_are_ignored() -> None:
    assert CARGO.of(event("cargo.weighed", body={"kilograms": 3, "of_a_newer_release": 1})) == Weighed(
        kilograms=3
    )


def test_foreign_kind_has_no_body() -> None:
    assert CARGO.of(event("cargo.sunk")) is None
    assert CARGO.must(event("order.filled")) is None


def test_unknown_own_kind_raises_in_must() -> None:
    with pytest.raises(
        UnknownKindError, match=r"e-1 of kind cargo\.sunk: .* Known kinds: cargo\.loaded, cargo\.weighed"
    ):
        CARGO.must(event("cargo.sunk", id="e-1"))


def test_unreadable_body_error_gives_location() -> None:
    with pytest.raises(
        UnreadableBodyError, match=r"e-1 of kind cargo\.weighed: body\.kilograms: .*cargo\.weighed\.v1"
    ):
        CARGO.of(event("cargo.weighed", id="e-1", body={"kilograms": "many"}))


def test_kind_claimed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cargo\.loaded is claimed twice"):
        Kinds[Loaded](Loaded, Loaded)
