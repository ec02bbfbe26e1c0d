"""Rates and breakers of one process, in memory."""

from collections.abc import Mapping

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.limiter import (
    CircuitBreakerConfig,
    Deployment,
    DeploymentStatus,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import KEPT_S, PLACE_S, DeploymentLimiter


class MemoryLimiter:
    """Keep the port's promise among the tasks of one process; time is the clock's `monotonic`.

    `limits` are those of named deployments, `default` those of every other one by itself. `place_s` is how long after
    its `retry_after_s` a place in the queue is kept without another `acquire`.
    """

    def __init__(
        self,
        limits: Mapping[Deployment, RateLimits] | None = None,
        *,
        default: RateLimits = RateLimits(),  # noqa: B008 - a frozen value
        breaker: CircuitBreakerConfig = CircuitBreakerConfig(),  # noqa: B008 - a frozen value
        retries: RetryBudget = RetryBudget(),  # noqa: B008 - a frozen value
        place_s: float = PLACE_S,
        clock: Clock | None = None,
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._breaker = breaker
        self._retries = retries
        self._place_s = place_s
        self._clock = clock or SystemClock()
        self._limiters: dict[Deployment, DeploymentLimiter] = {}  # the longest without a step first
        self._stepped_ms: dict[Deployment, int] = {}

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Return a permit, or for how long there is none."""
        now_ms = self._now_ms()
        return self._limiter_of(request.deployment, now_ms).acquire(request, self._place_s, now_ms)

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        """End a permit; harmless twice, and after its lease."""
        now_ms = self._now_ms()
        self._limiter_of(permit.deployment, now_ms).release(permit.id, outcome, tokens, cooldown_s, now_ms)

    async def cancel(self, request: PermitRequest) -> None:
        """Forget an attempt that was not sent and will not be."""
        now_ms = self._now_ms()
        self._limiter_of(request.deployment, now_ms).cancel(request.id, now_ms)

    async def status(self, deployment: Deployment) -> DeploymentStatus:
        """Return the state of a deployment."""
        now_ms = self._now_ms()
        return self._limiter_of(deployment, now_ms).status(now_ms)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _limiter_of(self, deployment: Deployment, now_ms: int) -> DeploymentLimiter:
        limiter = self._limiters.pop(deployment, None)
        if limiter is None:
            self._forget(now_ms - round(KEPT_S * 1000))
            limits = self._limits.get(deployment, self._default)
            limiter = DeploymentLimiter(deployment, limits, self._breaker, self._retries, now_ms=now_ms)
        self._limiters[deployment] = limiter
        self._stepped_ms[deployment] = now_ms
        return limiter

    def _forget(self, before_ms: int) -> None:
        """Drop the deployments whose last step was before a moment, so that names used once do not stay."""
        for deployment in list(self._limiters):
            if self._stepped_ms[deployment] > before_ms:
                break
            del self._limiters[deployment], self._stepped_ms[deployment]

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)
