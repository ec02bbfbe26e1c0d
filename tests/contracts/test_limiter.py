"""Every limiter keeps every promise of the port, and the suite finds those that break one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.limiters.redis import RedisLimiter
from tests.contracts.broken_limiters import BROKEN
from tests.contracts.broken_rates import Whole
from tests.contracts.limiter_breaker import BREAKER
from tests.contracts.limiter_opening import Asking, HandClock, Opens, Promise, Rules
from tests.contracts.limiter_queue import LINE
from tests.contracts.limiter_rates import RATES
from tests.redis_server import namespace

PATIENCE_S = 4.0
PROMISES = (*RATES, *LINE, *BREAKER)
FOUND = (AssertionError, TimeoutError, pytest.fail.Exception)


@asynccontextmanager
async def on_redis(url: str) -> AsyncIterator[Opens]:
    async with AsyncExitStack() as stack:

        async def opens(rules: Rules) -> Asking:
            make = partial(RedisLimiter, default=rules.limits, breaker=rules.breaker, retries=rules.retries)
            limiter = await asyncio.to_thread(make, url, place_s=rules.place_s, namespace=namespace())
            stack.push_async_callback(limiter.aclose)
            return Asking(limiter, SystemClock())

        yield opens


def opening(broken: type[Whole]) -> Opens:
    async def opens(rules: Rules) -> Asking:
        clock = HandClock()
        return Asking(broken(rules, clock), clock)

    return opens


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_memory_limiter_keeps_promise(promise: Promise) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await promise(opening(Whole))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_redis_limiter_keeps_promise(redis_url: str, promise: Promise) -> None:
    async with asyncio.timeout(PATIENCE_S), on_redis(redis_url) as opens:
        await promise(opens)


@pytest.mark.parametrize(("broken", "promise"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_broken_limiter_is_detected(broken: type[Whole], promise: Promise) -> None:
    with pytest.raises(FOUND):
        async with asyncio.timeout(1):
            await promise(opening(broken))


def test_each_promise_has_broken_limiter() -> None:
    assert {promise for _, promise in BROKEN} == set(PROMISES)
