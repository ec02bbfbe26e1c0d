"""What one attempt gave, put together as an `LLMResult`; plain functions, no waiting."""

from dataclasses import dataclass
from datetime import datetime

from agentic_trading.governance.determinism import level_of
from agentic_trading.governance.gate import Admission, Charge
from agentic_trading.ids import derived_id
from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.outcome import Accepted, Rejected


@dataclass(frozen=True, slots=True)
class Timing:
    """When a call left and came back, and how long it took in real milliseconds."""

    dispatched_at: datetime
    finished_at: datetime
    latency_ms: float


def answered(
    request: ModelRequest,
    response: ModelResponse,
    outcome: Accepted | Rejected,
    admission: Admission,
    charge: Charge,
    timing: Timing,
) -> LLMResult:
    """Return the result of a call that was answered, accepted or not."""
    accepted = isinstance(outcome, Accepted)
    sampling = request.temperature is not None
    return LLMResult(
        result_id=derived_id("result", request.envelope.envelope_id, request.attempt),
        envelope_id=request.envelope.envelope_id,
        timestamp=timing.finished_at,
        raw_output=_text_of(response, outcome),
        parsed_output=outcome.value if isinstance(outcome, Accepted) else {},
        validation_passed=accepted,
        validation_errors=[]
        if isinstance(outcome, Accepted)
        else [f"{v.path}: {v.message}" for v in outcome.errors],
        latency_ms=timing.latency_ms,
        **response.usage.model_dump(),
        cost_nusd=charge.cost_nusd,
        reserved_nusd=admission.amount.nusd,
        price_book=admission.price_book,
        provider=request.envelope.provider,
        model=response.model,
        model_requested=request.envelope.model,
        stop_reason=response.stop_reason,
        provider_request_id=response.provider_request_id,
        provider_response_id=response.provider_response_id,
        attempt_number=request.attempt,
        error=None if isinstance(outcome, Accepted) else outcome.failure.description,
        success=accepted,
        failure=None if isinstance(outcome, Accepted) else outcome.failure,
        reading=outcome.trace,
        determinism_level=level_of(
            request.envelope,
            admission.capability,
            sampling_applied=sampling,
            served_from="live",
        ),
        sampling_applied=sampling,
        dispatched_at=timing.dispatched_at,
        finished_at=timing.finished_at,
    )


def failed(
    envelope: LLMEnvelope,
    attempt: int,
    reason: FailureReason,
    *,
    now: datetime,
    admission: Admission | None = None,
    charge: Charge | None = None,
    timing: Timing | None = None,
    in_doubt: bool = False,
    provider_request_id: str = "",
) -> LLMResult:
    """Return the result of an attempt that gave no answer, sent or not; without `timing` it was never sent."""
    return LLMResult(
        result_id=derived_id("result", envelope.envelope_id, attempt),
        envelope_id=envelope.envelope_id,
        timestamp=now,
        latency_ms=timing.latency_ms if timing else 0.0,
        cost_nusd=charge.cost_nusd if charge else 0,
        reserved_nusd=admission.amount.nusd if admission else 0,
        price_book=admission.price_book if admission else "",
        provider=envelope.provider,
        model_requested=envelope.model,
        attempt_number=attempt,
        error=f"{reason.category}: {reason.description}",
        success=False,
        failure=reason,
        actionable=False,
        in_doubt=in_doubt,
        provider_request_id=provider_request_id,
        dispatched_at=timing.dispatched_at if timing else None,
        finished_at=timing.finished_at if timing else None,
    )


def degraded(result: LLMResult) -> LLMResult:
    """Return the last result of a workflow that may go on without an answer: text kept, nothing to act on."""
    return LLMResult.model_validate(
        {**result.model_dump(), "parsed_output": {}, "success": True, "actionable": False},
    )


def served_again(
    recorded: LLMResult, envelope: LLMEnvelope, outcome: Accepted | Rejected | None
) -> LLMResult:
    """Return a recorded result as the answer to `envelope`: read again, not paid for, marked as recorded."""
    fields = {
        **recorded.model_dump(),
        "result_id": derived_id("result", envelope.envelope_id, recorded.attempt_number),
        "envelope_id": envelope.envelope_id,
        "cost_nusd": 0,
        "cost_usd": 0.0,
        "reserved_nusd": 0,
        "served_from": "recorded",
    }
    match outcome:
        case Accepted():
            fields.update(
                parsed_output=outcome.value,
                validation_passed=True,
                validation_errors=[],
                reading=outcome.trace,
                success=True,
                failure=None,
                error=None,
            )
            fields.pop("actionable")
        case Rejected():
            fields.update(
                parsed_output={},
                validation_passed=False,
                reading=outcome.trace,
                success=False,
                validation_errors=[f"{v.path}: {v.message}" for v in outcome.errors],
                failure=outcome.failure,
                error=outcome.failure.description,
                actionable=False,
            )
        case None:
            pass
    return LLMResult.model_validate(fields)


def is_wrong_model(request: ModelRequest, response: ModelResponse, capability: Capability) -> bool:
    """Whether another model served than was asked for."""
    return response.model != request.envelope.model and response.model not in capability.served_as


def wrong_model(request: ModelRequest, response: ModelResponse) -> FailureReason:
    """Return why an answer of another model is not used."""
    return FailureReason(
        category=FailureKind.WRONG_MODEL,
        description=f"asked for {request.envelope.model}, served by {response.model}",
        recoverable=False,
    )


def _text_of(response: ModelResponse, outcome: Accepted | Rejected) -> str:
    """Return what can be read again: an object that came already parsed is kept as the text it was accepted as."""
    if response.text or isinstance(outcome, Rejected):
        return response.text
    return outcome.text
