"""The port of rate limits, and the throttle that acquires a permit for each attempt."""

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
"""For how long a permit counts as in flight, where nothing else is said."""

LONGEST_LEASE_S = 86_400.0

LONGEST_COOLDOWN_S = 3600.0
"""The longest cooldown that is kept; a provider that asks for more is tried again after this one."""

LOOK_AGAIN_S = 1.0
"""The longest `retry_after_s` where headroom that comes back early may end the wait; a cooldown is returned in full."""

MOST_TOKENS = 10**9
"""No call uses more."""

MOST_A_MINUTE = 10**10
"""No provider allows more; whole numbers stay exact on the way through Lua."""


class Deployment(NamedTuple):
    """One model at one provider: what rates are for, shared by all tenants and processes."""

    provider: LLMProvider
    model: str


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What a deployment takes: requests and tokens a minute, calls at once; None is no limit. Raises `LimitError`."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that let nothing through: to stop a model there are halts."""
        _check("requests_per_minute", self.requests_per_minute, least=1, most=MOST_A_MINUTE)
        _check("tokens_per_minute", self.tokens_per_minute, least=1, most=MOST_A_MINUTE)
        _check("concurrent", self.concurrent, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class CircuitBreakerConfig:
    """When a circuit opens: of at least `min_calls` ended within `window_s`, `failure_rate` (0 to 1) failed.

    It stays open for `wait_open_s`; then `half_open_calls` at once may probe. The window moves in tenths of itself.
    Raises `LimitError`.
    """

    window_s: float = 30.0
    min_calls: int = 10
    failure_rate: float = 0.5
    wait_open_s: float = 30.0
    half_open_calls: int = 1

    def __post_init__(self) -> None:
        """Refuse rules that would open for nothing, or never close."""
        _check("window_s", self.window_s, least=0.001, most=86_400)
        _check("min_calls", self.min_calls, least=1, most=MOST_A_MINUTE)
        _check("failure_rate", self.failure_rate, least=0.001, most=1)
        _check("wait_open_s", self.wait_open_s, least=0.001, most=86_400)
        _check("half_open_calls", self.half_open_calls, least=1, most=MOST_A_MINUTE)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many retries a deployment takes: `share` of the calls permitted within `window_s`, but `least` in any case.

    The window moves in twelfths of itself. Raises `LimitError`.
    """

    share: float = 0.1
    least: int = 10
    window_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        _check("share", self.share, least=0, most=1)
        _check("least", self.least, least=0, most=MOST_A_MINUTE)
        _check("window_s", self.window_s, least=0.001, most=86_400)

    def left(self, calls: int, retries: int) -> int:
        """Return how many retries more may go after `retries` of `calls` in all."""
        return max(0, max(self.least, int(self.share * calls + 1e-9)) - retries)


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """One attempt to be sent.

    `id` is its reservation's; acquiring again with it is the same request. `tokens` is the most it can use, input and
    output. In the queue it goes before those that came up to `priority` seconds earlier. After `lease_s` without a release its permit is free again. Raises
    `ValueError`.
    """

    deployment: Deployment
    id: str
    tokens: int = 0
    priority: int = 0
    lease_s: float = LEASE_S
    is_retry: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        if not self.id:
            raise ValueError("a permit request without an id; allowed are ids that are not empty")
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise ValueError(
                f"permit request {self.id!r} has {self.tokens} tokens; allowed are 0 to {MOST_TOKENS}"
            )
        if not 0 < self.lease_s <= LONGEST_LEASE_S:
            raise ValueError(
                f"permit request {self.id!r} has a lease of {self.lease_s} s; allowed is more than 0, to {LONGEST_LEASE_S:.0f}"
            )


@dataclass(frozen=True, slots=True)
class Permit:
    """The call may be sent; `tokens` were taken from the deployment's bucket for it."""

    deployment: Deployment
    id: str
    tokens: int


ThrottleReason = Literal["requests", "tokens", "concurrent", "queue", "cooldown"]
NotPermittedReason = Literal["circuit_open", "retry_budget"]


@dataclass(frozen=True, slots=True)
class Throttled:
    """Not yet: acquire again after `retry_after_s` (more than 0, and finite); until some seconds later a place is kept.

    `requests`, `tokens`, `concurrent`: the deployment has too little left; `queue`: there is enough, but for requests
    with a better place; `cooldown`: the provider asked for one.
    """

    deployment: Deployment
    reason: ThrottleReason
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """Not to be sent; no place is kept. Within `retry_after_s` (more than 0, and finite) that will hardly change."""

    deployment: Deployment
    reason: NotPermittedReason
    retry_after_s: float


class PermitOutcome(StrEnum):
    """How a call ended, as far as its deployment is concerned."""

    ANSWERED = "answered"
    FAILED = "failed"  # a server's error, a time-out, no connection
    UNUSED = "unused"  # never sent
    NEUTRAL = "neutral"  # rate limited, a refused request, cancelled: says nothing of the provider's health


class CircuitState(StrEnum):
    """`closed` → `open` (too many failed) → `half_open` (probes may try) → `closed` (answered) or `open` (failed)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A deployment as it is now; what has no limit has None left, and an overdrawn bucket 0.

    `answered` and `failed` are those that the breaker counts, `cooldown_s` is the rest of a cooldown.
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
    """Permit calls to a deployment no faster than its provider takes them, and not while it keeps failing.

    All that a request needs is looked at and taken in one step, however many come at once; adapters that share a
    server share deployments. Each bucket holds one minute's limit, begins full and fills evenly: within any minute no
    more is permitted than two minutes' limit, but for overdrafts (a call larger than the bucket, or than its request
    said). What a request with a better place (earlier, less its priority in seconds) waits for is not given to another; what
    is left beyond that is, so that the place of a dead process delays its own share only.

    The breaker counts what was answered and failed among calls permitted since it last opened or closed.

    Every method but `aclose` raises `LimiterUnavailableError` if the limiter's server cannot be reached.
    """

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Return a permit, or for how long there is none; nothing is taken then but a place in the queue.

        Again while the permit is in flight, it is the same permit, and its lease starts over; after its release it is
        another one. Again while waiting keeps the place. More tokens than the bucket can hold are permitted when it is
        full, and overdraw it. A retry counts when it is permitted.
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
        """End a permit; harmless twice, and after its lease.

        `tokens` are those really used (None: all that were taken; fewer than 0 count as 0, more than `MOST_TOKENS` as
        that many): the difference goes back to the bucket, or overdraws it. `unused` gives everything back, as if it
        had never been permitted, whatever `tokens` says. `cooldown_s` is the wait that the provider asked for (up to
        `LONGEST_COOLDOWN_S`; what is no number or not above 0 is none): nothing is permitted before, and a shorter one
        does not end a longer one.

        A permit whose lease ran out was released as `neutral` with all its tokens: whether it was answered is not
        known, and a crash of ours says nothing of the provider. Releasing it then changes nothing.
        """
        ...

    async def cancel(self, request: PermitRequest) -> None:
        """Forget an attempt that was not sent and will not be; harmless if nothing is known of it.

        Its place is free; if it got a permit meanwhile (its `acquire` was cancelled), that is released as `unused`.
        """
        ...

    async def status(self, deployment: Deployment) -> DeploymentStatus:
        """Return the state of a deployment."""
        ...

    async def aclose(self) -> None:
        """Close what is open; permits in flight end by their leases."""
        ...


def _check(subject: str, value: float | None, *, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise LimitError(subject, f"is {value}; allowed are {least} to {most}")


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
