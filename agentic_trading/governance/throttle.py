"""How fast a model is called: an attempt's permit from the limiter, and the wait before a retry."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LimiterUnavailableError
from agentic_trading.governance.limiter import (
    Deployment,
    Limiter,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    Throttled,
)
from agentic_trading.governance.limits import queue_priority
from agentic_trading.ids import NewId, random_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import RETRYABLE, FailureKind, FailureReason
from agentic_trading.llm.limits import RetryPolicy

LONGEST_WAIT_S = 3600.0
"""A provider that wants a longer wait is not called again."""


FAIR_PATIENCE_S = 30.0
"""A provider that has not answered for so long has failed; a caller that waits for less may be the reason itself."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that failed at the provider; `sent` says whether it may have been processed, and billed.

    `retry_after_s` is the wait that the provider asked for. `gave_up_early` says that the caller's own time limit ended
    it before `FAIR_PATIENCE_S`: that is nothing that the provider did.
    """

    kind: FailureKind
    sent: bool
    retry_after_s: float | None = None
    gave_up_early: bool = False


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
    """Whether the kind of failure allows it: an envelope may retry fewer kinds than the platform, not more."""
    if failure.kind not in RETRYABLE or failure.kind not in policy.retryable:
        return False
    if workflow is not EnvelopeWorkflow.EXECUTION:
        return True
    # A lost answer may have been billed and acted on: an order is only requested again if it surely never was.
    return not failure.sent and failure.kind is not FailureKind.TIMEOUT


_GRACE_S = 30.0
_OUTAGES = frozenset({FailureKind.SERVER_ERROR, FailureKind.TIMEOUT})
"""Failures that count against the provider; all others are about one request, or about this process."""


class Throttle:
    """Limits the calls to each model at once and in a minute, and stops calls to one that keeps failing.

    Money is not at stake here: where the limiter cannot be reached, calls go on without it. Waiting takes the real
    time of `clock`.
    """

    def __init__(self, limiter: Limiter | None, clock: Clock, *, new_id: NewId = random_id) -> None:
        self._limiter = limiter
        self._clock = clock
        self._name = new_id()  # two workers with the same attempt have a permit each

    async def acquire(
        self, envelope: LLMEnvelope, id_: str, tokens: int, *, is_retry: bool
    ) -> Permit | Throttled | FailureReason | None:
        """Get a permit, or how long to wait, or why there is none; None where nothing is limited."""
        if self._limiter is None:
            return None
        entry = PermitRequest(
            Deployment(envelope.provider, envelope.model),
            f"{id_}@{self._name}",
            tokens,
            priority=queue_priority(envelope),
            lease_s=envelope.retry_policy.attempt_timeout_s + _GRACE_S,
            is_retry=is_retry,
        )
        try:
            answer = await self._limiter.acquire(entry)
        except LimiterUnavailableError:
            return None
        return _failure_of(answer) if isinstance(answer, NotPermitted) else answer

    async def wait(self, wait: Throttled) -> None:
        """Let the time pass after which it is worth trying again."""
        await self._clock.sleep(wait.retry_after_s)

    async def answered(self, permit: Permit | None, tokens: int) -> None:
        """Release a permit after an answer that took `tokens`."""
        await self._release(permit, PermitOutcome.ANSWERED, tokens=tokens)

    async def failed(self, permit: Permit | None, failure: Failed | None) -> None:
        """Release a permit after a call without an answer; without `failure` it does not count against the provider."""
        is_outage = failure is not None and failure.kind in _OUTAGES and not failure.gave_up_early
        cooldown_s = failure.retry_after_s if failure is not None else None
        await self._release(
            permit, PermitOutcome.FAILED if is_outage else PermitOutcome.NEUTRAL, cooldown_s=cooldown_s
        )

    async def unused(self, permit: Permit | None) -> None:
        """Release a permit that was not used."""
        await self._release(permit, PermitOutcome.UNUSED)

    async def _release(
        self,
        permit: Permit | None,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        if permit is None or self._limiter is None:
            return
        with suppress(LimiterUnavailableError):  # its lease ends
            await self._limiter.release(permit, outcome, tokens=tokens, cooldown_s=cooldown_s)


def _failure_of(refused: NotPermitted) -> FailureReason:
    deployment = f"{refused.deployment.provider}/{refused.deployment.model}"
    if refused.reason == "circuit_open":
        return FailureReason(
            category=FailureKind.CIRCUIT_OPEN,
            description=f"{deployment}: circuit open for {refused.retry_after_s:.0f} s; use another model or retry later",
            recoverable=True,
        )
    return FailureReason(
        category=FailureKind.RETRY_BUDGET,
        description=f"{deployment}: retry budget exhausted; allowed in a minute is a tenth of its calls, and ten",
        recoverable=True,
    )
