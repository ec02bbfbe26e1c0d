"""The Redis limiter is one limiter for all processes, and says so when its server is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from redis.asyncio import Redis

from agentic_trading.governance.errors import LimiterUnavailableError
from agentic_trading.governance.limiter import (
    CircuitBreakerConfig,
    CircuitState,
    NotPermitted,
    Permit,
    PermitOutcome,
    RateLimits,
    Throttled,
)
from agentic_trading.governance.limiters.redis import RedisLimiter
from tests.contracts.limiter_opening import DEPLOYMENT, OTHER, request
from tests.redis_server import RealServer, namespace

OPEN = RateLimits()
FAILS_FAST = CircuitBreakerConfig(min_calls=2, wait_open_s=60)


@asynccontextmanager
async def limiters(
    url: str, count: int = 1, limits: RateLimits = OPEN, space: str = ""
) -> AsyncIterator[list[RedisLimiter]]:
    """Open as many limiters as there would be processes."""
    # However long a test is held up, no place in the queue is lost meanwhile.
    make = partial(
        RedisLimiter, url, default=limits, breaker=FAILS_FAST, place_s=600, namespace=space or namespace()
    )
    opened = [await asyncio.to_thread(make) for _ in range(count)]
    try:
        yield opened
    finally:
        for limiter in opened:
            await limiter.aclose()


async def test_processes_share_concurrency_limit(redis_url: str) -> None:
    async with limiters(redis_url, 2, RateLimits(concurrent=1)) as (one, other):
        permit = await one.acquire(request())
        assert isinstance(permit, Permit)
        assert isinstance(await other.acquire(request(id_="first")), Throttled)
        assert isinstance(await one.acquire(request(id_="second")), Throttled)

        await other.release(permit, PermitOutcome.ANSWERED)

        assert isinstance(await one.acquire(request(id_="second")), Throttled)
        assert isinstance(await one.acquire(request(id_="first")), Permit)


async def test_processes_share_a_circuit(redis_url: str) -> None:
    async with limiters(redis_url, 2) as (one, other):
        for _ in range(2):
            permit = await one.acquire(request())
            assert isinstance(permit, Permit)
            await one.release(permit, PermitOutcome.FAILED)

        assert isinstance(await other.acquire(request()), NotPermitted)
        assert (await other.status(DEPLOYMENT)).breaker is CircuitState.OPEN
        assert isinstance(await other.acquire(request(deployment=OTHER)), Permit)


async def test_concurrency_limit_holds_across_processes(redis_url: str) -> None:
    running, most, done = 0, 0, 0
    released = asyncio.Event()

    async def call(limiter: RedisLimiter) -> None:
        nonlocal running, most, done, released
        wanted = request(5)
        heard = released  # before it asks: what is released meanwhile is not missed
        while not isinstance(answer := await limiter.acquire(wanted), Permit):
            assert isinstance(answer, Throttled)
            await heard.wait()
            heard = released
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1
        await limiter.release(answer, PermitOutcome.ANSWERED)
        released.set()
        released = asyncio.Event()

    async with limiters(redis_url, 3, RateLimits(concurrent=4)) as opened, asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(call(opened[number % 3]))

    assert done == 12
    assert 1 < most <= 4


async def test_namespaces_have_separate_limits(redis_url: str) -> None:
    async with (
        limiters(redis_url, 1, RateLimits(concurrent=1)) as (one,),
        limiters(redis_url, 1, RateLimits(concurrent=1)) as (other,),
    ):
        assert isinstance(await one.acquire(request()), Permit)
        assert isinstance(await other.acquire(request()), Permit)


async def test_lane_keys_share_tag_and_expire(redis_url: str) -> None:
    space = namespace()
    async with (
        Redis.from_url(redis_url, decode_responses=True, driver_info=None) as client,
        limiters(redis_url, 1, RateLimits(concurrent=1), space) as (limiter,),
    ):
        await limiter.acquire(request(deployment=OTHER))
        await limiter.acquire(request(deployment=OTHER))

        keys = [key async for key in client.scan_iter(f"{space}:*")]

        tag = "{local/org%2F%7Bodd%7D%20model%3A1}"
        names = ("lane", "inside", "permits", "line", "places")
        assert sorted(keys) == sorted(f"{space}:{tag}:{name}" for name in names)
        for key in keys:
            assert 86_400_000 < await client.pttl(key) <= 172_800_000


async def test_flushed_scripts_are_loaded_again(redis_url: str) -> None:
    async with (
        Redis.from_url(redis_url, driver_info=None) as client,
        limiters(redis_url, 1, RateLimits(concurrent=1)) as (limiter,),
    ):
        permit = await limiter.acquire(request())
        assert isinstance(permit, Permit)

        await client.script_flush()

        assert isinstance(await limiter.acquire(request()), Throttled)
        await client.script_flush()
        await limiter.release(permit, PermitOutcome.ANSWERED)
        assert (await limiter.status(DEPLOYMENT)).in_flight == 0


async def test_cancelled_acquire_leaves_no_permit(redis_url: str) -> None:
    async with limiters(redis_url, 1, RateLimits(concurrent=1)) as (limiter,):
        for wait_s in (0.0, 0.0001, 0.0005, 0.001, 0.002):
            wanted = request()
            try:
                async with asyncio.timeout(wait_s):
                    await limiter.acquire(wanted)
            except TimeoutError:
                pass
            await limiter.cancel(wanted)

        status = await limiter.status(DEPLOYMENT)
        assert (status.in_flight, status.waiting) == (0, 0)
        assert isinstance(await limiter.acquire(request()), Permit)


async def test_refused_connection_raises_limiter_unavailable(own_redis: RealServer) -> None:
    own_redis.kill()
    async with limiters(own_redis.url) as (limiter,), asyncio.timeout(1):
        with pytest.raises(LimiterUnavailableError, match="ConnectionError"):
            await limiter.acquire(request())
        with pytest.raises(LimiterUnavailableError):
            await limiter.release(Permit(DEPLOYMENT, "any", 0), PermitOutcome.ANSWERED)
        with pytest.raises(LimiterUnavailableError):
            await limiter.cancel(request())
        with pytest.raises(LimiterUnavailableError):
            await limiter.status(DEPLOYMENT)


async def test_lane_state_survives_server_crash(own_redis: RealServer) -> None:
    async with limiters(own_redis.url, 1, RateLimits(concurrent=2)) as (limiter,):
        wanted = request()
        permit = await limiter.acquire(wanted)
        assert isinstance(permit, Permit)

        await asyncio.to_thread(own_redis.kill)
        with pytest.raises(LimiterUnavailableError):
            await limiter.release(permit, PermitOutcome.ANSWERED)
        await asyncio.to_thread(own_redis.start)

        assert await limiter.acquire(wanted) == permit
        await limiter.release(permit, PermitOutcome.ANSWERED)
        status = await limiter.status(DEPLOYMENT)
        assert (status.in_flight, status.answered) == (0, 1)


async def test_server_error_makes_limiter_unavailable(redis_url: str) -> None:
    space = namespace()
    async with (
        Redis.from_url(redis_url, driver_info=None) as client,
        limiters(redis_url, space=space) as (limiter,),
    ):
        await client.set(f"{space}:{{anthropic/{DEPLOYMENT.model}}}:lane", "something else")

        with pytest.raises(LimiterUnavailableError, match="ResponseError"):
            await limiter.acquire(request())
