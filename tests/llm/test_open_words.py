"""Words of records that this release does not know are read, kept and shown; they are refused where we write."""

from collections.abc import Iterator
from enum import EnumType
from typing import Annotated, Any, Literal, get_args, get_origin

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from agentic_trading.canonical import canonical_bytes
from agentic_trading.client.frames import KINDS as RECURSION
from agentic_trading.desk.decisions import KINDS as DESK
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.governance.rebuild import LedgerRebuild
from agentic_trading.llm import (
    EnvelopeBuilder,
    LLMEnvelope,
    LLMInteraction,
    LLMResult,
    NoDecision,
)
from agentic_trading.llm.errors import UnreadableBodyError
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import Event, Kinds
from agentic_trading.llm.fields import Open, OpenName, UnknownWord
from agentic_trading.llm.result import AttemptTrace, Stage
from tests.build import NOW, interaction
from tests.event_bodies import BODIES, as_event, sample
from tools.schemas import EVENT_BODIES, published

STORED: tuple[type[BaseModel], ...] = (LLMInteraction, NoDecision, *EVENT_BODIES)
OPEN_MARK = get_args(Open[str])[1]
NEW = "a_new_word"


def closed_words(annotation: Any, path: str, seen: set[type], marks: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the path of every closed vocabulary below an annotation."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if OPEN_MARK in marks:
        return
    if origin is Literal or (isinstance(annotation, EnumType) and not issubclass(annotation, OpenName)):
        yield path
    elif origin is Annotated:
        yield from closed_words(parts[0], path, seen, parts[1:])
    elif hasattr(annotation, "__pydantic_fields__") and annotation not in seen:
        seen.add(annotation)
        for name, field in annotation.__pydantic_fields__.items():
            place = f"{annotation.__name__}.{name}"
            yield from closed_words(field.annotation, place, seen, tuple(field.metadata))
    else:
        for part in parts:
            yield from closed_words(part, path, seen)


@pytest.mark.parametrize("model", STORED, ids=lambda model: model.__name__)
def test_stored_model_has_no_closed_vocabulary(model: type[BaseModel]) -> None:
    assert sorted(closed_words(model, model.__name__, set())) == []


def test_vocabulary_walk_finds_closed_words() -> None:
    class Inner(BaseModel):
        word: dict[str, Literal["a"] | None]
        stage: list[Stage]
        name: Open[Stage] | None

    class Outer(BaseModel):
        inner: tuple[Inner, ...]

    assert sorted(closed_words(Outer, "Outer", set())) == ["Inner.stage", "Inner.word"]


def with_new_words(value: Any) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one text or name in it replaced by a new word."""
    if isinstance(value, str):
        yield NEW
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: changed} for changed in with_new_words(item))
            yield {NEW if key == name else key: kept for key, kept in value.items()}
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in with_new_words(item))


def is_closed(e: ValidationError | UnreadableBodyError) -> bool:
    """Whether a value was refused because it is no word of a vocabulary."""
    if isinstance(e, UnreadableBodyError):
        e = e.__cause__ if isinstance(e.__cause__, ValidationError) else ValidationError("", [])
    return all(error["type"] in {"literal_error", "enum"} for error in e.errors())


def kinds_of(event: Event) -> Kinds[Any]:
    return next(
        kinds for kinds in (DESK, RECURSION, GOVERNANCE, LOG) if event.kind in {b.KIND for b in kinds.bodies}
    )


def with_unknown_words(body: Any) -> Iterator[Event]:
    """Yield copies of an event, each with an unknown word in a closed vocabulary, which a reader of money refuses."""
    event = as_event(body)
    for changed in with_new_words(orjson.loads(event.body_json)):
        newer = event.model_copy(update={"body": changed})
        try:
            kinds_of(event).must(newer)
        except UnreadableBodyError as e:
            if is_closed(e):
                yield newer


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.KIND)
def test_new_event_word_survives_plain_reading(body: Any) -> None:
    for newer in with_unknown_words(body):
        read = kinds_of(newer).of(newer)

        assert read is not None
        assert NEW in canonical_bytes(read.model_dump(mode="json")).decode()


def test_events_have_closed_vocabularies() -> None:
    assert sum(1 for body in BODIES for _ in with_unknown_words(body)) > 50


def answered(**fields: Any) -> LLMInteraction:
    envelope = EnvelopeBuilder().for_general().with_instructions("Advise.").build()
    envelope = envelope.model_copy(update={"effort": "low"})
    reading = AttemptTrace(parser="1", transport="text", verdict=Stage.DONE)
    result = LLMResult(envelope_id=envelope.envelope_id, reading=reading, dispatched_at=NOW, **fields)
    return LLMInteraction(envelope=envelope, result=result)


def test_new_interaction_word_round_trips() -> None:
    fields = orjson.loads(answered().wire)
    found = 0
    for changed in with_new_words(fields):
        try:
            LLMInteraction.model_validate(changed)
        except ValidationError as e:
            if is_closed(e):
                found += 1
                raw = orjson.dumps(changed)
                assert orjson.loads(LLMInteraction.from_wire(raw).wire) == changed
    assert found == 15


@pytest.mark.parametrize(
    ("name", "word"), [("workflow", NEW), ("response_format", "rhymed"), ("effort", "most")]
)
def test_request_with_new_word_is_rejected(name: str, word: str) -> None:
    fields = {**orjson.loads(answered().envelope.wire), name: word}

    with pytest.raises(ValidationError, match="Input should be '"):
        LLMEnvelope.from_wire(orjson.dumps(fields))


def test_result_constructor_refuses_new_word() -> None:
    with pytest.raises(ValidationError, match="Input should be 'live' or 'recorded'"):
        LLMResult(envelope_id="e-1", served_from=NEW)  # type: ignore[arg-type]  # a word that mypy refuses too


def test_record_copy_keeps_word_refuses_others() -> None:
    raw = answered(served_from="live").wire.replace(b'"served_from":"live"', b'"served_from":"a_new_word"')
    result = LLMInteraction.from_wire(raw).result

    copied = result.model_copy(update={"latency_ms": 2.0})

    assert copied.served_from == NEW
    assert type(copied.served_from) is UnknownWord
    with pytest.raises(ValidationError, match="Input should be 'live' or 'recorded'"):
        result.model_copy(update={"served_from": "another"})


def test_rebuild_charges_result_from_unknown_source() -> None:
    paid = interaction()
    fields = orjson.loads(paid.wire)
    fields["result"] |= {
        "served_from": NEW,
        "cost_nusd": 70,
        "cost_usd": 7e-8,
        "dispatched_at": "2026-01-02T00:00:00Z",
    }
    rebuild = LedgerRebuild(paid.envelope.tenant_id, "paper")

    rebuild.read(LLMInteraction.from_wire(orjson.dumps(fields)))

    assert sum(entry.charged.nusd for entry in rebuild.entries()) == 70


def test_rebuild_refuses_unknown_reservation_state() -> None:
    event = sample("reservation.expired")
    newer = event.model_copy(update={"body": {**event.body, "state": NEW}})

    with pytest.raises(UnreadableBodyError, match="Input should be 'reserved'"):
        LedgerRebuild("default", "paper").read(newer)


def test_record_schemas_open_request_schema_closed() -> None:
    schemas = published()

    served = schemas["llm_result.v1.json"]["properties"]["served_from"]
    assert (served["type"], served["examples"]) == ("string", ["live", "recorded"])
    for name, schema in schemas.items():
        if name.removesuffix(".json") in {"llm_interaction.v1", "order.filled.v1", "analysis.assessed.v1"}:
            assert b'"enum"' not in orjson.dumps(schema)
    assert schemas["llm_envelope.v1.json"]["properties"]["workflow"]["enum"]
    assert b'"enum"' in orjson.dumps(schemas["cmt_assessment.v2.json"])
