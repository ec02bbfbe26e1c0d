"""What comes after an attempt: another request after a wait, or the end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import assert_never

from tenacity import AsyncRetrying, retry_if_result

from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.governance.throttle import Failed, wait_before_retry
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.structured.engine import AskAgain, GiveUp, Prepared, RaiseCap, next_step
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.worker.attempt_result import LOST, failed_result, lost_result

ToResult = Callable[[NextStep], LLMResult]
"""Put an attempt on record, together with what follows from it."""


@dataclass(frozen=True, slots=True)
class AnsweredAttempt:
    """The attempt was answered, and the answer was read; `recorded` is what followed when it was first made."""

    to_result: ToResult
    outcome: Accepted | Rejected
    recorded: NextStep = ""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The attempt failed at the provider; `recorded` is what followed when it was first made."""

    to_result: ToResult
    failed: Failed
    recorded: NextStep = ""


@dataclass(frozen=True, slots=True)
class FinalAttempt:
    """The attempt ends the call: it was refused before it left, or another model served it."""

    to_result: ToResult


def lost_attempt(envelope: LLMEnvelope, attempt: int, lost: LostAttempt, *, now: datetime) -> FailedAttempt:
    """Return how an attempt ends that was sent by an earlier process: in doubt, and but for orders tried again."""
    to_result = partial(lost_result, envelope, attempt, lost, now=now)
    step: NextStep = "final" if envelope.workflow is EnvelopeWorkflow.EXECUTION else "retry"
    return FailedAttempt(to_result, Failed(kind=LOST.category, sent=True), step)


def unsent_attempt(
    envelope: LLMEnvelope, attempt: int, reason: FailureReason, *, now: datetime
) -> FinalAttempt:
    """Return how a call ends whose attempt was not sent."""
    return FinalAttempt(partial(failed_result, envelope, attempt, reason, now=now))


Attempted = AnsweredAttempt | FailedAttempt | FinalAttempt


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """One request of a call, and what led to it. `wait_s` is to pass before it is made."""

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
    """Return the request to make next, or None when this attempt was the last.

    A cap that the model does not let rise ends the call. An attempt that was recorded with its next
    step is followed by that step, whatever time it is now, and without a wait.
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
    """Return the turns of a call whose first attempt is to be followed by another; before each its wait is slept.

    The result of a turn is set by who iterates: what is planned after its attempt, None after the last one. That of the
    first turn is the plan that the first attempt has led to.
    """
    return AsyncRetrying(
        sleep=sleep,
        wait=lambda state: state.outcome.result().wait_s if state.outcome else 0.0,
        retry=retry_if_result(lambda plan: plan is not None),
    )


def is_schema_refused(request: ModelRequest, attempted: Attempted) -> bool:
    """Whether the provider refused the form that `request` asked for, so that the prompt has to state it."""
    return (
        isinstance(attempted, FailedAttempt)
        and attempted.failed.kind is FailureKind.SCHEMA_REFUSED
        and request.transport not in {"prompted", "text"}
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
            return None  # the same again would be cut at the same place
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
