"""The result of an attempt, and the next step: another request after a wait, or the end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Final, assert_never

from tenacity import AsyncRetrying, retry_if_result

from agentic_trading.governance.admission import Admitted, Charge
from agentic_trading.governance.events import AttemptAnsweredLate, AttemptDispatched, AttemptUnsent
from agentic_trading.governance.limiter import Failed, wait_before_retry
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.ids import derived_id, fraction
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import Event
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, UnusableAnswerError
from agentic_trading.llm.result import ExactObject, LLMResult, NextStep
from agentic_trading.structured.engine import AskAgain, GiveUp, Prepared, RaiseCap, next_step
from agentic_trading.structured.outcome import Accepted, Rejected


@dataclass(frozen=True, slots=True)
class Timing:
    """The start and end of a call, and its duration in real milliseconds."""

    dispatched_at: datetime
    finished_at: datetime
    latency_ms: float


# Counts are cleared at this size, because reservations that are never sent would stay otherwise. A repeated
# number is harmless unless the time repeats, too.
_MOST_NOTED = 256

LOST: Final = FailureReason(
    category=FailureKind.SHUTDOWN,
    description="the process ended before an answer was on record; the call may have been billed",
)


def dispatch_event(request: ModelRequest, admission: Admitted, *, number: int, now: datetime) -> Event:
    """Return the record that a request is about to be sent, with its reservation.

    The id depends on the time and on `number`, because an attempt that was taken back may be dispatched
    again.
    """
    envelope = request.envelope
    reserved = admission.request
    reservation_id = reserved.reservation_id
    dispatched = AttemptDispatched(
        attempt=request.attempt,
        request_hash=envelope.request_hash,
        provider=envelope.provider,
        model=envelope.model,
        reservation_id=reservation_id,
        scopes=reserved.scope_ids,
        reserved_nusd=reserved.amount.nusd,
        reserved_tokens=reserved.amount.tokens,
        reserved_calls=reserved.amount.calls,
        window_at=reserved.at,
    )
    return dispatched.as_event(
        event_id=derived_id("dispatched", reservation_id, now.isoformat(), number),
        trace_id=envelope.trace_id,
        causation_id=envelope.envelope_id,
        tenant_id=envelope.tenant_id,
        as_of=envelope.as_of,
        time=now,
    )


@dataclass(slots=True)
class DispatchNumbers:
    """The number of recorded dispatches in this process, by reservation that may be dispatched again.

    Two dispatches of one reservation are two records. If they have the same time, their numbers differ.
    """

    noted: dict[str, int] = field(default_factory=dict)

    def event(self, request: ModelRequest, admission: Admitted, now: datetime) -> Event:
        """Return the record of the next dispatch."""
        id_ = admission.reservation_id
        if len(self.noted) == _MOST_NOTED:
            self.noted.clear()
        number = self.noted[id_] = self.noted.get(id_, 0) + 1
        return dispatch_event(request, admission, number=number, now=now)

    def forget(self, admission: Admitted) -> None:
        """Forget a reservation that was sent, because it is not dispatched again."""
        self.noted.pop(admission.reservation_id, None)


def unsent_event(dispatched: Event, attempt: int, reservation_id: str, why: str, *, now: datetime) -> Event:
    """Return the record that a dispatched request is not sent after all."""
    taken_back = AttemptUnsent(attempt=attempt, reservation_id=reservation_id, why=why)
    return _following(taken_back, "unsent", dispatched, now)


def late_event(
    dispatched: Event, admission: Admitted, response: ModelResponse, charge: Charge, now: datetime
) -> Event:
    """Return the record of an answer that arrived after another worker had taken the envelope."""
    late = AttemptAnsweredLate(
        attempt=admission.request.attempt,
        reservation_id=admission.reservation_id,
        cost_nusd=charge.cost_nusd,
        tokens=admission.amount.tokens if response.usage.unmetered else response.usage.total_tokens,
        model=response.model,
        raw_output=response.text,
    )
    return _following(late, "answered_late", dispatched, now)


def _following(
    body: AttemptUnsent | AttemptAnsweredLate, what: str, dispatched: Event, now: datetime
) -> Event:
    """Return an event that is caused by a recorded dispatch."""
    return body.as_event(
        event_id=derived_id(what, dispatched.id),
        trace_id=dispatched.trace_id,
        causation_id=dispatched.id,
        tenant_id=dispatched.tenant_id,
        as_of=dispatched.as_of,
        time=now,
    )


def answered_result(
    request: ModelRequest,
    response: ModelResponse,
    outcome: Accepted | Rejected,
    admission: Admitted,
    charge: Charge,
    timing: Timing,
    next_step: NextStep,
) -> LLMResult:
    """Return the result of an answered call, accepted or rejected."""
    accepted = isinstance(outcome, Accepted)
    sampling = request.temperature is not None
    return LLMResult.made(
        response.usage,
        result_id=derived_id("result", request.envelope.envelope_id, request.attempt),
        envelope_id=request.envelope.envelope_id,
        timestamp=timing.finished_at,
        raw_output=outcome.raw_output,
        parsed_output=ExactObject(outcome.value) if isinstance(outcome, Accepted) else {},
        validation_passed=accepted,
        validation_errors=[]
        if isinstance(outcome, Accepted)
        else [f"{v.path}: {v.message}" for v in outcome.errors],
        latency_ms=timing.latency_ms,
        unpriced=charge.unpriced,
        cost_nusd=charge.cost_nusd,
        reserved_nusd=admission.amount.nusd,
        reserved_tokens=admission.amount.tokens,
        reservation_id=admission.reservation_id,
        price_book=admission.price_book,
        priced_on=price_date(admission),
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
        tool_called=response.tool_called,
        determinism_level=request.envelope.level(
            accepted=accepted and not _is_of_another(request, response, admission.capability),
            sampling_applied=sampling and admission.capability.sampling,
        ),
        sampling_applied=sampling,
        dispatched_at=timing.dispatched_at,
        finished_at=timing.finished_at,
        next_step=next_step,
    )


def failed_result(
    envelope: LLMEnvelope,
    attempt: int,
    reason: FailureReason,
    next_step: NextStep,
    *,
    now: datetime,
    admission: Admitted | None = None,
    charge: Charge | None = None,
    timing: Timing | None = None,
    in_doubt: bool = False,
    provider_request_id: str = "",
    raw_output: str = "",
    metered: UnusableAnswerError | None = None,
) -> LLMResult:
    """Return the result of an attempt without an answer.

    Without `timing`, it was never sent. `raw_output` is the part of the answer that was read before it broke
    off. `metered` is an unusable answer whose usage was charged.
    """
    used = {} if metered is None else {**vars(metered.usage), **(metered.usage.model_extra or {})}
    return LLMResult(
        **{name: value for name, value in used.items() if name != "bill_nusd"},
        model="" if metered is None else metered.model,
        unpriced=charge.unpriced if charge else "",
        result_id=derived_id("result", envelope.envelope_id, attempt),
        envelope_id=envelope.envelope_id,
        timestamp=now,
        latency_ms=timing.latency_ms if timing else 0.0,
        bill_nusd=charge.bill_nusd if charge else None,
        cost_nusd=charge.cost_nusd if charge else 0,
        reserved_nusd=admission.amount.nusd if admission else 0,
        reserved_tokens=admission.amount.tokens if admission else 0,
        reservation_id=admission.reservation_id if admission else "",
        price_book=admission.price_book if admission else "",
        priced_on=price_date(admission) if admission else None,
        raw_output=raw_output,
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
        next_step=next_step,
    )


def lost_result(
    envelope: LLMEnvelope, attempt: int, lost: LostAttempt, next_step: NextStep, *, now: datetime
) -> LLMResult:
    """Return the result of an attempt that an earlier process has sent, and whose end was never recorded."""
    return LLMResult(
        result_id=derived_id("result", envelope.envelope_id, attempt),
        envelope_id=envelope.envelope_id,
        timestamp=now,
        cost_nusd=lost.charged.nusd,
        reserved_nusd=lost.charged.nusd,
        reserved_tokens=lost.charged.tokens,
        reservation_id=lost.reservation_id,
        provider=envelope.provider,
        model_requested=envelope.model,
        attempt_number=attempt,
        error=f"{LOST.category}: {LOST.description}",
        success=False,
        failure=LOST,
        actionable=False,
        in_doubt=True,
        dispatched_at=lost.sent_at,
        finished_at=max(now, lost.sent_at),
        next_step=next_step,
    )


def degraded_result(result: LLMResult) -> LLMResult:
    """Return the last result of a workflow that continues without an answer.

    The text is kept, and no action follows.
    """
    return LLMResult.model_validate(
        {**result.model_dump(), "parsed_output": {}, "success": True, "actionable": False},
    )


def replayed_result(
    recorded: LLMResult,
    envelope: LLMEnvelope,
    outcome: Accepted | Rejected | None,
    next_step: NextStep,
) -> LLMResult:
    """Return a recorded result as the answer to `envelope`: parsed again, free, and marked as recorded."""
    fields = {
        **recorded.model_dump(),
        "result_id": derived_id("result", envelope.envelope_id, recorded.attempt_number),
        "envelope_id": envelope.envelope_id,
        "cost_nusd": 0,
        "cost_usd": 0.0,
        "first_cost_nusd": recorded.original_cost_nusd,
        "reserved_nusd": 0,
        "reserved_tokens": 0,
        "reservation_id": "",
        "bill_nusd": None,
        "bill_problem": "",
        "unpriced": "",
        "served_from": "recorded",
        "next_step": next_step,
        "determinism_level": envelope.replayed_level,
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


def price_date(admission: Admitted) -> date:
    """Return the date of the prices, in UTC, because a provider's days begin in UTC."""
    return admission.priced_at.astimezone(UTC).date()


