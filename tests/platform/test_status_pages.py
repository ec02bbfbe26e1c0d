"""Health over HTTP: silent, slow and many connections do not keep a probe from its answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.platform.status_pages import (
    MOST_ANSWERS,
    MOST_SILENT,
    ListenError,
    StartingProcess,
    StatusPages,
    status_server,
)

pytestmark = pytest.mark.timeout(60)


BODY_BYTES = 32 << 20


class Asked:
    """A process whose answers come when the test says so."""

    def __init__(self) -> None:
        self.asked, self.all_asked, self.go = 0, asyncio.Event(), asyncio.Event()

    async def health(self) -> Mapping[str, Any]:
        self.asked += 1
        if self.asked == MOST_ANSWERS:
            self.all_asked.set()
        await self.go.wait()
        return {"state": "serving", "ready": True, "problems": {}}

    async def metrics(self) -> bytes:
        return b"x" * BODY_BYTES


class Noting(StatusPages):
    """Pages that note when a connection has ended."""

    def __init__(self, shown: Asked, *, answer_within_s: float) -> None:
        super().__init__(shown, answer_within_s=answer_within_s)
        self.ended = asyncio.Event()

    @override
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super().serve(reader, writer)
        self.ended.set()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(pages: StatusPages) -> AsyncGenerator[int]:
    async with status_server(pages, "127.0.0.1:0") as address:
        yield int(address.rpartition(":")[2])


async def asking(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def silent(port: int, count: int) -> list[Connection]:
    found = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in found:
        writer.write(b"GET /livez HTTP/1.1\r\n")
    return found


@pytest.mark.parametrize("count", [40, MOST_SILENT + 50])
async def test_liveness_is_answered_despite_silent_connections(count: int) -> None:
    async with served(StatusPages(StartingProcess("its files"))) as port:
        idle = await silent(port, count)
        answers = [(await asking(port, "/livez"))[:15] for _ in range(20)]
        for _, writer in idle:
            writer.close()

    assert answers == [b"HTTP/1.1 200 OK"] * 20


async def test_silent_connection_is_closed_after_timeout() -> None:
    async with served(StatusPages(StartingProcess("its files"), request_within_s=0.05)) as port:
        [(reader, writer)] = await silent(port, 1)
        left = await reader.read()
        writer.close()

    assert left == b""


async def test_slow_reader_is_closed_after_timeout() -> None:
    pages = Noting(Asked(), answer_within_s=0.05)
    async with served(pages) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)  # it reads two bytes ahead
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await pages.ended.wait()
        writer.close()

    assert len(await reader.read()) < BODY_BYTES


async def test_liveness_survives_slow_answers_excess_is_refused() -> None:
    process = Asked()
    async with served(StatusPages(process)) as port, asyncio.TaskGroup() as group:
        slow = [group.create_task(asking(port, "/readyz")) for _ in range(MOST_ANSWERS)]
        await process.all_asked.wait()
        busy, live = await asking(port, "/readyz"), await asking(port, "/livez")
        process.go.set()

    assert busy.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert b"32 answers at once. Allowed: 32" in busy
    assert live.startswith(b"HTTP/1.1 200 OK")
    assert all(one.result().startswith(b"HTTP/1.1 200 OK") for one in slow)


async def test_starting_process_names_the_pending_part() -> None:
    async with served(StatusPages(StartingProcess("its modules"))) as port:
        ready, figures = await asking(port, "/readyz"), await asking(port, "/metrics")

    assert json.loads(ready.partition(b"\r\n\r\n")[2])["problems"] == {"start": "waits for its modules"}
    assert b'agentic_worker_problem{part="start"} 1.0\n' in figures


@pytest.mark.parametrize(
    "address", ["9108", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:\u0663", "nowhere.invalid:0"]
)
async def test_invalid_listen_address_is_named(address: str) -> None:
    with pytest.raises(ListenError, match=address.replace(".", r"\.")):
        async with status_server(StatusPages(StartingProcess("nothing")), address):
            pass
