"""The interface of rate limiters, and the throttle that gets a permit for each attempt."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

from agentic_trading.clock import Clock
from agentic_trading.governance.errors import LimitError, LimiterUnavailableError
from agentic_trading.governance.limits import queue_priority
from agentic_trading.ids import NewId, random_id
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import RETRYABLE, FailureKind, FailureReason
from agentic_trading.llm.limits import RetryPolicy

LEASE_S = 120.0
"""The default time in seconds that a permit counts as in flight."""

LONGEST_LEASE_S = 86_400.0

LONGEST_COOLDOWN_S = 3600.0
"""The longest cooldown that is kept. If a provider asks for more, it is tried again after this time."""

# Headroom may return early, so that a longer wait would leave it unused.
LOOK_AGAIN_S = 1.0
"""The longest `retry_after_s` for a limit. A cooldown is returned in full."""

MOST_TOKENS = 10**9
"""The maximum tokens of a call."""

MOST_A_MINUTE = 10**10
"""The maximum of a rate limit. Lua handles such whole numbers exactly."""


class Deployment(NamedTuple):
    """One model at one provider. Its rates are shared by all tenants and processes."""

    provider: LLMProvider
    model: str


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of a deployment: requests and tokens per minute, and concurrent calls.

    None means unlimited.

    Raises:
        LimitError: If a limit is below 1. To stop a model, use a halt.

    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        """Raises `LimitError` for a limit below 1."""
        _check("requests_per_minute", self.requests_per_minute, least=1, most=MOST_A_MINUTE)
        _check("tokens_per_minute", self.tokens_per_minute, least=1, most=MOST_A_MINUTE)
        _check("concurrent", self.concurrent, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class CircuitBreakerConfig:
    """When a circuit opens and closes.

    It opens if at least `min_calls` calls ended within `window_s` and `failure_rate` (0 to 1) of them failed.
    It stays open for `wait_open_s`. Then `half_open_calls` at a time may probe. The window moves in tenths of
    its length.

    Raises:
        LimitError: If a value is out of range.

    """

    window_s: float = 30.0
    min_calls: int = 10
    failure_rate: float = 0.5
    wait_open_s: float = 30.0
    half_open_calls: int = 1

    def __post_init__(self) -> None:
        """Raises `LimitError` for a value out of range."""
        _check("window_s", self.window_s, least=0.001, most=86_400)
        _check("min_calls", self.min_calls, least=1, most=MOST_A_MINUTE)
        _check("failure_rate", self.failure_rate, least=0.001, most=1)
        _check("wait_open_s", self.wait_open_s, least=0.001, most=86_400)
        _check("half_open_calls", self.half_open_calls, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """The retries of a deployment: `share` of the calls permitted within `window_s`, but at least `least`.

    The window moves in twelfths of its length.

    Raises:
        LimitError: If a value is out of range.

    """

    share: float = 0.1
    least: int = 10
    window_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises `LimitError` for a value out of range."""
        _check("share", self.share, least=0, most=1)
        _check("least", self.least, least=0, most=MOST_A_MINUTE)
        _check("window_s", self.window_s, least=0.001, most=86_400)

    def left(self, calls: int, retries: int) -> int:
        """Return how many more retries are allowed after `retries` of `calls` in total."""
        return max(0, max(self.least, int(self.share * calls + 1e-9)) - retries)


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """A request to send one attempt.

    Attributes:
        deployment: The model to call.
        id: The id of its reservation. A repeated id is the same request.
        tokens: The maximum input plus output tokens.
        priority: Seconds. The request goes before requests that were queued up to this many seconds earlier.
        lease_s: Seconds until its permit is free again without a release.
        is_retry: Whether it repeats a failed attempt.

    Raises:
        ValueError: If the id is empty, or a number is out of range.

    """

    deployment: Deployment
    id: str
    tokens: int = 0
    priority: int = 0
    lease_s: float = LEASE_S
    is_retry: bool = False

    def __post_init__(self) -> None:
        """Raises `ValueError` for an empty id or a number out of range."""
        if not self.id:
            raise ValueError("a permit request has an empty id. Pass the id of its reservation")
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise ValueError(
                f"permit request {self.id!r} has {self.tokens} tokens. Allowed: 0 to {MOST_TOKENS}"
            )
        if not 0 < self.lease_s <= LONGEST_LEASE_S:
            raise ValueError(
                f"permit request {self.id!r} has a lease of {self.lease_s} s. Allowed: above 0, up to {LONGEST_LEASE_S:.0f}"
            )


