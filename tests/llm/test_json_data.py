"""Plain JSON inside a model: apart from the caller's, and spelled once."""

import copy
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from agentic_trading.canonical import canonical_bytes, to_json_value
from agentic_trading.llm import EnvelopeBuilder, LLMEnvelope
from agentic_trading.llm.fields import (
    CanonicalObject,
    FrozenObject,
    JsonData,
    JsonModel,
    JsonObject,
    json_of,
)


class Kept(JsonModel, frozen=True):
    """A model with both kinds of plain JSON."""

    data: JsonData = None
    members: JsonObject = Field(default_factory=dict)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
contents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(contents)
def test_kept_data_serializes_like_the_input(content: Any) -> None:
    kept = Kept(data=content, members={"content": content})

    assert json_of(kept.data) == canonical_bytes(content)
    assert json_of(kept.members) == canonical_bytes({"content": content})
    assert kept.data == to_json_value(content)


def test_object_is_serialized_once() -> None:
    kept = Kept(data={"x": 1}, members={"x": 1})

    assert json_of(kept.data) is json_of(kept.data)
    assert json_of(kept.members) is json_of(kept.members)


@given(st.dictionaries(texts, contents, max_size=3))
@example({"maximum": 2.0**64})  # read as an integer, which orjson would round
def test_schema_is_kept_like_other_objects(schema: dict[str, Any]) -> None:
    built = LLMEnvelope(instructions="x", context=schema, expected_output_schema=schema)
    read = LLMEnvelope.from_wire(built.wire)

    for each in built, read:
        assert repr(each.expected_output_schema) == repr(each.context)
        assert each.output_schema_json == each.context_json
        assert isinstance(each.expected_output_schema, FrozenObject)


def test_identical_schemas_share_one_object() -> None:
    schemas: list[dict[str, Any]] = [{"maximum": 1}, {"maximum": 1.0}, {"maximum": True}]

    first, second = (
        [LLMEnvelope(instructions="x", expected_output_schema=one) for one in schemas] for _ in "12"
    )

    kept = [[each.expected_output_schema for each in envelopes] for envelopes in (first, second)]
    assert all(one is other for one, other in zip(*kept, strict=True))
    assert list(map(repr, kept[0])) == ["{'maximum': 1}", "{'maximum': 1}", "{'maximum': True}"]


def test_non_json_types_become_json_types() -> None:
    given = {
        "price": Decimal("1.50"),
        "pair": ("BTC", "USDT"),
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "of": 2.0,
    }

    kept = Kept(members=given).members

    assert kept == {"price": "1.50", "pair": ["BTC", "USDT"], "at": "2026-01-02T00:00:00Z", "of": 2}
    assert type(kept["of"]) is int


def test_caller_mutation_does_not_reach_model() -> None:
    mine: dict[str, Any] = {"levels": [1, 2]}
    kept = Kept(data=mine, members=mine)

    mine["levels"].append(3)

    assert kept.data == kept.members == {"levels": [1, 2]}


@pytest.mark.parametrize("value", [[1], "text", 1, None])
def test_non_object_members_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="valid dictionary"):
        Kept(members=value)


def test_parsed_json_reserializes_canonically() -> None:
    kept = Kept.model_validate_json('{"data": {"b": 2.0, "a": 1}, "members": {"b": 2.0, "a": 1}}')

    assert json_of(kept.data) == json_of(kept.members) == b'{"a":1,"b":2}'


def test_canonical_object_copy_keeps_bytes() -> None:
    known = CanonicalObject({"b": [1], "a": 2}, b'{"a":2,"b":[1]}')

    for same in (copy.copy(known), copy.deepcopy(known), pickle.loads(pickle.dumps(known))):  # noqa: S301 - our own bytes
        assert same == known
        assert type(same) is CanonicalObject
        assert same.json == known.json
    assert type({**known}) is dict
    assert type(known.copy()) is dict


def test_changed_evidence_copy_has_new_bytes() -> None:
    envelope = EnvelopeBuilder().with_instructions("Judge.").add_evidence("bars", {"rsi": 62.3}).build()
    (item,) = envelope.retrieved_evidence

    other = item.model_copy(update={"content": {"rsi": 62.4}})
    changed = envelope.model_copy(update={"retrieved_evidence": [other]})

    assert changed.evidence_json == [b'{"rsi":62.4}']
    assert changed.request_hash != envelope.request_hash
    assert LLMEnvelope.from_wire(changed.wire).is_intact
