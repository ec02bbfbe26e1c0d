"""What an envelope holds cannot be changed, however deep, and is in all else the plain JSON that it was given."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel

from agentic_trading.canonical import to_json_value
from agentic_trading.llm import Event, LLMEnvelope
from tests.build import envelope, event
from tests.llm.test_json_data import contents


def whole_envelope(held: Any) -> LLMEnvelope:
    """Return an envelope with `held` wherever JSON may stand, in fields of a newer release too."""
    return envelope(
        context={"a": held},
        retrieved_evidence=[{"evidence_id": "E1", "source": "bars", "content": held, "later": held}],
        tools_allowed=["look"],
        must_understand=["context"],
        expected_output_schema={"enum": [held]},
        retry_policy={"later": held},
        later=held,
    )


def containers_of(value: Any) -> Iterator[list[Any] | dict[str, Any]]:
    """Yield every list and dict in a value, itself among them."""
    if isinstance(value, BaseModel):
        fields = [*type(value).model_fields, "model_extra", "evidence_json", "requested_evidence"]
        for name in fields:
            yield from containers_of(getattr(value, name, None))
    elif isinstance(value, list | dict):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers_of(inner)


CHANGES: dict[type, list[Callable[[Any], object]]] = {
    list: [
        lambda held: held.append(1),
        lambda held: held.extend([1]),
        lambda held: held.insert(0, 1),
        lambda held: held.pop(),
        lambda held: held.remove(1),
        lambda held: held.clear(),
        lambda held: held.sort(),
        lambda held: held.reverse(),
        lambda held: held.__setitem__(0, 1),
        lambda held: held.__delitem__(0),
        lambda held: held.__iadd__([1]),
        lambda held: held.__imul__(2),
    ],
    dict: [
        lambda held: held.clear(),
        lambda held: held.pop("a"),
        lambda held: held.popitem(),
        lambda held: held.setdefault("b", 1),
        lambda held: held.update(b=1),
        lambda held: held.__setitem__("b", 1),
        lambda held: held.__delitem__("a"),
        lambda held: held.__ior__({"b": 1}),
    ],
}

WAYS: dict[str, Callable[[LLMEnvelope], LLMEnvelope]] = {
    "built": lambda built: built,
    "read": lambda built: LLMEnvelope.from_wire(built.wire),
    "validated": lambda built: LLMEnvelope.model_validate(built.model_dump()),
    "derived": lambda built: built.model_copy(),
    "copied": copy.copy,
    "deepcopied": copy.deepcopy,
    "pickled": lambda built: pickle.loads(pickle.dumps(built)),  # noqa: S301 - our own bytes
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_in_an_envelope_can_be_changed(way: str) -> None:
    built = whole_envelope([{"deep": [{}]}, []])
    wire, hashes = built.wire, (built.request_hash, built.envelope_hash)

    had = WAYS[way](built)

    for held in containers_of(had):
        for change in CHANGES[list if isinstance(held, list) else dict]:
            with pytest.raises(TypeError, match=r"cannot be changed: .* build another"):
                change(held)
    assert had == built
    assert (had.wire, had.is_intact) == (wire, True)
    assert (had.request_hash, had.envelope_hash) == hashes


@given(contents)
def test_what_is_frozen_is_equal_to_what_was_given_and_can_be_had_unfrozen(held: Any) -> None:
    for had in (whole_envelope(held), LLMEnvelope.from_wire(whole_envelope(held).wire)):
        mine = to_json_value(had.context)
        mine["a"] = [mine["a"]]

        assert had.context == {"a": to_json_value(held)}
        assert had.model_copy(update={"context": mine}).context == {"a": [to_json_value(held)]}
        assert {type(each) for each in containers_of(had.model_dump())} <= {dict, list}


def test_what_an_event_holds_cannot_be_changed() -> None:
    recorded = event(body={"legs": [{"side": "buy"}]})

    for had in (recorded, Event.from_wire(recorded.wire)):
        for held in containers_of(had.body):
            with pytest.raises(TypeError, match="cannot be changed"):
                held.clear()
