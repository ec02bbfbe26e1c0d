"""Results, interactions and events: exact numbers, one cost, and what comes back from the wire."""

import zipfile
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agentic_trading.llm import (
    Event,
    FailureKind,
    FailureReason,
    LLMBudgetExhaustedError,
    LLMCallError,
    LLMEnvelope,
    LLMInteraction,
    LLMResponseValidationError,
    LLMResult,
    Usage,
)
from agentic_trading.llm.result import AttemptTrace, Stage, Violation
from tests.build import interaction

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(seconds=-30))])
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
decoded = st.recursive(
    st.none() | st.booleans() | st.integers() | text | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def result(**changes: Any) -> LLMResult:
    return LLMResult(**{"envelope_id": "e-1", "timestamp": NOON, **changes})


def failed(kind: FailureKind, **changes: Any) -> LLMResult:
    reason = FailureReason(category=kind, description="why")
    return result(success=False, failure=reason, **changes)


def test_result_defaults_match_field_reference() -> None:
    plain = LLMResult(envelope_id="e")

    assert (plain.raw_output, plain.parsed_output, plain.validation_passed) == ("", {}, False)
    assert (plain.validation_errors, plain.latency_ms, plain.attempt_number) == ([], 0.0, 1)
    assert (plain.error, plain.success, plain.cost_usd, plain.cost_nusd) == (None, True, 0.0, 0)
    assert len(plain.output_hash) == 16
    assert not plain.actionable


@given(
    latency_ms=st.floats(min_value=0, allow_infinity=False),
    raw_output=st.text(),
    dispatched_at=st.none() | st.datetimes(timezones=ZONES).filter(lambda moment: 1 < moment.year < 9999),
    wrong=st.floats() | st.decimals(allow_nan=False) | text,
    extra=st.dictionaries(st.sampled_from(["later", "newer"]), st.floats() | text, max_size=1),
)
def test_result_wire_matches_pydantic_output(
    latency_ms: float, raw_output: str, dispatched_at: datetime | None, wrong: Any, extra: dict[str, Any]
) -> None:
    violation = Violation(path="$", keyword="type", message="wrong", actual=wrong)
    reading = AttemptTrace(
        parser="P", transport="prompted", verdict=Stage.SCHEMA_VALIDATION, errors=(violation,)
    )

    recorded = failed(
        FailureKind.TIMEOUT, latency_ms=latency_ms, raw_output=raw_output, dispatched_at=dispatched_at,
        reading=reading, **extra,
    )  # fmt: skip

    spelled = TypeAdapter(LLMResult).dump_json(recorded, exclude={"parsed_output"})
    assert recorded.wire == spelled[:-1] + b',"parsed_output":{}}'


def test_either_cost_sets_the_other() -> None:
    assert result(cost_usd=0.0315).cost_nusd == 31_500_000
    assert result(cost_nusd=5).cost_usd == 5e-9

    with pytest.raises(ValidationError, match="disagree"):
        result(cost_nusd=5, cost_usd=1.0)


@given(st.integers(0, 2**53))
def test_cost_round_trips_to_nano_dollar(nusd: int) -> None:
    assert LLMResult.model_validate_json(result(cost_nusd=nusd).wire).cost_nusd == nusd


@pytest.mark.parametrize(
    ("changes", "actionable"),
    [
        ({"validation_passed": True}, True),
        ({"validation_passed": False}, False),
        ({"validation_passed": True, "success": False}, False),
        ({"validation_passed": True, "in_doubt": True}, False),
        ({"validation_passed": True, "actionable": False}, False),
    ],
)
def test_only_validated_answer_is_actionable(changes: dict[str, Any], *, actionable: bool) -> None:
    assert result(**changes).actionable is actionable


DERIVED = {"cost_usd", "actionable", "output_hash"}
CALLS = Path(__file__).parents[1] / "golden" / "log" / "calls.jsonl"
SHIPPED = Path(__file__).parents[2] / "agentic_trading" / "desk" / "recordings"


def golden_results() -> list[LLMResult]:
    """Return every result that is on record in the golden log and in a shipped recording."""
    with zipfile.ZipFile(SHIPPED / "smollm2.zip") as recording:
        logs = [recording.read(name) for name in recording.namelist() if name.endswith(".jsonl")]
    lines = CALLS.read_bytes().splitlines() + b"".join(logs).splitlines()
    records = map(orjson.loads, lines)
    return [LLMResult.from_wire(orjson.dumps(each["result"])) for each in records if "result" in each]


@pytest.mark.parametrize("changes", [
    {}, {"stop_reason": "half \ud83d"}, {"raw_output": "\ud83d é"}, {"provider_request_id": "é"}, {"cost_nusd": 2**53},
])  # fmt: skip
def test_made_result_equals_validated_result(changes: dict[str, Any]) -> None:
    results = golden_results()

    for recorded in results:
        usage = recorded.usage
        names = LLMResult.model_fields.keys() - vars(usage).keys() - DERIVED
        fields = {name: getattr(recorded, name) for name in LLMResult.model_fields if name in names} | changes
        made, validated = LLMResult.made(usage, **fields), LLMResult(**vars(usage), **fields)

        assert made == validated
        assert (made.wire, repr(made)) == (validated.wire, repr(validated))
        assert made.model_fields_set == validated.model_fields_set
    assert len(results) > 10


@pytest.mark.parametrize("changes", [{"cost_nusd": 2**53 + 1}, {"model": None}, {"stop_reason": 5}])
def test_made_result_refuses_invalid_adapter_data(changes: dict[str, Any]) -> None:
    said = {
        "stop_reason": "",
        "model": "m",
        "provider_request_id": "",
        "provider_response_id": "",
        "tool_called": "",
    }
    counted = {"success": True, "cost_nusd": 0, "reserved_nusd": 0, "reserved_tokens": 0}

    with pytest.raises(ValidationError):
        LLMResult.made(Usage(), envelope_id="e-1", raw_output="{}", **said | counted | changes)


def test_parsed_float_keeps_written_digits() -> None:
    given_floats = result(parsed_output={"price": 42500.1, "legs": [1, 2.5]})

    assert given_floats.parsed_output == {"price": Decimal("42500.1"), "legs": [1, Decimal("2.5")]}
    assert b'"price":42500.1' in given_floats.wire


@given(st.dictionaries(text, decoded, max_size=4))
def test_interaction_round_trip_is_identical(parsed: dict[str, Any]) -> None:
    envelope = LLMEnvelope(instructions="x", context={"f": 0.1, "s": "1.50"})
    kept = LLMInteraction(envelope=envelope, result=result(parsed_output=parsed), stored_at=NOON)

    read = LLMInteraction.from_wire(kept.wire)

    assert read == kept
    assert read.wire == kept.wire


def test_big_integer_context_round_trips_intact() -> None:
    kept = interaction(context={"supply": 2**69})

    read = LLMInteraction.from_wire(kept.wire)

    assert read.envelope.context == {"supply": 2**69}
    assert read.envelope.is_intact


KEPT = interaction(
    parsed_output={"parsed_output": {"price": Decimal("0.10")}, "size": Decimal("1e-7")},
    context={"x": {"envelope_hash": "0123456789abcdef"}, "result": {"parsed_output": 0.5}},
)


@given(st.integers(0, len(KEPT.wire) - 1), st.binary(max_size=2))
def test_altered_record_reads_same_when_reformatted(place: int, put: bytes) -> None:
    raw = KEPT.wire[:place] + put + KEPT.wire[place + 1 :]
    assume(_read(b" " + raw) == _read(b" " + raw))  # no random id in the place of one that has lost its name

    assert _read(raw) == _read(b" " + raw)


@pytest.mark.parametrize("raw", [
    KEPT.wire.replace(b'"stored_at"', b'"envelope":%b,"stored_at"' % KEPT.envelope.wire.replace(b"close", b"c")),
    KEPT.wire.replace(b'"stored_at"', b'"x":{"parsed_output":{"price":0.5}},"stored_at"'),
    KEPT.wire.replace(b'"size":', b'"size":NaN,"s":'),
    KEPT.wire.replace(b'{"in', b'{"result":{"in', 1).replace(b',"result"', b'},"r"'),
    b'["interaction_id","envelope":%b,"result","stored_at"]' % KEPT.envelope.wire,
    KEPT.wire.replace(b'"parsed_output":{"p', b'"later":1,"parsed_output":{"p', 1),
])  # fmt: skip
def test_extra_members_read_same_when_reformatted(raw: bytes) -> None:
    assert _read(raw) == _read(b" " + raw)


def _read(raw: bytes) -> object:
    try:
        return LLMInteraction.from_wire(raw)
    except ValueError as e:
        return type(e), str(e).partition(":")[0]


def test_unknown_fields_survive_round_trip() -> None:
    envelope = LLMEnvelope.model_validate({"instructions": "x", "later": {"a": [1]}})
    kept = LLMInteraction.model_validate({
        "envelope": envelope,
        "result": {"envelope_id": "e", "later": "y"},
        "stored_at": NOON,
        "venue": {"z": 1},
    })

    read = LLMInteraction.from_wire(kept.wire)

    assert read == kept
    assert (read.model_extra, read.envelope.model_extra) == ({"venue": {"z": 1}}, {"later": {"a": [1]}})
    assert read.envelope.is_intact


def test_repeated_attempt_keeps_interaction_id() -> None:
    envelope = LLMEnvelope(instructions="x")
    one, again = (LLMInteraction(envelope=envelope, result=result()) for _ in range(2))
    second = LLMInteraction(envelope=envelope, result=result(attempt_number=2))

    assert one.interaction_id == again.interaction_id != second.interaction_id
    assert one.trace_id == envelope.trace_id


def test_success_is_returned_failure_is_raised() -> None:
    good = result(validation_passed=True)

    assert good.raise_for_failure() is good
    with pytest.raises(LLMBudgetExhaustedError, match=r"^why$") as unknown:
        failed(FailureKind.BUDGET_EXHAUSTED).raise_for_failure()
    assert (unknown.value.scope, unknown.value.unit, unknown.value.asked, unknown.value.left) == (
        "",
        "",
        None,
        None,
    )
    with pytest.raises(LLMResponseValidationError, match=r"\$.x: too small"):
        failed(FailureKind.PARSING_ERROR, validation_errors=["$.x: too small"]).raise_for_failure()
    with pytest.raises(LLMCallError, match="timeout: why") as caught:
        failed(FailureKind.TIMEOUT).raise_for_failure()
    with pytest.raises(LLMCallError, match="it broke"):
        result(success=False, error="it broke").raise_for_failure()
    assert caught.value.reason.category == "timeout"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"reading": AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE, decode="guess")},
            "guessed",
        ),
        ({"in_doubt": True}, "not actionable"),
        ({"validation_passed": False}, "not actionable"),
        ({"actionable": False, "error": "for display"}, "for display"),
    ],
)
def test_unactionable_result_raises_validation_error(changes: dict[str, Any], why: str) -> None:
    doubtful = result(**{"validation_passed": True, "parsed_output": {"action": "buy"}, **changes})

    with pytest.raises(LLMResponseValidationError, match=why):
        doubtful.raise_for_failure()


