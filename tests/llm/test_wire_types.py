"""What a stranger wrote can be kept, and what no log could keep is refused when it is made."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from agentic_trading.llm import (
    AttemptTrace,
    FailureKind,
    FailureReason,
    Fix,
    LLMInteraction,
    LLMResult,
    Stage,
    Violation,
)
from tests.build import NOW, envelope, event, interaction, result

HALF = "\ud83d"
TEXTS = (
    "model", "model_requested", "stop_reason", "provider_request_id", "provider_response_id", "error",
    "price_book", "service_tier", "speed", "inference_geo",
)  # fmt: skip
COUNTS = (
    "input_tokens", "output_tokens", "thinking_tokens", "cache_read_tokens", "cache_write_5m_tokens",
    "cache_write_1h_tokens", "cost_nusd", "reserved_nusd", "attempt_number",
)  # fmt: skip


def test_lone_surrogate_answer_stays_invalid_json() -> None:
    answered = interaction(raw_output='{"a": "' + HALF + '", "b": "é\U0001f4c8"}')

    read = LLMInteraction.from_wire(answered.wire)

    assert read == answered
    assert read.result.raw_output == '{"a": "\0", "b": "é\U0001f4c8"}'
    assert (
        read.result.output_hash == LLMResult(envelope_id="e", raw_output=read.result.raw_output).output_hash
    )
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(read.result.raw_output)


@pytest.mark.parametrize("field", TEXTS)
def test_lone_surrogate_text_gets_replacement_character(field: str) -> None:
    answered = interaction(result=result(**{field: f"a{HALF}é"}))

    assert getattr(LLMInteraction.from_wire(answered.wire).result, field) == "a\ufffdé"


def test_lone_surrogate_diagnostics_are_kept() -> None:
    violation = Violation(
        path=f"$.{HALF}",
        keyword="enum",
        message=HALF,
        actual={HALF: [HALF, 1]},
        allowed=("up", HALF),
        suggestion="up",
    )
    trace = AttemptTrace(
        parser="p",
        transport="prompted",
        verdict=Stage.JSON_PARSE,
        fixes=(Fix(kind="k", where=HALF, before=HALF, after=HALF),),
        errors=(violation,),
    )
    failure = FailureReason(category=FailureKind.PARSING_ERROR, description=HALF, technical_details=HALF)
    answered = interaction(
        result=result(reading=trace, failure=failure, validation_errors=[HALF], success=False)
    )

    read = LLMInteraction.from_wire(answered.wire)

    assert read.result.validation_errors == ["\ufffd"]
    assert read.result.failure is not None
    assert read.result.failure.description == "\ufffd"
    assert read.result.reading is not None
    assert read.result.reading.fixes == trace.fixes
    assert read.result.reading.errors[0].actual == {"\ufffd": ["\ufffd", 1]}


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [-1, 2**53 + 1, 2**70])
def test_inexact_result_count_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValidationError, match=field):
        result(**{field: value})


@pytest.mark.parametrize(
    "change",
    [{"occurrence": 2**53 + 1}, {"occurrence": 2**63}, {"priority": 2**31 + 1}, {"priority": -(2**31) - 1}],
)
def test_envelope_count_beyond_index_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        envelope(**change)
    with pytest.raises(ValidationError, match=next(iter(change))):
        envelope().from_wire(orjson.dumps({**orjson.loads(envelope().wire), **change}))


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "2026-01-02T00:00:00"]
)
def test_timestamp_outside_utc_range_is_refused(moment: str) -> None:
    at = datetime.fromisoformat(moment)

    makers: list[tuple[Callable[..., Any], str]] = [
        (envelope, "as_of"),
        (envelope, "deadline"),
        (event, "time"),
        (result, "finished_at"),
        (interaction, "stored_at"),
    ]

    for make, field in makers:
        with pytest.raises(ValidationError, match=field):
            make(**{field: at})


def test_extreme_utc_timestamps_are_kept() -> None:
    early = datetime(1, 1, 2, tzinfo=UTC)

    kept = interaction(as_of=early, deadline=datetime(9999, 12, 30, tzinfo=UTC), finished_at=NOW)

    assert LLMInteraction.from_wire(kept.wire) == kept
