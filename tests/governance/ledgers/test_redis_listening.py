"""Who waits is called again after a connection that was taken and never answered."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from agentic_trading.governance.ledger import Reservation
from agentic_trading.governance.ledgers.redis import RedisLedger
from tests.contracts.ledger_opening import in_line
from tests.governance.asking import ask, reserved, tenant
from tests.governance.ledgers.redis_ledgers import ledgers
from tests.redis_server import namespace, own_server, servers

A_SILENCE_S = 1.5
"""Longer than a listener waits for one message."""

SOME = 100
"""After so many answers of the server, whoever could go on has gone on."""


class Between:
    """What stands between a ledger and its server: it may fall silent, for connections that are made from then on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._there: set[asyncio.StreamWriter] = set()
        self._listening: set[asyncio.StreamWriter] = set()
        self.is_silent = False
        self.was_tried = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on, both ways, or say nothing."""
        self._there.add(writer)
        try:
            if self.is_silent:
                self.was_tried.set()
                await reader.read(-1)
            else:
                await self._passed_on(reader, writer)
        finally:
            self._there.discard(writer)
            self._listening.discard(writer)
            writer.close()

    def break_off(self, *, only_listening: bool = False) -> None:
        """Close all connections, or those on which somebody listens."""
        for writer in list(self._listening if only_listening else self._there):
            writer.close()

    async def _passed_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copied(reader, to_server, lambda: self._listening.add(writer)))
            group.create_task(_copied(from_server, writer))


async def _copied(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_listening: Callable[[], None] | None = None
) -> None:
    try:
        while data := await reader.read(1 << 16):
            if on_listening is not None and b"PSUBSCRIBE" in data:
                on_listening()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


@asynccontextmanager
async def between(port: int) -> AsyncGenerator[tuple[Between, str]]:
    """Stand between; give the address to ask."""
    proxy = Between(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        yield proxy, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        proxy.break_off()


async def listening(ledger: RedisLedger, how_many: int) -> None:
    """Wait until so many listen on the server, and for some answers more."""
    times = 0
    while times < SOME:
        found = await ledger._server._redis.execute_command("PUBSUB", "NUMPAT")
        times = times + 1 if found == how_many else 0


@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "missed"])
async def test_waiter_is_notified_after_silent_connection(*, is_heard: bool) -> None:
    name = namespace()
    with own_server(servers()[-1]) as server:
        async with (
            between(int(server.url.split(":")[-1].split("/")[0])) as (proxy, url),
            ledgers(server.url, name) as direct,
            ledgers(url, name) as opens,
        ):
            holder, waiting = await direct([tenant(100)]), await opens([tenant(100)], look_s=3600)
            first = await reserved(holder, ask(100))

            async with asyncio.timeout(16), asyncio.TaskGroup() as group:
                answer = group.create_task(waiting.wait_for_reservation(ask(30)))
                await in_line(holder, 1)
                await listening(holder, 1)
                proxy.is_silent = True
                proxy.break_off(only_listening=True)
                await proxy.was_tried.wait()
                await listening(holder, 0)
                if not is_heard:
                    await holder.release(first)
                proxy.is_silent = False
                if is_heard:
                    await listening(holder, 1)
                    assert await asyncio.wait([answer], timeout=A_SILENCE_S) == (set(), {answer})
                    await holder.release(first)

    assert isinstance(answer.result(), Reservation)
