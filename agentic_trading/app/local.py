"""A whole gateway within this process, for applications that need no separate workers."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal

from agentic_trading import __version__
from agentic_trading.app import wire, wire_budgets
from agentic_trading.bus.topic import Broker
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.events import RunStarted
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import InteractionStore
from agentic_trading.worker.call_context import Check
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


@asynccontextmanager
async def local_gateway(
    provider: Provider,
    *,
    store: InteractionStore,
    budget_usd: Decimal,
    workers: int = 4,
    tenant: str = wire.DEFAULT_TENANT,
    checks: Mapping[str, Check] | None = None,
) -> AsyncGenerator[GatewayClient]:
    """Give a client whose calls are answered by `provider`, kept in `store`, and cost `budget_usd` at most in total.

    That holds as long as no usage passes its estimate; one that does is charged all the same, and counted.
    An envelope of another tenant than `tenant` is refused, so that there is one budget and not one each.
    `checks` are rules beyond JSON Schema, by the schema's `$id`. Leaving the block, also by an error, finishes
    the calls under way and keeps what was recorded; the store stays open, as it was handed in open. Errors come out
    in an `ExceptionGroup`: those of the block, and `StoreError` if the log cannot be written. A log in a file holds when
    the gateway was opened (`run.started`) and when it was left (`run.ended`), and one that cannot take these is a plain
    `StoreError`. All gateways of a tenant on a log are one run, so that two may not be open at the same time.
    """
    broker = wire.memory_broker()
    pool = wire.worker_pool(
        mode="paper",
        broker=broker,
        store=store,
        ledger=wire_budgets.budget_ledger(int(budget_usd * NANO)),
        answers=wire.AnswerSource(provider),
        tables=await asyncio.to_thread(wire.load_tables),
        clock=SystemClock(),
        workers=workers,
        checks=checks or {},
        tenant=tenant,
    )
    async with AsyncExitStack() as opened:
        opened.push_async_callback(provider.aclose)
        if isinstance(store, wire.Log):
            started = RunStarted(session_id=f"embedded:{tenant}", mode="embedded", package=__version__)
            await opened.enter_async_context(run_on_record(store, started, event_id=random_id()))
        yield await opened.enter_async_context(running_workers(pool, broker))
