"""Who is cancelled while it asks a server is cancelled, at whatever moment that comes: else it could not be stopped."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from agentic_trading.governance.control_stores.redis import RedisControlStore, RedisStatusFeed
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limiter import Deployment, PermitRequest
from agentic_trading.governance.limiters.redis import RedisLimiter
from agentic_trading.llm.envelope import LLMProvider
from tests.governance.asking import ask
from tests.governance.reporting import told
from tests.redis_server import namespace

ROUNDS = 60
"""The loop goes round less often than that while a server is asked."""

OVERTAKES_WITHIN_S = 0.3
"""A step that does not wait for an earlier one is answered sooner than that."""

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
async def test_cancellation_is_never_swallowed(name: str, redis_url: str) -> None:
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


class Held:
    """What stands between a limiter and its server: from `holding` on, what one more connection sends waits for `release`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.holding = False
        self.held = asyncio.Event()
        self.release = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, both ways."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copied(reader, to_server, may_hold=True))
            group.create_task(self._copied(from_server, writer))

    async def _copied(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, may_hold: bool = False
    ) -> None:
        while data := await reader.read(1 << 16):
            if may_hold and self.holding:
                self.holding = False
                self.held.set()
                await self.release.wait()
            writer.write(data)
        writer.close()


async def test_next_request_waits_for_cancelled_request(redis_url: str) -> None:
    relay = Held(int(redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0]))
    async with await asyncio.start_server(relay.serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        limiter = await asyncio.to_thread(RedisLimiter, f"redis://127.0.0.1:{port}/0", namespace=namespace())
        lane = Deployment(LLMProvider.SCRIPTED, "scripted-1")
        wanted = PermitRequest(lane, "attempt")

        async def given_up() -> None:
            try:
                await limiter.acquire(wanted)
            finally:
                await limiter.cancel(wanted)

        await limiter.status(lane)
        relay.holding = True
        asking = asyncio.Task(given_up())
        await relay.held.wait()
        asking.cancel()
        await asyncio.wait([asking], timeout=OVERTAKES_WITHIN_S)
        relay.release.set()
        await asyncio.wait([asking])

        assert asking.cancelled()
        assert (await limiter.status(lane)).in_flight == 0
        await limiter.aclose()
