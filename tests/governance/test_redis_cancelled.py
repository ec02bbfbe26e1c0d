"""Who is cancelled while it asks a server is cancelled, at whatever moment that comes: else it could not be stopped."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limiter import Deployment, PermitRequest
from agentic_trading.governance.limiters.redis import RedisLimiter
from agentic_trading.governance.status_feeds.redis import RedisStatusFeed
from agentic_trading.llm.envelope import LLMProvider
from tests.governance.asking import ask
from tests.governance.reporting import told
from tests.redis_server import namespace

ROUNDS = 60
"""The loop goes round less often than that while a server is asked."""

Asking = Callable[[], Awaitable[object]]


@asynccontextmanager
async def asked(url: str) -> AsyncGenerator[dict[str, Asking]]:
    """Give what each adapter asks its server, once they have a connection."""
    name = namespace()
    async with AsyncExitStack() as closing:
        ledger = await asyncio.to_thread(RedisLedger, url, namespace=name)
        limiter = await asyncio.to_thread(RedisLimiter, url, namespace=name)
        board = await asyncio.to_thread(RedisControlStore, url, namespace=name)
        statuses = await asyncio.to_thread(RedisStatusFeed, url, namespace=name)
        for one in (ledger, limiter, board, statuses):
            closing.push_async_callback(one.aclose)
        lane = Deployment(LLMProvider.SCRIPTED, "scripted-1")
        steps: dict[str, Asking] = {
            "ledger": lambda: ledger.reserve(ask(1)),
            "ledger, page by page": lambda: ledger.balances("acme"),
            "limiter": lambda: limiter.acquire(PermitRequest(lane, "attempt")),
            "orders": lambda: board.read("acme"),
            "an order": lambda: board.replace("acme", TenantControls(version=1)),
            "tidings": lambda: statuses.read("acme"),
            "a tiding": lambda: statuses.publish(told()),
        }
        for step in steps.values():
            await step()
        yield steps


@pytest.mark.parametrize(
    "name",
    ["ledger", "ledger, page by page", "limiter", "orders", "an order", "tidings", "a tiding"],
)
async def test_who_is_cancelled_is_cancelled(name: str, redis_url: str) -> None:
    async def take(step: Asking) -> None:
        await step()

    async with asked(redis_url) as steps:
        swallowed = []
        for rounds in range(ROUNDS):
            task = asyncio.Task(take(steps[name]))
            for _ in range(rounds):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait([task])
                if not task.cancelled():
                    swallowed.append(rounds)
        assert swallowed == []
