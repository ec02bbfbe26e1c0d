"""A copy is built again: checked, and with nothing of the original's that no longer fits."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.llm import EnvelopeBuilder, Event, LLMEnvelope, LLMInteraction
from agentic_trading.llm.envelope_rules import PRESETS
from tests.build import envelope, event, interaction, result

PRESET = PRESETS[envelope().workflow]


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("budget", PRESET.budget, {"max_cost_nusd": 1, "thinking_budget": 9}),
        ("budget", PRESET.budget, {"max_cost_usd": 0.5}),
        ("safety_constraints", PRESET.safety, {"require_json": True}),
        ("output_policy", PRESET.output, {"answers_read": 3, "require_sentinel": True}),
        ("retry_policy", envelope().retry_policy, {"max_retries": 0, "later": True}),
    ],
)
def test_copied_part_round_trips_on_wire(name: str, part: Any, change: dict[str, Any]) -> None:
    envelope(**{name: part})

    copy = part.model_copy(update=change)
    sent = envelope(**{name: copy})

    read = LLMEnvelope.from_wire(sent.wire)
    assert copy != part
    assert getattr(read, name) == copy
    assert read.is_intact


def test_copied_policy_changes_request_hash() -> None:
    asked = envelope()

    eager = asked.output_policy.model_copy(update={"answers_read": 5})

    assert asked.model_copy(update={"output_policy": eager}).request_hash != asked.request_hash


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (envelope().budget, {"max_output_tokens": 0}),
        (envelope().output_policy, {"decode": "wild"}),
        (event(), {"kind": ""}),
        (result(), {"input_tokens": -1}),
        (interaction(), {"stored_at": "yesterday"}),
        (envelope(), {"occurrence": -1}),
    ],
)
def test_invalid_copy_update_is_refused(original: Any, change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        original.model_copy(update=change)


@pytest.mark.parametrize(
    "original", [envelope(later=[1]), event(later=[1]), result(later=[1]), interaction(later=[1])]
)
def test_unchanged_copy_is_byte_identical(original: Any) -> None:
    assert original.model_copy() == original
    assert original.model_copy().wire == original.wire


def test_changed_event_copy_serializes_changes() -> None:
    recorded = event(id="fill-1", body={"qty": "1"})
    assert b"fill-1" in recorded.wire

    copy = recorded.model_copy(update={"id": "fill-2", "body": {"qty": "999"}})

    assert Event.from_wire(copy.wire) == copy
    assert (copy.id, copy.body) == ("fill-2", {"qty": "999"})


def test_result_copy_recomputes_derived_fields() -> None:
    answered = result()
    assert answered.wire

    copy = answered.model_copy(update={"raw_output": "no", "success": False, "cost_usd": 0.5})

    assert (copy.actionable, copy.cost_nusd) == (False, 500_000_000)
    assert copy.output_hash == result(raw_output="no").output_hash
    assert b'"raw_output":"no"' in copy.wire
    assert answered.model_copy(update={"cost_nusd": 5}).cost_usd == 5e-9


def test_result_copy_keeps_actionable_decision() -> None:
    held_back = result(actionable=False)

    assert not held_back.model_copy(update={"latency_ms": 1.0}).actionable


def test_interaction_copy_recomputes_attempt_id() -> None:
    first = interaction()
    assert first.wire
    second = first.result.model_copy(update={"attempt_number": 2})

    copy = first.model_copy(update={"result": second})

    assert copy.interaction_id == interaction(envelope=first.envelope, attempt_number=2).interaction_id
    assert LLMInteraction.from_wire(copy.wire) == copy


def test_envelope_copy_derives_new_idempotency_key() -> None:
    asked, keyed = envelope(), envelope(idempotency_key="once")

    assert asked.model_copy(update={"envelope_id": "other"}).idempotency_key == "other"
    assert keyed.model_copy(update={"envelope_id": "other"}).idempotency_key == "once"


@pytest.mark.parametrize("later", [{}, {"later": {"a": [1]}}], ids=["known fields", "a newer one"])
@pytest.mark.parametrize(
    "read", [LLMEnvelope.model_copy, lambda sent: LLMEnvelope.from_wire(sent.wire)], ids=["built", "read"]
)
def test_asked_again_equals_rebuilt_envelope(
    read: Callable[[LLMEnvelope], LLMEnvelope], later: dict[str, Any]
) -> None:
    first = read(
        EnvelopeBuilder()
        .with_instructions("Judge.")
        .with_context({"close": 1.5})
        .build()
        .model_copy(update=later)
    )

    again, rebuilt = first.asked_again(3), first.model_copy(update={"occurrence": 3})

    assert again == rebuilt
    assert (again.wire, again.request_hash) == (rebuilt.wire, rebuilt.request_hash)
    assert again.is_intact
    assert first.occurrence == 0


@pytest.mark.parametrize(
    "model", [envelope(), result(), event(), interaction()], ids=lambda model: type(model).__name__
)
def test_pydantic_constructors_always_validate(model: Any) -> None:
    with pytest.raises(ValidationError):
        type(model).model_construct(**{**dict(model), "trace_id": 5, "envelope": 5, "envelope_id": 5})
    assert model.copy() == model
    assert model.copy() is not model


def test_deprecated_copy_recomputes_hashes() -> None:
    asked = envelope()
    assert asked.wire

    other = asked.copy(update={"model": "claude-opus-5-5"})

    assert other.is_intact
    assert other.request_hash != asked.request_hash