@dataclass(frozen=True, slots=True)
class Permit:
    """The call may be sent. `tokens` were taken from the deployment's bucket for it."""

    deployment: Deployment
    id: str
    tokens: int


ThrottleReason = Literal["requests", "tokens", "concurrent", "queue", "cooldown"]
NotPermittedReason = Literal["circuit_open", "retry_budget"]


@dataclass(frozen=True, slots=True)
class Throttled:
    """The call has to wait.

    Acquire again after `retry_after_s` (above 0 and finite). Its place is kept some seconds longer. The
    reasons `requests`, `tokens` and `concurrent` mean that the deployment has too little left. `queue` means
    that requests with a better place need the rest. `cooldown` means that the provider asked for a pause.
    """

    deployment: Deployment
    reason: ThrottleReason
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """The call must not be sent, and has no place.

    This will hardly change within `retry_after_s` (above 0 and finite).
    """

    deployment: Deployment
    reason: NotPermittedReason
    retry_after_s: float


class PermitOutcome(StrEnum):
    """The outcome of a call for its deployment."""

    ANSWERED = "answered"
    FAILED = "failed"  # a server's error, a time-out, no connection
    UNUSED = "unused"  # never sent
    NEUTRAL = "neutral"  # rate limited, a refused request, cancelled: says nothing of the provider's health


class CircuitState(StrEnum):
    """The state of a circuit.

    `closed` → `open` (too many failed) → `half_open` (probes may try) → `closed` (answered) or `open` (failed).
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """The current state of a deployment.

    Values without a limit are None, and those of an overdrawn bucket 0. `answered` and `failed` are counted
    by the breaker. `cooldown_s` is the rest of a cooldown.
    """

    deployment: Deployment
    limits: RateLimits
    breaker: CircuitState
    answered: int
    failed: int
    in_flight: int
    waiting: int
    requests_left: int | None
    tokens_left: int | None
    retries_left: int
    cooldown_s: float


class Limiter(Protocol):
    """Limits the calls to deployments to their rates, and stops calls while a deployment keeps failing.

    A request is checked and permitted in one atomic step, however many run at once. Adapters on the same
    server share deployments. Each bucket holds one minute's limit, begins full and fills evenly. So within
    any minute at most two minutes' limits are permitted, plus overdrafts: calls larger than the bucket, or
    larger than requested.

    The queue is ordered by arrival minus priority in seconds. Units that a request in front needs are not
    given to others. Units beyond that are, so that the place of a dead process only delays its own share.

    The breaker counts answered and failed calls among those permitted since it last opened or closed.

    Every method but `aclose` raises `LimiterUnavailableError` if the limiter's server cannot be reached.
    """

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Return a permit, or how long to wait for one.

        A waiting request only takes a place in the queue. If the permit is in flight, the same permit is
        returned and its lease starts again. After its release, a new one is made. A waiting request keeps its
        place. A request for more tokens than the bucket can hold is permitted when the bucket is full, and
        overdraws it. A retry counts when it is permitted.
        """
        ...

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        """End a permit. Repeating this is harmless, also after the lease has ended.

        If the lease ran out, the permit was already released as `neutral` with all its tokens, because its
        outcome is unknown. Releasing it then has no effect.

        Args:
            permit: The permit.
            outcome: The outcome of the call. `unused` returns all units, as if it had never been permitted,
                whatever `tokens` is.
            tokens: The tokens really used, from 0 to `MOST_TOKENS`. Values outside are clamped. The
                difference is returned to the bucket, or overdraws it. None means all tokens of the permit.
            cooldown_s: The pause that the provider asked for, up to `LONGEST_COOLDOWN_S`. Calls are not
                permitted before its end. A shorter cooldown does not end a longer one. Values that are not a
                number above 0 are ignored.

        """
        ...

    async def cancel(self, request: PermitRequest) -> None:
        """Forget an attempt that was not sent and will not be sent.

        Harmless if it is unknown. Its place in the queue is removed. If it got a permit, for instance because
        its `acquire` was cancelled, the permit is released as `unused`.
        """
        ...

    async def status(self, deployment: Deployment) -> DeploymentStatus:
        """Return the state of a deployment."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Permits in flight end by their leases."""
        ...


