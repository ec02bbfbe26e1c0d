"""May a failed attempt be tried again, and after how long: one formula, no clock, no waiting."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.failure import RETRYABLE, FailureKind
from agentic_trading.llm.limits import RetryPolicy

LONGEST_WAIT_S = 3600.0
"""Who asks for a longer wait means: not now, and not soon."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that failed at the provider; `sent` says whether it may have been processed, and billed.

    `retry_after_s` is the wait that the provider asked for.
    """

    kind: FailureKind
    sent: bool
    retry_after_s: float | None = None


def wait_before_retry(
    failure: Failed,
    policy: RetryPolicy,
    *,
    workflow: EnvelopeWorkflow,
    attempt: int,
    now: datetime,
    deadline: datetime | None,
    jitter: float,
) -> float | None:
    """Return the seconds to wait before the next attempt, or None when there is none.

    `attempt` counts the failed ones (1-based), so that `policy.max_retries` of them are tried again. The wait doubles
    from `policy.base_s` up to `policy.max_s`, of which `jitter` in [0, 1) takes between one half and the whole; it is
    never shorter than the provider asked for, and there is no next attempt if it ends at or after `deadline`.
    """
    if attempt > policy.max_retries or not _may_be_tried_again(failure, policy, workflow):
        return None
    wait_s = min(policy.max_s, policy.base_s * 2.0 ** (attempt - 1)) * (1 + jitter) / 2
    if failure.retry_after_s is not None:
        if not failure.retry_after_s <= LONGEST_WAIT_S:  # also what is no number
            return None
        wait_s = max(wait_s, failure.retry_after_s)
    if deadline is not None and now + timedelta(seconds=wait_s) >= deadline:
        return None
    return wait_s


def _may_be_tried_again(failure: Failed, policy: RetryPolicy, workflow: EnvelopeWorkflow) -> bool:
    """Say whether the kind of failure allows it: an envelope may ask for fewer kinds than the platform, not for more."""
    if failure.kind not in RETRYABLE or failure.kind not in policy.retryable:
        return False
    if workflow is not EnvelopeWorkflow.EXECUTION:
        return True
    # A lost answer may have been billed and acted on: an order is only asked for again if it surely never was.
    return not failure.sent and failure.kind is not FailureKind.TIMEOUT
