"""Orders on a server outlive it, are told apart from what is not theirs, and a server that is away is an error, soon."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import AddHalt, execute_command
from agentic_trading.governance.control_stores.redis import RedisControlStore
from agentic_trading.governance.controls_document import HaltScope, TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, ControlsUnreadableError
from tests.build import NOW
from tests.redis_server import RealServer, namespace


@asynccontextmanager
async def opened(url: str, name: str = "agentic") -> AsyncIterator[RedisControlStore]:
    board = await asyncio.to_thread(lambda: RedisControlStore(url, namespace=name))
    try:
        yield board
    finally:
        await board.aclose()


async def halt(board: RedisControlStore, agent: str = "cmt-1") -> TenantControls:
    return await execute_command(board, "acme", AddHalt(HaltScope.AGENT, agent), by="ann", why="", at=NOW)


async def test_controls_survive_a_server_crash(own_redis: RealServer) -> None:
    async with opened(own_redis.url) as board:
        await halt(board)
        await asyncio.to_thread(own_redis.kill)
        with pytest.raises(ControlsUnavailableError, match=r"agentic:\{acme\}:controls"):
            await board.read("acme")
        await asyncio.to_thread(own_redis.start)

        after = await halt(board, "cmt-2")

    assert [one.id for one in after.halts] == ["cmt-1", "cmt-2"]


async def test_unreachable_server_fails_within_a_second(own_redis: RealServer) -> None:
    clock = SystemClock()
    await asyncio.to_thread(own_redis.kill)
    async with opened(own_redis.url) as board:
        started = clock.monotonic()
        for step in (board.read("acme"), board.replace("acme", TenantControls(version=1))):
            with pytest.raises(ControlsUnavailableError):
                await step

    assert clock.monotonic() - started < 1.0


async def test_flushed_script_is_loaded_again(own_redis: RealServer) -> None:
    async with opened(own_redis.url) as board, Redis.from_url(own_redis.url, driver_info=None) as client:
        await halt(board)
        await client.script_flush()

        assert (await halt(board, "cmt-2")).version == 2


async def test_full_server_error_mentions_maxmemory(own_redis: RealServer) -> None:
    async with opened(own_redis.url) as board, Redis.from_url(own_redis.url, driver_info=None) as client:
        await client.config_set("maxmemory", "1")

        with pytest.raises(ControlsUnavailableError, match="maxmemory"):
            await halt(board)


async def a_text(client: Any, key: str) -> None:
    await client.set(key, "text")


async def a_hash_of_others(client: Any, key: str) -> None:
    await client.hset(key, "a", "b")


async def a_broken_document(client: Any, key: str) -> None:
    await client.hset(key, mapping={"version": "1", "document": '{"version": 1, "pauses": []}'})


async def a_version_of_another_document(client: Any, key: str) -> None:
    await client.hset(key, mapping={"version": "1", "document": '{"version": 2}'})


@pytest.mark.parametrize("put", [a_text, a_hash_of_others, a_broken_document, a_version_of_another_document])
async def test_unreadable_key_is_rejected_unchanged(
    redis_url: str, put: Callable[[Any, str], Awaitable[None]]
) -> None:
    name = namespace()
    key = f"{name}:{{acme}}:controls"
    async with opened(redis_url, name) as board, Redis.from_url(redis_url, driver_info=None) as client:
        await put(client, key)
        before = await client.dump(key)

        with pytest.raises(ControlsUnreadableError, match="It was not changed"):
            await board.read("acme")
        with pytest.raises(ControlsUnreadableError):
            await halt(board)

        assert await client.dump(key) == before


@pytest.mark.parametrize("put", [a_text, a_hash_of_others])
async def test_foreign_key_is_never_overwritten(
    redis_url: str, put: Callable[[Any, str], Awaitable[None]]
) -> None:
    name = namespace()
    key = f"{name}:{{acme}}:controls"
    async with opened(redis_url, name) as board, Redis.from_url(redis_url, driver_info=None) as client:
        await put(client, key)
        before = await client.dump(key)

        with pytest.raises(ControlsUnreadableError):
            await board.replace("acme", TenantControls(version=1))

        assert await client.dump(key) == before


async def test_namespaces_are_isolated(redis_url: str) -> None:
    async with opened(redis_url, namespace()) as one, opened(redis_url, namespace()) as other:
        await halt(one)

        assert await other.read("acme") == TenantControls()


async def test_caller_waits_for_free_connection(redis_url: str) -> None:
    async with opened(redis_url, namespace()) as board:
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(board.read(f"tenant-{number}")) for number in range(100)]

        assert [read.result() for read in reads] == [TenantControls()] * 100
