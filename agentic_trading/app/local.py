"""Workers and a client within one block."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentic_trading.bus.topic import Broker
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.worker.pool import WorkerPool


@asynccontextmanager
async def running_workers(pool: WorkerPool, broker: Broker) -> AsyncGenerator[GatewayClient]:
    """Run `pool` and give a client of it; `broker` is closed in the end.

    Leaving the block, also by an error, finishes the calls under way and keeps what was recorded. Errors come out
    in an `ExceptionGroup`, whether they are the block's or the `StoreError` of a log that gave up.
    """
    try:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(pool.run(), name="worker-pool")
            try:
                async with GatewayClient(broker) as client:
                    yield client
            except Exception:
                pool.stop()
                await work  # the group would cancel it, and events that are not stored yet would be lost
                raise
            pool.stop()
    finally:
        await broker.aclose()