def recorded_response(recorded: LLMResult) -> ModelResponse:
    """Return the raw answer of a recorded result, to be parsed again."""
    return ModelResponse(
        text=recorded.raw_output,
        stop_reason=recorded.stop_reason,
        usage=recorded.usage,
        model=recorded.model,
        provider_request_id=recorded.provider_request_id,
        provider_response_id=recorded.provider_response_id,
        tool_called=recorded.tool_called,
    )


def is_of_wrong_model(request: ModelRequest, response: ModelResponse, capability: Capability) -> bool:
    """Whether a wrong model has answered an order or a call that must be deterministic."""
    envelope = request.envelope
    must_not_be = (
        envelope.workflow is EnvelopeWorkflow.EXECUTION or envelope.safety_constraints.require_deterministic
    )
    return must_not_be and _is_of_another(request, response, capability)


def _is_of_another(request: ModelRequest, response: ModelResponse, capability: Capability) -> bool:
    return response.model != request.envelope.model and response.model not in capability.served_as


def unused_result(result: LLMResult) -> LLMResult:
    """Return the result of an answer that is rejected because another model gave it."""
    reason = FailureReason(
        category=FailureKind.WRONG_MODEL,
        description=f"asked for {result.model_requested}, served by {result.model}",
        recoverable=False,
    )
    fields = {**result.model_dump(), "parsed_output": {}, "validation_passed": False, "actionable": False}
    fields |= {"success": False, "failure": reason, "error": f"{reason.category}: {reason.description}"}
    return LLMResult.model_validate(fields)