def test_usage_sums_input_and_output_tokens() -> None:
    usage = result(
        input_tokens=100,
        cache_read_tokens=5000,
        cache_write_5m_tokens=1500,
        cache_write_1h_tokens=500,
        output_tokens=700,
        thinking_tokens=200,
    ).usage

    assert usage == Usage(
        input_tokens=100,
        cache_read_tokens=5000,
        cache_write_5m_tokens=1500,
        cache_write_1h_tokens=500,
        output_tokens=700,
        thinking_tokens=200,
    )
    assert (usage.total_input_tokens, usage.total_tokens) == (7100, 7800)


def test_event_round_trip_is_identical() -> None:
    event = Event.model_validate({
        "kind": "fill",
        "id": "f-1",
        "trace_id": "t",
        "tenant_id": "acme",
        "causation_id": "i",
        "as_of": NOON,
        "time": NOON,
        "body": {"price": Decimal("42500.10"), "quantity": "0.5"},
        "venue": "paper",
    })

    read = Event.from_wire(event.wire)

    assert read == event
    assert read.body["price"] == "42500.10"
    assert read.wire == event.wire


def test_event_without_kind_is_refused() -> None:
    with pytest.raises(ValidationError, match="kind"):
        Event(kind="", id="x", trace_id="t", tenant_id="default", time=NOON)


@pytest.mark.parametrize("first", [None, 0, 7])
def test_first_cost_serialized_only_if_set(first: int | None) -> None:
    kept = result(cost_nusd=0, first_cost_nusd=first)

    assert (b'"first_cost_nusd"' in kept.wire) is (first is not None)
    assert LLMResult.from_wire(kept.wire) == kept
    assert LLMResult.from_wire(kept.wire).wire == kept.wire
    assert kept.original_cost_nusd == (first or 0)


@pytest.mark.parametrize(
    ("fields", "is_sent"),
    [
        ({}, False),
        ({"input_tokens": 1}, True),
        ({"cache_read_tokens": 1}, True),
        ({"cost_nusd": 1}, True),
        ({"unmetered": "no usage"}, True),
        ({"in_doubt": True}, True),
        ({"reading": AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)}, True),
    ],
)
def test_answered_or_charged_attempt_is_sent(fields: dict[str, Any], *, is_sent: bool) -> None:
    free = {"cost_nusd": 0, "input_tokens": 0, "output_tokens": 0}

    assert interaction(**{**free, **fields}).result.counts_as_sent is is_sent
