"""What a promise of a limiter is given: an adapter with its rules, a clock that it goes by, and words to ask with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil
from typing import Protocol

from agentic_trading.clock import Clock
from agentic_trading.governance.limiter import (
    LEASE_S,
    LOOK_AGAIN_S,
    CircuitBreakerConfig,
    Deployment,
    DeploymentStatus,
    Limiter,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttled,
    ThrottleReason,
)
from agentic_trading.governance.limiters.deployment import PLACE_S
from agentic_trading.llm.envelope import LLMProvider

DEPLOYMENT = Deployment(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
OTHER = Deployment(LLMProvider.LOCAL, "org/{odd} model:1")

_numbers = count(1)


class HandClock:
    """A clock whose every kind of time moves when somebody sleeps, and by no more than that."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC) + timedelta(milliseconds=self.ms)

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.ms += ceil(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Rules:
    """All that an adapter is opened with."""

    limits: RateLimits = field(default_factory=RateLimits)
    breaker: CircuitBreakerConfig = field(default_factory=CircuitBreakerConfig)
    retries: RetryBudget = field(default_factory=RetryBudget)
    place_s: float = PLACE_S


@dataclass(frozen=True, slots=True)
class Asking:
    """A limiter, and what a test says to it; `pass_s` lets its time go by."""

    limiter: Limiter
    clock: Clock

    async def pass_s(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    async def status(self, deployment: Deployment = DEPLOYMENT) -> DeploymentStatus:
        return await self.limiter.status(deployment)

    async def enters(self, wanted: PermitRequest | None = None) -> Permit:
        """Return the permit that there must be."""
        wanted = wanted or request()
        answer = await self.limiter.acquire(wanted)
        assert answer == Permit(
            wanted.deployment, wanted.id, answer.tokens if isinstance(answer, Permit) else -1
        )
        return answer

    async def waits(self, wanted: PermitRequest, reason: ThrottleReason) -> float:
        """Return for how many seconds it must wait."""
        answer = await self.limiter.acquire(wanted)
        assert isinstance(answer, Throttled), answer
        assert answer.reason == reason
        assert answer.deployment == wanted.deployment
        assert answer.retry_after_s > 0
        assert reason == "cooldown" or answer.retry_after_s <= LOOK_AGAIN_S
        return answer.retry_after_s

    async def is_shut(self, wanted: PermitRequest | None = None) -> NotPermitted:
        """Return the answer that it must not try."""
        answer = await self.limiter.acquire(wanted or request())
        assert isinstance(answer, NotPermitted), answer
        assert 0 < answer.retry_after_s < 10_000
        return answer

    async def ends(self, *outcomes: PermitOutcome) -> None:
        """Let calls in, one after the other, that end like this."""
        for outcome in outcomes:
            await self.limiter.release(await self.enters(), outcome)


class Opens(Protocol):
    """Open an adapter by rules."""

    def __call__(self, rules: Rules) -> Awaitable[Asking]:
        """Return it, to be closed by who made this."""
        ...


Promise = Callable[[Opens], Awaitable[None]]


def request(
    tokens: int = 0,
    *,
    id_: str = "",
    deployment: Deployment = DEPLOYMENT,
    priority: int = 0,
    lease_s: float = LEASE_S,
    is_retry: bool = False,
) -> PermitRequest:
    """Return an entry of its own, but for what is said."""
    return PermitRequest(deployment, id_ or f"acme:{next(_numbers)}:1", tokens, priority, lease_s, is_retry)


def limited(
    requests: int | None = None,
    tokens: int | None = None,
    concurrent: int | None = None,
    place_s: float = PLACE_S,
) -> Rules:
    """Return rules with limits."""
    return Rules(RateLimits(requests, tokens, concurrent), place_s=place_s)
