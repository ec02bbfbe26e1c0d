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
from agentic_trading.governance.limiters.deployment import PLACE_S, DeploymentLimiter


class MemoryLimiter:
    """Keep the port's promise among the tasks of one process; time is the clock's `monotonic`.

    `limits` are those of named lanes, `default` those of every other one by itself. `place_s` is how long after its
    wait a place in line is kept for who does not ask again.
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
        self._books: dict[Deployment, DeploymentLimiter] = {}

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Let an attempt in, or say for how long not."""
        now_ms = self._now_ms()
        return self._book(entry.lane, now_ms).enter(entry, self._place_s, now_ms)

    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        """End a permit; harmless twice, and after its lease."""
        now_ms = self._now_ms()
        self._book(permit.lane, now_ms).leave(permit.id, outcome, tokens, pause_s, now_ms)

    async def give_up(self, entry: PermitRequest) -> None:
        """Forget an attempt that does not want to enter any more and was not sent."""
        now_ms = self._now_ms()
        self._book(entry.lane, now_ms).give_up(entry.id, now_ms)

    async def status(self, lane: Deployment) -> DeploymentStatus:
        """Return how a lane stands."""
        now_ms = self._now_ms()
        return self._book(lane, now_ms).status(now_ms)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _book(self, lane: Deployment, now_ms: int) -> DeploymentLimiter:
        book = self._books.get(lane)
        if book is None:
            limits = self._limits.get(lane, self._default)
            book = self._books[lane] = DeploymentLimiter(
                lane, limits, self._breaker, self._retries, now_ms=now_ms
            )
        return book

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)
