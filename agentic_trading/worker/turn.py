"""What comes after an attempt: another request after a wait, or the end; plain functions, no waiting."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from agentic_trading.governance.retry import Failed, wait_before_retry
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import LLMResult
from agentic_trading.structured.engine import AskAgain, RaiseCap, next_step
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.prompts import raised_cap_request, reask_request


@dataclass(frozen=True, slots=True)
class Read:
    """The attempt was answered, and the answer was read."""

    result: LLMResult
    outcome: Accepted | Rejected


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The attempt failed at the provider."""

    result: LLMResult
    failed: Failed


@dataclass(frozen=True, slots=True)
class Closed:
    """The attempt ends the call: it was refused before it left, or another model served it."""

    result: LLMResult


Attempted = Read | Unanswered | Closed


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a call, and what led to it. `wait_s` is to pass before it is made."""

    request: ModelRequest
    retries: int = 0
    answers_read: int = 0
    cap_raised: bool = False
    rejected: Rejected | None = None
    wait_s: float = 0.0


def next_turn(
    turn: Turn, attempted: Attempted, *, now: datetime, most_output_tokens: int | None = None
) -> Turn | None:
    """Return the request to make next, or None when this attempt was the last.

    `most_output_tokens` is what the model can write at most: a raised cap stays below it.
    """
    match attempted:
        case Closed():
            return None
        case Unanswered(failed=failed):
            return _retry(turn, failed, now)
        case Read(outcome=outcome):
            if isinstance(outcome, Accepted):
                return None
            return _again(turn, outcome, most_output_tokens)
        case _:
            assert_never(attempted)


def _retry(turn: Turn, failed: Failed, now: datetime) -> Turn | None:
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
    if wait_s is None:
        return None
    request = replace(turn.request, attempt=turn.request.attempt + 1)
    return replace(turn, request=request, retries=turn.retries + 1, wait_s=wait_s)


def _again(turn: Turn, rejected: Rejected, most_output_tokens: int | None) -> Turn | None:
    policy = turn.request.envelope.output_policy
    answers_read = turn.answers_read + 1
    step = next_step(rejected, turn.rejected, policy, answers_read=answers_read, cap_raised=turn.cap_raised)
    attempt = turn.request.attempt + 1
    match step:
        case AskAgain():
            request = reask_request(turn.request, rejected, attempt=attempt)
        case RaiseCap():
            request = raised_cap_request(turn.request, attempt=attempt, limit=most_output_tokens)
        case _:
            return None
    return Turn(
        request,
        retries=turn.retries,
        answers_read=answers_read,
        cap_raised=turn.cap_raised or isinstance(step, RaiseCap),
        rejected=rejected,
    )


def may_degrade(envelope: LLMEnvelope, attempted: Attempted) -> bool:
    """Whether the call may end without an answer and without a failure (D6, column `exhausted`)."""
    return envelope.output_policy.on_exhausted == "degraded" and isinstance(attempted, Read)
