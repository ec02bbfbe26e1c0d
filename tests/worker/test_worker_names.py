"""What the name of a worker is to claims on a server: a restart frees what it held, and no other log has the name meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from agentic_trading.worker.claim import Busy, NameTakenError
from agentic_trading.worker.claims.redis import LEASE_S
from tests.worker.claims_on_server import KEY, Moved, Server, taken


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        yield Server(redis_url, opened)


async def test_restarted_process_frees_old_claims(server: Server) -> None:
    before, other = await server.process("one"), await server.process("two")
    await taken(before)
    assert await other.claim(KEY, "one") == Busy()

    assert (await taken(await server.process("one"))).count == 2


async def test_name_of_live_worker_is_refused(
    server: Server,
) -> None:
    first = await server.process("one", log_id="log-a")
    await taken(first)

    with pytest.raises(NameTakenError, match=r"'one' .* host-of-log-a .* host-of-log-b. Choose another name"):
        await server.process("one", log_id="log-b")
    assert await (await server.process("two")).claim(KEY, "one") == Busy()


async def test_closed_name_is_free_at_once(server: Server) -> None:
    async with Redis.from_url(server.url) as client:
        for turn in range(20):
            first = await server.process("one", log_id=f"log-{turn}")
            await client.ping()  # the question below leaves at once, without a new connection

            await first.aclose()

            assert await client.keys(server.name_keys) == []


async def test_close_keeps_name_of_another_log(server: Server) -> None:
    first = await server.process("one", log_id="log-a")
    await server.forget_names()
    await server.process("one", log_id="log-b")

    await first.aclose()

    with pytest.raises(NameTakenError, match="host-of-log-b"):
        await server.process("one", log_id="log-c")


async def test_worker_with_lost_name_keeps_claims(server: Server) -> None:
    clock = Moved()
    first = await server.process("one", clock, log_id="log-a")
    held = await taken(first)
    await server.forget_names()
    second = await server.process("one", log_id="log-b")

    assert await second.claim(KEY, "one") == Busy()
    with capture_logs() as said:
        async with asyncio.timeout(5):
            while not any(each["event"] == "worker_name_not_renewed" for each in said):
                clock.advance(LEASE_S / 30)
                await asyncio.sleep(0)
    await first.finish(held, lambda: b"last")


async def test_unnamed_processes_keep_separate_claims(server: Server) -> None:
    await taken(await server.process())

    assert await (await server.process()).claim(KEY, "one") == Busy()
