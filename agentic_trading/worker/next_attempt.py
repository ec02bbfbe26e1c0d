"""What comes after an attempt: another request after a wait, or the end; plain functions, no waiting."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from agentic_trading.governance.throttle import Failed, wait_before_retry
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.structured.engine import AskAgain, GiveUp, RaiseCap, next_step
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import raised_cap_request, reask_request, request_over

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
    turn: AttemptPlan, attempted: Attempted, capability: Capability, *, now: datetime
) -> AttemptPlan | None:
    """Return the request to make next, or None when this attempt was the last.

    A cap that the model's `capability` does not let rise ends the call. An attempt that was recorded with its next
    step is followed by that step, whatever time it is now, and without a wait.
    """
    match attempted:
        case FinalAttempt():
            return None
        case FailedAttempt(recorded=recorded):
            if recorded == "prompt" or (not recorded and is_schema_refused(turn.request, attempted)):
                return _told_in_words(turn, capability)
            if recorded:
                return _tried_again(turn, 0.0) if recorded == "retry" else None
            return _retry(turn, attempted.failed, now)
        case AnsweredAttempt(outcome=outcome, recorded=recorded):
            if isinstance(outcome, Accepted):
                return None
            step = recorded or _step_after(turn, outcome)
            return _again(turn, outcome, step, capability.max_output_tokens, is_recorded=bool(recorded))
        case _:
            assert_never(attempted)


def is_schema_refused(request: ModelRequest, attempted: Attempted) -> bool:
    """Whether the provider refused the form that `request` asked for, so that telling it in words is left."""
    return (
        isinstance(attempted, FailedAttempt)
        and attempted.failed.kind is FailureKind.SCHEMA_REFUSED
        and request.transport not in {"prompted", "text"}
    )


def _told_in_words(turn: AttemptPlan, capability: Capability) -> AttemptPlan:
    request = turn.request
    prompted = request_over(
        "prompted", request.envelope, capability, attempt=request.attempt + 1, answer=request.answer
    )
    prompted = replace(
        prompted, user=request.user, max_tokens=request.max_tokens
    )  # as far as the call had come
    return replace(turn, request=prompted, wait_s=0.0, step="prompt")


def _retry(turn: AttemptPlan, failed: Failed, now: datetime) -> AttemptPlan | None:
    envelope = turn.request.envelope
    wait_s = wait_before_retry(
        failed,
        envelope.retry_policy,
        workflow=envelope.workflow,
        attempt=turn.retries + 1,
        now=now,
        deadline=envelope.deadline,
        jitter=fraction("jitter", envelope.envelope_id, turn.request.attempt),
    )
    return None if wait_s is None else _tried_again(turn, wait_s)


def _tried_again(turn: AttemptPlan, wait_s: float) -> AttemptPlan:
    request = replace(turn.request, attempt=turn.request.attempt + 1)
    return replace(turn, request=request, retries=turn.retries + 1, wait_s=wait_s, step="retry")


def _step_after(turn: AttemptPlan, rejected: Rejected) -> NextStep:
    policy = turn.request.envelope.output_policy
    step = next_step(
        rejected, turn.rejected, policy, answers_read=turn.answers_read + 1, cap_raised=turn.cap_raised
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
    turn: AttemptPlan, rejected: Rejected, step: NextStep, most_output_tokens: int, *, is_recorded: bool
) -> AttemptPlan | None:
    attempt = turn.request.attempt + 1
    if step == "ask_again":
        request = reask_request(turn.request, rejected, attempt=attempt)
    elif step == "raise_cap":
        request = raised_cap_request(turn.request, attempt=attempt, limit=most_output_tokens)
        if request.max_tokens == turn.request.max_tokens and not is_recorded:
            return None  # the same again would be cut at the same place
    else:
        return None
    return AttemptPlan(
        request,
        retries=turn.retries,
        answers_read=turn.answers_read + 1,
        cap_raised=turn.cap_raised or step == "raise_cap",
        rejected=rejected,
        step=step,
    )


def may_degrade(envelope: LLMEnvelope, attempted: Attempted) -> bool:
    """Whether the call may end without an answer and without a failure (D6, column `exhausted`)."""
    return envelope.output_policy.on_exhausted == "degraded" and isinstance(attempted, AnsweredAttempt)
