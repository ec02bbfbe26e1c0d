"""What an envelope holds cannot be changed, however deep, and is in all else the plain JSON that it was given."""

import copy
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import get_annotations
from operator import attrgetter
from pkgutil import walk_packages
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_serializer, field_validator

import agentic_trading
from agentic_trading.canonical import to_json_value
from agentic_trading.llm import Event, EvidenceItem, LLMEnvelope
from agentic_trading.llm.fields import (
    CanonicalObject,
    FrozenList,
    FrozenObject,
    JsonData,
    JsonModel,
    JsonObject,
    LazyJsonData,
    LazyJsonObject,
    UnreadObject,
)
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
def test_envelope_contents_cannot_be_changed(way: str) -> None:
    built = whole_envelope([{"deep": [{}]}, []])
    wire, hashes = built.wire, (built.request_hash, built.envelope_hash)

    had = WAYS[way](built)

    for held in containers_of(had):
        for change in CHANGES[list if isinstance(held, list) else dict]:
            with pytest.raises(TypeError, match=r"cannot be changed, because .* Build another"):
                change(held)
    assert had == built
    assert (had.wire, had.is_intact) == (wire, True)
    assert (had.request_hash, had.envelope_hash) == hashes


@given(contents)
def test_frozen_data_equals_input_and_thaws(held: Any) -> None:
    for had in (whole_envelope(held), LLMEnvelope.from_wire(whole_envelope(held).wire)):
        mine = to_json_value(had.context)
        mine["a"] = [mine["a"]]

        assert had.context == {"a": to_json_value(held)}
        assert had.model_copy(update={"context": mine}).context == {"a": [to_json_value(held)]}
        assert {type(each) for each in containers_of(had.model_dump())} <= {dict, list}


@pytest.mark.parametrize("way", WAYS)
def test_every_read_returns_frozen_data(way: str) -> None:
    class Mine(BaseModel):
        held: dict[str, Any]

    built = whole_envelope([{"deep": [{}]}])
    ways_to_read: list[Callable[[LLMEnvelope], Any]] = [
        lambda had: had.context,
        attrgetter("context"),
        lambda had: dict(had)["context"],
        lambda had: Mine(held=had.context).held,
        lambda had: {**had.context},
        lambda had: [item.content for item in had.retrieved_evidence],
    ]

    for read in ways_to_read:
        held = [*containers_of(read(WAYS[way](built)))][1:]
        assert {type(each) for each in held} <= {FrozenObject, FrozenList, CanonicalObject}
        assert len(held) >= 3


def test_unread_field_is_frozen_lazily() -> None:
    built = whole_envelope([{"deep": [{}]}])
    had = LLMEnvelope.from_wire(built.wire)

    assert had.is_intact
    for each in (built, had):
        assert type(vars(each)["context"]) is UnreadObject
        assert each.context is each.context
        assert type(vars(each)["context"]) is not UnreadObject


def test_subclass_fields_are_frozen() -> None:
    class Mine(LLMEnvelope, frozen=True):
        more: JsonData = None

    built = Mine(instructions="Judge.", context={"a": [1]}, more={"b": [2]})

    assert [*Mine.model_fields] == [*LLMEnvelope.model_fields, "more"]
    assert {type(each) for held in (built.context, built.more) for each in containers_of(held)} == {
        CanonicalObject,
        FrozenList,
    }
    for name in ("context", "more"):
        assert not hasattr(Mine, name)
        with pytest.raises(ValidationError, match="frozen"):
            setattr(built, name, {})
    with pytest.raises(TypeError, match="context cannot be changed"):
        object.__setattr__(built, "context", {})


def test_subclass_hooks_receive_frozen_data() -> None:
    seen: list[Any] = []

    class Mine(LLMEnvelope, frozen=True):
        copied: Any = Field(default_factory=lambda data: seen.append(data["context"]))

        @field_validator("context")
        @classmethod
        def look(cls, value: Any) -> Any:
            seen.append(value)
            return value

        @field_validator("model")
        @classmethod
        def look_back(cls, value: str, info: ValidationInfo) -> str:
            seen.append(info.data.get("context", {}))
            return value

        @field_serializer("context")
        def spell(self, value: Any) -> Any:
            seen.append(value)
            return dict(value)

    built = Mine(instructions="Judge.", context={"a": [1]})
    for had in (built, Mine.from_wire(built.wire)):
        had.model_dump()
        seen.append(vars(had)["context"])

    found = [value for value in seen if value]
    assert len(found) >= 2 * 4
    for value in found:
        with pytest.raises(TypeError, match="cannot be changed"):
            value["a"].append(2)
    assert built.is_intact


def test_nested_json_is_frozen_at_once() -> None:
    class Mine(BaseModel, frozen=True):
        one: JsonObject | None = None
        several: list[JsonObject] = []
        named: dict[str, JsonData] = {}
        later: "tuple[Below, ...]" = ()

    class Below(BaseModel, frozen=True):
        held: JsonData = None

    Mine.model_rebuild()

    held = {"x": [1]}
    built = Mine(one=held, several=[held], named={"a": held}, later=(Below(held=held),))

    values: list[Any] = [built.one, built.several[0], built.named["a"], built.later[0].held]
    for value in values:
        with pytest.raises(TypeError, match="cannot be changed"):
            value["x"].append(2)


def test_newer_field_is_iterated_unchanged() -> None:
    newer = {"copy": 1, "wire": 2, "is_intact": 3, "json": 4}

    had = dict(LLMEnvelope.model_validate({"instructions": "Judge.", **newer}))

    assert {name: had[name] for name in newer} == newer


@pytest.mark.parametrize("size", [1, 1 << 15])
def test_schema_is_frozen_at_any_size(size: int) -> None:
    schema = {"enum": [{"of": "x" * size}]}
    built = envelope(expected_output_schema=schema)

    for had in (built, LLMEnvelope.from_wire(built.wire)):
        for held in containers_of(vars(had)["expected_output_schema"]):
            with pytest.raises(TypeError, match="cannot be changed"):
                held.clear()


def test_event_body_cannot_be_changed() -> None:
    recorded = event(body={"legs": [{"side": "buy"}]})

    for had in (recorded, Event.from_wire(recorded.wire)):
        for held in containers_of(had.body):
            with pytest.raises(TypeError, match="cannot be changed"):
                held.clear()


def test_only_freezing_models_hold_lazy_json() -> None:
    for module in walk_packages(agentic_trading.__path__, "agentic_trading."):
        import_module(module.name)
    ours = [one for one in subclasses_of(BaseModel) if one.__module__.startswith("agentic_trading.")]

    lazy = {
        (one, name)
        for one in ours
        for name, kind in get_type_hints(one, include_extras=True).items()
        if name in get_annotations(one) and is_lazy_within(kind)
    }

    assert lazy == {(LLMEnvelope, "context"), (EvidenceItem, "content"), (Event, "body")}
    assert all(issubclass(one, JsonModel) for one, _ in lazy)


def subclasses_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from subclasses_of(one)


def is_lazy_within(kind: Any) -> bool:
    """Whether a type, or one within it, is a `LazyJsonData` or a `LazyJsonObject`."""
    return kind in (LazyJsonData, LazyJsonObject) or any(map(is_lazy_within, get_args(kind)))
