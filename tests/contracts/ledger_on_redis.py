"""How a suite opens ledgers on a real server, each with keys of its own."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, tzinfo
from functools import partial

import pytest

from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import Limit
from tests.contracts.ledger_opening import Opens
from tests.redis_server import namespace


@asynccontextmanager
async def on_server(name: str, request: pytest.FixtureRequest) -> AsyncGenerator[Opens]:
    """Open ledgers on the server called `name`."""
    address: Callable[[str], str] = request.getfixturevalue("redis_named")
    url = await asyncio.to_thread(address, name)
    async with on_redis(url) as opens:
        yield opens


@asynccontextmanager
async def on_redis(url: str) -> AsyncGenerator[Opens]:
    """Open ledgers on the server at `url`."""
    async with AsyncExitStack() as closing:

        async def opens(*limits: Limit, zone: tzinfo | None = None, reserved_lease_s: float = 60.0) -> Ledger:
            make = partial(RedisLedger, url, limits, namespace=namespace())
            ledger = await asyncio.to_thread(make, zone=zone or UTC, reserved_lease_s=reserved_lease_s)
            closing.push_async_callback(ledger.aclose)
            return ledger

        yield opens
