"""Ledgers on a real server, made off the loop and closed with the test."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from agentic_trading.governance.ledgers.redis import RedisLedger

Opening = Callable[..., Coroutine[Any, Any, RedisLedger]]


@asynccontextmanager
async def ledgers(url: str, name: str) -> AsyncGenerator[Opening]:
    """Open ledgers that share a server and a namespace, as those of several processes do."""
    async with AsyncExitStack() as closing:

        async def opens(*args: Any, **kwargs: Any) -> RedisLedger:
            make = partial(RedisLedger, url, *args, **{"namespace": name, **kwargs})
            ledger = await asyncio.to_thread(make)
            closing.push_async_callback(ledger.aclose)
            return ledger

        yield opens
