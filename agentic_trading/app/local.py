"""A whole gateway within this process, for applications that need no separate workers."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal

from agentic_trading.app import wire
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.store import InteractionStore
from agentic_trading.worker.runner import Check


@asynccontextmanager
async def local_gateway(
    provider: Provider,
    *,
    store: InteractionStore,
    budget_usd: Decimal,
    workers: int = 4,
    checks: Mapping[str, Check] | None = None,
) -> AsyncGenerator[GatewayClient]:
    """Give a client whose calls are answered by `provider`, kept in `store`, and cost `budget_usd` at most in all.

    `checks` are rules beyond JSON Schema, by the schema's `$id`. Leaving the block finishes the calls under way and
    keeps what was recorded; the store stays open, as it was handed in open. Raises `StoreError` (within an
    `ExceptionGroup`) if the log cannot be written.
    """
    broker = wire.memory_broker()
    pool = wire.worker_pool(
        mode="paper",
        broker=broker,
        store=store,
        ledger=wire.budget_ledger(int(budget_usd * NANO)),
        answers=wire.Answers(provider),
        tables=await asyncio.to_thread(wire.load_tables),
        clock=SystemClock(),
        workers=workers,
        checks=checks or {},
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run(), name="worker-pool")
            async with GatewayClient(broker) as client:
                yield client
            pool.stop()
    finally:
        await provider.aclose()
        await broker.aclose()
