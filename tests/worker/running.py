"""A pool that runs for as long as a block."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import Clock
from tests.gateway import MemoryGateway


@asynccontextmanager
async def running(desk: MemoryGateway, *, wall: Clock | None = None) -> AsyncGenerator[GatewayClient]:
    """Run the pool, give a client, and stop the pool when the block ends."""
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.pool.run())
        async with GatewayClient(desk.broker, wall=wall) as client:
            yield client
        desk.pool.stop()
