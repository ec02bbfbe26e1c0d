"""The envelope: what enters which hash, and what survives the wire."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.canonical import CanonicalError, canonical_bytes, sha256_hex
from agentic_trading.llm import (
    DeterminismLevel,
    EnvelopeWorkflow,
    EvidenceItem,
    LLMBudget,
    LLMEnvelope,
    LLMProvider,
    OutputPolicy,
    ResponseFormat,
    RetryPolicy,
    SafetyConstraints,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def asked(**changes: Any) -> LLMEnvelope:
    """Return an envelope with everything set, but for `changes`."""
    fields: dict[str, Any] = {
        "envelope_id": "e-1",
        "trace_id": "t-1",
        "instructions": "Judge the trend.",
        "context": {"symbol": "BTCUSDT", "close": 42500.5},
        "retrieved_evidence": [
            EvidenceItem(
                evidence_id="E1", source="bars", content={"rsi": 62.3}, retrieved_at=NOON, available_at=NOON
            )
        ],
        "created_at": NOON,
        "as_of": NOON,
        "model": "claude-sonnet-5-5",
    }
    return LLMEnvelope(**{**fields, **changes})


def evidence(**changes: Any) -> list[EvidenceItem]:
    return [
        EvidenceItem(**{
            "evidence_id": "E1",
            "source": "bars",
            "content": {"rsi": 62.3},
            "retrieved_at": NOON,
            "available_at": NOON,
            **changes,
        })
    ]


SEMANTIC: dict[str, Any] = {
    "instructions": "Judge the range.",
    "context": {"symbol": "BTCUSDT", "close": 42500.6},
    "tools_allowed": ["quote"],
    "expected_output_schema": {"type": "object"},
    "response_format": ResponseFormat.TEXT,
    "provider": LLMProvider.OPENAI,
    "model": "claude-opus-5-5",
    "temperature": 0.5,
    "effort": "low",
    "prompt_version": "v2",
    "as_of": LATER,
    "output_policy": OutputPolicy(answers_read=1),
    "budget": LLMBudget(max_output_tokens=100),
}
INCIDENTAL: dict[str, Any] = {
    "envelope_id": "e-2",
    "trace_id": "t-2",
    "causation_id": "c",
    "parent_envelope_id": "p",
    "idempotency_key": "k",
    "tenant_id": "other",
    "created_at": LATER,
    "deadline": LATER,
    "context_as_of": NOON,
    "priority": 9,
    "subject": "BTCUSDT",
    "step": "cmt",
    "occurrence": 3,
    "workflow": EnvelopeWorkflow.ANALYSIS,
    "agent_id": "a",
    "agent_type": "b",
    "safety_constraints": SafetyConstraints(require_json=True),
    "determinism": DeterminismLevel.GREEDY,
    "retry_policy": RetryPolicy(max_retries=1),
    "must_understand": ["as_of"],
    "schema_version": "1.1",
    "budget": LLMBudget(max_cost_nusd=5, max_input_tokens=9, max_calls_per_day=2, max_trace_calls=3),
    "some_later_field": {"x": 1},
}
HASHES = {"request_hash", "envelope_hash"}


def test_every_field_is_semantic_or_incidental() -> None:
    covered = SEMANTIC.keys() | INCIDENTAL.keys() | HASHES | {"retrieved_evidence"}

    assert covered == set(LLMEnvelope.model_fields) | {"some_later_field"}


@pytest.mark.parametrize("field", SEMANTIC)
def test_semantic_field_changes_request_hash(field: str) -> None:
    assert asked(**{field: SEMANTIC[field]}).request_hash != asked().request_hash


@pytest.mark.parametrize("change", [{"source": "book"}, {"content": {"rsi": 62.4}}, {"available_at": None}])
def test_semantic_evidence_field_changes_request_hash(change: dict[str, Any]) -> None:
    assert asked(retrieved_evidence=evidence(**change)).request_hash != asked().request_hash


def test_thinking_budget_changes_request_hash() -> None:
    assert asked(budget=LLMBudget(thinking_budget=1)).request_hash != asked().request_hash


@pytest.mark.parametrize("field", INCIDENTAL)
def test_incidental_field_keeps_request_hash(field: str) -> None:
    changed = asked(**{field: INCIDENTAL[field]})

    assert changed.request_hash == asked().request_hash
    assert changed.envelope_hash != asked().envelope_hash


@pytest.mark.parametrize("change", [{"evidence_id": "mine"}, {"retrieved_at": LATER}])
def test_incidental_evidence_field_keeps_request_hash(change: dict[str, Any]) -> None:
    assert asked(retrieved_evidence=evidence(**change)).request_hash == asked().request_hash


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.decimals(allow_nan=False, allow_infinity=False, places=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)
contexts = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6), json_values, max_size=4
)


@given(contexts, contexts)
def test_request_hash_follows_canonical_context(
    one: dict[str, Any],
    other: dict[str, Any],
) -> None:
    turned = dict(reversed(one.items()))

    assert LLMEnvelope(instructions="x", context=one).request_hash == (
        LLMEnvelope(instructions="x", context=turned).request_hash
    )
    assert (canonical_bytes(one) == canonical_bytes(other)) == (
        LLMEnvelope(instructions="x", context=one).request_hash
        == LLMEnvelope(instructions="x", context=other).request_hash
    )


@given(contexts, json_values)
@example({}, 2.0**64)  # a whole number that C readers round
def test_envelope_round_trip_is_byte_identical(context: dict[str, Any], content: Any) -> None:
    sent = asked(context=context, retrieved_evidence=evidence(content=content), some_later_field=[1, "x"])

    read = LLMEnvelope.from_wire(sent.wire)

    assert read == sent
    assert read.wire == sent.wire
    assert read.is_intact


def test_wire_is_canonical_with_checksum_last() -> None:
    envelope = asked()
    fields = orjson.loads(envelope.wire)

    checksum = fields.pop("envelope_hash")

    assert list(orjson.loads(envelope.wire))[-1] == "envelope_hash"
    assert checksum == envelope.envelope_hash
    assert canonical_bytes(fields) + b"" == envelope.wire[: envelope.wire.rindex(b',"envelope_hash"')] + b"}"


def test_reserialized_envelope_checksum_still_matches() -> None:
    fields = orjson.loads(asked().wire)
    respelled = orjson.dumps(dict(reversed(fields.items())), option=orjson.OPT_INDENT_2)

    assert LLMEnvelope.from_wire(respelled).is_intact


@pytest.mark.parametrize("spot", [10, 200, -40])
def test_flipped_byte_breaks_checksum_or_json(spot: int) -> None:
    raw = bytearray(asked().wire)
    raw[spot] = raw[spot] ^ 1

    try:
        intact = LLMEnvelope.from_wire(bytes(raw)).is_intact
    except (ValidationError, CanonicalError):
        intact = False

    assert not intact


def test_forged_nan_raises_when_checked() -> None:
    raw = asked().wire.replace(b"42500.5", b"NaN")

    with pytest.raises(CanonicalError, match="nan"):
        _ = LLMEnvelope.from_wire(raw).is_intact


def test_loaded_envelope_keeps_written_hashes() -> None:
    raw = asked().wire.replace(asked().request_hash.encode(), b"rk1:" + b"0" * 64)

    assert LLMEnvelope.from_wire(raw).request_hash == "rk1:" + "0" * 64


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "step"),
        ((), "determinism"),
        (("budget",), "max_calls_per_day"),
        (("output_policy",), "require_sentinel"),
        (("retry_policy",), "max_s"),
        (("retrieved_evidence", 0), "available_at"),
    ],
)
def test_field_unknown_to_writer_keeps_checksum(path: tuple[str | int, ...], name: str) -> None:
    fields = orjson.loads(asked().wire)
    part = fields
    for place in path:
        part = part[place]
    del part[name]
    del fields["envelope_hash"]
    checksum = sha256_hex(b"agentic/envelope/v1\0", canonical_bytes(fields))[:16]
    turned = dict(reversed([*fields.items(), ("envelope_hash", checksum)]))

    for read in (LLMEnvelope.from_wire(orjson.dumps(turned)), LLMEnvelope.model_validate(turned)):
        assert read.is_intact
        assert orjson.loads(read.wire) == turned
        assert LLMEnvelope.from_wire(read.wire).is_intact
        assert read.model_copy().is_intact
        assert name in str(read.model_copy().wire)


def test_empty_checksum_is_computed() -> None:
    built = asked(envelope_hash="")

    assert built == asked()
    assert built.wire == asked().wire


def test_request_hash_covers_policy_as_written() -> None:
    fields = orjson.loads(asked().wire)
    del fields["output_policy"]["require_sentinel"]

    read = LLMEnvelope.model_validate(fields)

    assert orjson.loads(read.output_policy.given_wire) == fields["output_policy"]
    assert read.compute_request_hash() != asked().request_hash


@pytest.mark.parametrize("part", ["budget", "safety_constraints", "output_policy"])
def test_unknown_restriction_is_refused(part: str) -> None:
    fields = orjson.loads(asked().wire)
    fields[part]["max_lots"] = 1

    with pytest.raises(ValidationError, match="max_lots"):
        LLMEnvelope.from_wire(orjson.dumps(fields))


def test_changed_copy_recomputes_hashes() -> None:
    envelope = asked()

    copy = envelope.model_copy(update={"context": {"symbol": "ETHUSDT"}})

    assert copy.request_hash == asked(context={"symbol": "ETHUSDT"}).request_hash
    assert copy.is_intact
    assert envelope.model_copy() == envelope


def test_context_is_detached_plain_json() -> None:
    mine: dict[str, Any] = {"price": Decimal("1.50"), "levels": (1, 2)}
    envelope = asked(context=mine)

    mine["price"] = Decimal(9)

    assert envelope.context == {"price": "1.50", "levels": [1, 2]}


def test_envelope_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        asked().model = "other"  # type: ignore[misc]


def test_envelope_defaults_match_field_reference() -> None:
    envelope = LLMEnvelope(instructions="x")

    assert (envelope.causation_id, envelope.tenant_id, envelope.agent_id, envelope.model) == (
        "",
        "default",
        "",
        "",
    )
    assert (envelope.workflow, envelope.provider) == (EnvelopeWorkflow.GENERAL, LLMProvider.ANTHROPIC)
    assert (envelope.context, envelope.retrieved_evidence, envelope.tools_allowed) == ({}, [], [])
    assert (envelope.expected_output_schema, envelope.temperature) == ({}, 0.0)
    assert envelope.response_format is ResponseFormat.JSON
    assert (envelope.budget, envelope.retry_policy) == (LLMBudget(), RetryPolicy())
    assert (envelope.as_of, envelope.context_as_of, envelope.deadline) == (None, None, None)
    assert envelope.idempotency_key == envelope.envelope_id
    assert len(envelope.envelope_hash) == 16
    assert len({LLMEnvelope(instructions="x").envelope_id, envelope.envelope_id, envelope.trace_id}) == 3
