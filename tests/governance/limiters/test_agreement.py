"""Both limiters give the same answers to the same steps, as long as time plays no part."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_trading.governance.limiter import (
    CircuitBreakerConfig,
    DeploymentStatus,
    Limiter,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limiters.redis import RedisLimiter
from tests.contracts.limiter_opening import DEPLOYMENT, HandClock
from tests.redis_server import namespace

BREAKER = CircuitBreakerConfig(window_s=3600, min_calls=4, failure_rate=0.6, wait_open_s=3600)
RETRIES = RetryBudget(share=0.25, least=2, window_s=3600)


@dataclass(frozen=True, slots=True)
class Enter:
    id: int
    tens: int
    priority: int
    is_retry: bool


@dataclass(frozen=True, slots=True)
class Leave:
    id: int
    outcome: PermitOutcome
    tens: int | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    id: int


ids = st.integers(0, 9)
step = st.one_of(
    st.builds(Enter, ids, st.integers(0, 12), st.integers(-1, 1), st.booleans()),
    st.builds(Leave, ids, st.sampled_from(PermitOutcome), st.none() | st.integers(0, 12)),
    st.builds(GiveUp, ids),
)


async def told(limiter: Limiter, steps: list[Enter | Leave | GiveUp]) -> list[object]:
    """Return what the limiter answers, without what goes by the clock."""
    answers: list[object] = []
    for one in steps:
        match one:
            case Enter(id_, tens, priority, is_retry):
                wanted = PermitRequest(DEPLOYMENT, str(id_), tens * 10, priority, is_retry=is_retry)
                answers.append(_timeless(await limiter.acquire(wanted)))
            case Leave(id_, outcome, tens):
                used = None if tens is None else tens * 10
                await limiter.release(Permit(DEPLOYMENT, str(id_), 0), outcome, tokens=used)
            case GiveUp(id_):
                await limiter.cancel(PermitRequest(DEPLOYMENT, str(id_)))
        answers.append(_timeless(await limiter.status(DEPLOYMENT)))
    return answers


def _timeless(answer: Permit | Throttled | NotPermitted | DeploymentStatus) -> object:
    if isinstance(answer, Throttled | NotPermitted):
        return type(answer), answer.reason
    if isinstance(answer, DeploymentStatus) and answer.tokens_left is not None:
        return replace(answer, tokens_left=answer.tokens_left // 10)
    return answer


# The server is shared by all examples: each has keys of its own.
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(step, min_size=1, max_size=40),
    requests=st.none() | st.integers(2, 12),
    tokens=st.none() | st.integers(1, 9).map(lambda tens: tens * 10),
    concurrent=st.none() | st.integers(1, 4),
)
def test_memory_and_redis_agree(
    redis_url: str,
    steps: list[Enter | Leave | GiveUp],
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
) -> None:
    limits = RateLimits(requests, tokens, concurrent)
    rules: dict[str, Any] = {"default": limits, "breaker": BREAKER, "retries": RETRIES, "place_s": 600}
    shared = RedisLimiter(redis_url, **rules, namespace=namespace())

    async def both() -> tuple[list[object], list[object]]:
        alone = MemoryLimiter(**rules, clock=HandClock())
        try:
            return await told(alone, steps), await told(shared, steps)
        finally:
            await shared.aclose()

    in_memory, on_redis = asyncio.run(both())
    assert on_redis == in_memory