def _check(subject: str, value: float | None, *, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise LimitError(subject, f"is {value}. Allowed: {least} to {most}")


LONGEST_WAIT_S = 3600.0
"""If a provider asks for a longer wait, the call is not retried."""


FAIR_PATIENCE_S = 30.0
"""A provider has failed if it does not answer for this time.

A shorter limit may be the caller's own impatience.
"""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that failed at the provider.

    Attributes:
        kind: The kind of failure.
        sent: Whether the request may have been processed and billed.
        retry_after_s: The wait that the provider asked for, in seconds.
        gave_up_early: Whether the caller's own time limit ended it before `FAIR_PATIENCE_S`. It then does not
            count against the provider.

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
    """Return the seconds to wait before the next attempt, or None if there is no next attempt.

    The wait doubles from `policy.base_s` up to `policy.max_s`. `jitter` in [0, 1) selects a value between
    half and all of it. The wait is never shorter than the provider asked for. There is no next attempt if the
    wait ends at or after `deadline`. `attempt` is the number of failed attempts, from 1, so
    `policy.max_retries` of them are retried.
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
    """Whether the kind of failure can be retried."""
    # An envelope may retry fewer kinds than the platform, not more. Otherwise a caller could repeat refused
    # calls.
    if failure.kind not in RETRYABLE or failure.kind not in policy.retryable:
        return False
    if workflow is not EnvelopeWorkflow.EXECUTION:
        return True
    # A lost answer may have been billed and acted on: an order is only requested again if it surely never was.
    return not failure.sent and failure.kind is not FailureKind.TIMEOUT


_GRACE_S = 30.0
_OUTAGES = frozenset({FailureKind.SERVER_ERROR, FailureKind.TIMEOUT})
"""Failures that count against the provider. All others are about one request, or about this process."""


class Throttle:
    """Limits the calls to each model, and stops calls to a model that keeps failing.

    Waits in the time of `clock`.
    """

    def __init__(self, limiter: Limiter | None, clock: Clock, *, new_id: NewId = random_id) -> None:
        self._limiter = limiter
        self._clock = clock
        self._name = new_id()  # two workers with the same attempt have a permit each

    async def acquire(
        self, envelope: LLMEnvelope, id_: str, tokens: int, *, is_retry: bool
    ) -> Permit | Throttled | FailureReason | None:
        """Return a permit, a wait, or a refusal. None means unlimited."""
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
        # Rates protect the provider, not money, so that calls continue without the limiter.
        except LimiterUnavailableError:
            return None
        return _failure_of(answer) if isinstance(answer, NotPermitted) else answer

    async def wait(self, wait: Throttled) -> None:
        """Sleep until the attempt may be tried again."""
        await self._clock.sleep(wait.retry_after_s)

    async def answered(self, permit: Permit | None, tokens: int) -> None:
        """Release a permit after an answer that used `tokens`."""
        await self._release(permit, PermitOutcome.ANSWERED, tokens=tokens)

    async def failed(self, permit: Permit | None, failure: Failed | None) -> None:
        """Release a permit after a failed call.

        Without `failure` it does not count against the provider.
        """
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