ToResult = Callable[[NextStep], LLMResult]
"""Makes the result of an attempt, given its next step."""


@dataclass(frozen=True, slots=True)
class AnsweredAttempt:
    """An attempt whose answer was parsed.

    `recorded` is the next step of the original attempt, if it is replayed. `is_on_record` marks an attempt of
    this worker's log.
    """

    to_result: ToResult
    outcome: Accepted | Rejected
    recorded: NextStep = ""
    is_on_record: bool = False


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed at the provider.

    `recorded` is the next step of the original attempt, if it is replayed. `is_on_record` marks an attempt of
    this worker's log.
    """

    to_result: ToResult
    failed: Failed
    recorded: NextStep = ""
    is_on_record: bool = False


@dataclass(frozen=True, slots=True)
class FinalAttempt:
    """An attempt that ends the call: it was refused before the send, or another model answered it.

    `is_on_record` marks an attempt of this worker's log.
    """

    to_result: ToResult
    is_on_record: bool = False


def lost_attempt(envelope: LLMEnvelope, attempt: int, lost: LostAttempt, *, now: datetime) -> FailedAttempt:
    """Return an attempt that an earlier process has sent, as in doubt.

    It is retried unless it is an order.
    """
    to_result = partial(lost_result, envelope, attempt, lost, now=now)
    step: NextStep = "final" if envelope.workflow is EnvelopeWorkflow.EXECUTION else "retry"
    return FailedAttempt(to_result, Failed(kind=LOST.category, sent=True), step)


def unsent_attempt(
    envelope: LLMEnvelope, attempt: int, reason: FailureReason, *, now: datetime
) -> FinalAttempt:
    """Return the end of a call whose attempt was not sent."""
    return FinalAttempt(partial(failed_result, envelope, attempt, reason, now=now))


Attempted = AnsweredAttempt | FailedAttempt | FinalAttempt


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """One request of a call, and its history.

    `wait_s` is the wait in seconds before the request.
    """

    request: ModelRequest
    retries: int = 0
    answers_read: int = 0
    cap_raised: bool = False
    rejected: Rejected | None = None
    wait_s: float = 0.0
    step: NextStep = ""


def plan_next_attempt(
    plan: AttemptPlan, attempted: Attempted, prepared: Prepared, *, now: datetime
) -> AttemptPlan | None:
    """Return the next request, or None after the last attempt.

    If the model allows no higher output limit, the call ends. A replayed attempt is followed by its recorded
    next step, at any time and without a wait.
    """
    match attempted:
        case FinalAttempt():
            return None
        case FailedAttempt(recorded=recorded):
            if recorded == "prompt" or (not recorded and is_schema_refused(plan.request, attempted)):
                return _with_schema_in_prompt(plan, prepared)
            if recorded:
                return _tried_again(plan, 0.0) if recorded == "retry" else None
            return _retry(plan, attempted.failed, now)
        case AnsweredAttempt(outcome=outcome, recorded=recorded):
            if isinstance(outcome, Accepted):
                return None
            step = recorded or _step_after(plan, outcome)
            return _again(plan, outcome, step, prepared, is_recorded=bool(recorded))
        case _:
            assert_never(attempted)


def following_turns(sleep: Callable[[float], Awaitable[None]]) -> AsyncRetrying:
    """Return the turns of a call whose first attempt is followed by others.

    The wait of each plan is slept before its turn. The caller sets the result of each turn: the plan after
    its attempt, or None after the last attempt. The result of the first turn is the plan that followed the
    first attempt.
    """
    return AsyncRetrying(
        sleep=sleep,
        wait=lambda state: state.outcome.result().wait_s if state.outcome else 0.0,
        retry=retry_if_result(lambda plan: plan is not None),
    )


def is_schema_refused(request: ModelRequest, attempted: Attempted) -> bool:
    """Whether the provider rejected the schema of `request`, so that the prompt has to contain it."""
    return (
        isinstance(attempted, FailedAttempt)
        and attempted.failed.kind is FailureKind.SCHEMA_REFUSED
        and request.transport not in {"prompted", "text", "verbatim"}
    )


def _with_schema_in_prompt(plan: AttemptPlan, prepared: Prepared) -> AttemptPlan:
    request = prepared.move_schema_to_prompt(plan.request, attempt=plan.request.attempt + 1)
    return replace(plan, request=request, wait_s=0.0, step="prompt")


def _retry(plan: AttemptPlan, failed: Failed, now: datetime) -> AttemptPlan | None:
    envelope = plan.request.envelope
    wait_s = wait_before_retry(
        failed,
        envelope.retry_policy,
        workflow=envelope.workflow,
        attempt=plan.retries + 1,
        now=now,
        deadline=envelope.deadline,
        jitter=fraction("jitter", envelope.envelope_id, plan.request.attempt),
    )
    return None if wait_s is None else _tried_again(plan, wait_s)


def _tried_again(plan: AttemptPlan, wait_s: float) -> AttemptPlan:
    request = replace(plan.request, attempt=plan.request.attempt + 1)
    return replace(plan, request=request, retries=plan.retries + 1, wait_s=wait_s, step="retry")


def _step_after(plan: AttemptPlan, rejected: Rejected) -> NextStep:
    policy = plan.request.envelope.output_policy
    step = next_step(
        rejected, plan.rejected, policy, answers_read=plan.answers_read + 1, cap_raised=plan.cap_raised
    )
    match step:
        case AskAgain():
            return "ask_again"
        case RaiseCap():
            return "raise_cap"
        case GiveUp():
            return "final"
        case _:
            assert_never(step)


def _again(
    plan: AttemptPlan, rejected: Rejected, step: NextStep, prepared: Prepared, *, is_recorded: bool
) -> AttemptPlan | None:
    attempt = plan.request.attempt + 1
    if step == "ask_again":
        request = prepared.reask(plan.request, rejected, attempt=attempt)
    elif step == "raise_cap":
        request = prepared.raise_cap(plan.request, attempt=attempt)
        if request.max_tokens == plan.request.max_tokens and not is_recorded:
            return None  # the same request would be cut off at the same place
    else:
        return None
    return AttemptPlan(
        request,
        retries=plan.retries,
        answers_read=plan.answers_read + 1,
        cap_raised=plan.cap_raised or step == "raise_cap",
        rejected=rejected,
        step=step,
    )


def may_degrade(envelope: LLMEnvelope, attempted: Attempted) -> bool:
    """Whether the call may end without an answer and without a failure (D6, column `exhausted`)."""
    return envelope.output_policy.on_exhausted == "degraded" and isinstance(attempted, AnsweredAttempt)
