"""Health and figures of a process over HTTP: open before anything else, and never kept busy by silent connections.

This module imports nothing heavy: the pages are there while the modules of the worker are still loaded.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from agentic_trading.errors import TradingError

REQUEST_WITHIN_S: Final = 2.0
"""How long a connection may stay without a whole request; a probe sends its own at once."""

ANSWER_WITHIN_S: Final = 12.0
"""How long an answer may take: two questions to servers, and a client that reads slowly."""

MOST_SILENT: Final = 256
"""Connections without a request; one more ends the oldest of them."""

MOST_ANSWERS: Final = 32
"""Answers at once that ask servers; `/livez` asks none, and is not counted."""

MOST_REQUEST_BYTES: Final = 8192


class ListenError(TradingError, ValueError):
    """The address for health and metrics cannot be listened on."""

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(
            f"--http is {address}, {why}; allowed: HOST:PORT of this machine that is free, port 0 for any"
        )


class Reporting(Protocol):
    """A process that reports its health and its figures."""

    async def health(self) -> Mapping[str, Any]:
        """Return the state, whether it is ready, and the problems by part."""
        ...

    async def metrics(self) -> bytes:
        """Return the figures in the text format of Prometheus."""
        ...


@dataclass(slots=True)
class StartingProcess:
    """The report of a process before it has one: it is starting, and waits for `waits_for`."""

    waits_for: str

    async def health(self) -> Mapping[str, Any]:
        """Return that it is starting, and what it waits for."""
        return {"state": "starting", "ready": False, "problems": {"start": f"waits for {self.waits_for}"}}

    async def metrics(self) -> bytes:
        """Return the figures of a worker that does not serve yet."""
        problem = b'agentic_worker_problem{part="start"} 1.0\n'
        return b"agentic_worker_serving 0.0\nagentic_worker_ready 0.0\n" + problem


@dataclass(slots=True)
class StatusPages:
    """The pages of a process: `/livez`, `/readyz` and `/metrics`, from its first moment on. `shown` may be replaced."""

    shown: Reporting
    request_within_s: float = REQUEST_WITHIN_S
    answer_within_s: float = ANSWER_WITHIN_S
    _silent: dict[asyncio.StreamWriter, None] = field(default_factory=dict)  # in the order of their arrival
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _answers: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        self._open.add(writer)
        self._silent[writer] = None
        if len(self._silent) > MOST_SILENT:
            next(iter(self._silent)).transport.abort()
        writer.transport.set_write_buffer_limits(high=0)  # `drain` waits until all is sent
        try:
            async with asyncio.timeout(self.request_within_s):
                head = await reader.readuntil(b"\r\n\r\n")
            del self._silent[writer]
            async with asyncio.timeout(self.answer_within_s):
                writer.write(await self._answer(head))
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, sends no request, or does not read
        finally:
            self._silent.pop(writer, None)
            self._open.discard(writer)
            if not writer.is_closing():
                writer.transport.abort()

    def abort(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET" or path not in {b"/livez", b"/readyz", b"/metrics"}:
            return _reply("404 Not Found", b'{"allowed":["GET /livez","GET /readyz","GET /metrics"]}')
        if path == b"/livez":
            return _reply("200 OK", b'{"live":true}')
        if self._answers >= MOST_ANSWERS:
            found = {"busy": f"{self._answers} answers at once; allowed: {MOST_ANSWERS}"}
            return _reply("503 Service Unavailable", json.dumps(found).encode())
        self._answers += 1
        try:
            if path == b"/metrics":
                kind = "text/plain; version=0.0.4; charset=utf-8"
                return _reply("200 OK", await self.shown.metrics(), kind=kind)
            health = await self.shown.health()
            status = "200 OK" if health["ready"] else "503 Service Unavailable"
            return _reply(status, json.dumps(health).encode())
        finally:
            self._answers -= 1


@asynccontextmanager
async def status_server(pages: StatusPages, address: str) -> AsyncGenerator[str]:
    """Answer `/livez`, `/readyz` and `/metrics` over HTTP for as long as the block lasts; give the address.

    `/livez` is 200 while the loop runs, `/readyz` 200 while envelopes are taken and all servers answer, else 503 with the
    reasons as JSON. Raises `ListenError` for an address that cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > 65535:
        raise ListenError(address, "which is no address")
    try:
        server = await asyncio.start_server(
            pages.serve, host.strip("[]"), int(port), limit=MOST_REQUEST_BYTES
        )
    except OSError as e:
        raise ListenError(address, f"which cannot be listened on ({e.strerror})") from e
    async with server:
        try:
            yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            pages.abort()


def _reply(status: str, body: bytes, *, kind: str = "application/json") -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + body
