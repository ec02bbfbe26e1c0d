"""The memory limiter under any plan: rates, calls at once and the order of the line hold at every moment."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import SystemClock
from agentic_trading.governance.limiter import (
    CircuitBreakerConfig,
    Deployment,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import KEPT_S, MemoryLimiter
from agentic_trading.llm.envelope import LLMProvider
from tests.contracts.limiter_opening import DEPLOYMENT, OTHER, HandClock, request

MINUTE_MS = 60_000
NEVER_OPENS = CircuitBreakerConfig(min_calls=10**6)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who comes after `comes_ms`, wants so much, and stays for `stays_ms`."""

    comes_ms: int
    tokens: int
    priority: int
    stays_ms: int
    used: float


callers = st.builds(
    Caller,
    comes_ms=st.integers(0, 20_000),
    tokens=st.integers(0, 30),
    priority=st.integers(0, 2),
    stays_ms=st.integers(1, 5000),
    used=st.floats(0, 1),
)


@dataclass
class World:
    """Callers at one limiter, moment by moment."""

    limits: RateLimits
    clock: HandClock = field(default_factory=HandClock)
    entered: list[tuple[int, Caller]] = field(default_factory=list)
    call: list[tuple[int, Permit, Caller]] = field(default_factory=list)
    waiting: list[tuple[int, PermitRequest, Caller]] = field(default_factory=list)
    most_inside: int = 0

    def __post_init__(self) -> None:
        self.limiter = MemoryLimiter(default=self.limits, breaker=NEVER_OPENS, clock=self.clock)

    async def run(self, plan: list[Caller]) -> None:
        coming = sorted(((self.clock.ms + one.comes_ms, one) for one in plan), key=lambda pair: pair[0])
        while coming or self.call or self.waiting:
            times = [at for at, _ in coming[:1]] + [at for at, *_ in self.call + self.waiting]
            self.clock.ms = max(self.clock.ms, min(times))
            await self._leave()
            while coming and coming[0][0] <= self.clock.ms:
                _, caller = coming.pop(0)
                self.waiting.append((self.clock.ms, request(caller.tokens, priority=caller.priority), caller))
            await self._ask()

    async def _leave(self) -> None:
        for one in [one for one in self.call if one[0] <= self.clock.ms]:
            self.call.remove(one)
            _, permit, caller = one
            await self.limiter.release(
                permit, PermitOutcome.ANSWERED, tokens=int(caller.tokens * caller.used)
            )

    async def _ask(self) -> None:
        for one in [one for one in self.waiting if one[0] <= self.clock.ms]:
            self.waiting.remove(one)
            _, wanted, caller = one
            answer = await self.limiter.acquire(wanted)
            match answer:
                case Permit():
                    self.entered.append((self.clock.ms, caller))
                    self.call.append((self.clock.ms + caller.stays_ms, answer, caller))
                    self.most_inside = max(self.most_inside, len(self.call))
                case Throttled():
                    assert 0 < answer.retry_after_s <= 1
                    self.waiting.append((self.clock.ms + round(answer.retry_after_s * 1000), wanted, caller))
                case NotPermitted():
                    raise AssertionError(answer)


@given(
    plan=st.lists(callers, min_size=1, max_size=25),
    requests=st.integers(5, 60),
    tokens=st.integers(30, 300),
    concurrent=st.integers(1, 5),
)
def test_all_callers_enter_within_limits(
    plan: list[Caller], requests: int, tokens: int, concurrent: int
) -> None:
    world = World(RateLimits(requests, tokens, concurrent))

    asyncio.run(world.run(plan))

    assert len(world.entered) == len(plan)
    assert world.most_inside <= concurrent
    for start_ms, _ in world.entered:
        minute = [caller for at_ms, caller in world.entered if start_ms <= at_ms <= start_ms + MINUTE_MS]
        assert len(minute) <= 2 * requests
        assert sum(int(caller.tokens * caller.used) for caller in minute) <= 2 * tokens


@given(priorities=st.lists(st.integers(-2, 2), min_size=1, max_size=12), shuffled=st.permutations(range(12)))
def test_callers_enter_by_priority_then_arrival(priorities: list[int], shuffled: Sequence[int]) -> None:
    async def order() -> list[str]:
        clock = HandClock()
        limiter = MemoryLimiter(default=RateLimits(concurrent=1), clock=clock, place_s=3600)
        permit = await limiter.acquire(request(id_="first"))
        waiting = [request(id_=f"{n:02}", priority=priority) for n, priority in enumerate(priorities)]
        for one in waiting:
            assert isinstance(await limiter.acquire(one), Throttled)
        entered = []
        while waiting:
            assert isinstance(permit, Permit)
            await limiter.release(permit, PermitOutcome.ANSWERED)
            asking = sorted(waiting, key=lambda one: shuffled[int(one.id)])
            answers = [(one, await limiter.acquire(one)) for one in asking]
            (chosen, permit), *others = [pair for pair in answers if isinstance(pair[1], Permit)]
            assert others == []
            entered.append(chosen.id)
            waiting.remove(chosen)
        return entered

    expected = sorted(range(len(priorities)), key=lambda n: (-priorities[n], n))
    assert asyncio.run(order()) == [f"{n:02}" for n in expected]


async def test_lane_limits_override_the_default() -> None:
    limits = {DEPLOYMENT: RateLimits(requests_per_minute=7)}
    limiter = MemoryLimiter(limits, default=RateLimits(concurrent=3), clock=SystemClock())

    assert (await limiter.status(DEPLOYMENT)).limits == RateLimits(requests_per_minute=7)
    assert (await limiter.status(OTHER)).limits == RateLimits(concurrent=3)
    await limiter.aclose()


async def test_expired_permits_free_all_slots() -> None:
    clock = HandClock()
    limiter = MemoryLimiter(default=RateLimits(concurrent=10_000), clock=clock)
    for _ in range(10_000):
        assert isinstance(await limiter.acquire(request(lease_s=1)), Permit)
    assert isinstance(await limiter.acquire(request()), Throttled)

    await clock.sleep(1)

    assert (await limiter.status(DEPLOYMENT)).in_flight == 0
    assert isinstance(await limiter.acquire(request()), Permit)


async def test_only_unused_models_are_forgotten() -> None:
    clock = HandClock()
    limiter = MemoryLimiter(default=RateLimits(requests_per_minute=10, concurrent=1), clock=clock)
    permit = await limiter.acquire(request())
    for number in range(1000):
        await limiter.acquire(request(deployment=Deployment(LLMProvider.LOCAL, f"model-{number}")))
    await clock.sleep(KEPT_S - 1)
    assert isinstance(await limiter.acquire(request()), Permit)  # the lease of the first is over
    assert isinstance(permit, Permit)
    await clock.sleep(2)

    await limiter.acquire(request(deployment=OTHER))

    assert list(limiter._limiters) == list(limiter._stepped_ms) == [DEPLOYMENT, OTHER]
    assert (await limiter.status(DEPLOYMENT)).in_flight == 1
