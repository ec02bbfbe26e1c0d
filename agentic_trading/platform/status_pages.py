"""Health and metrics of a process over HTTP, available before its modules are loaded.

This module imports only small modules, so that a probe is answered while a worker starts.
"""

import asyncio
import ipaddress
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from agentic_trading.errors import TradingError

REQUEST_WITHIN_S: Final = 2.0
"""Seconds in which a connection must send its request. Probes send it at once."""

ANSWER_WITHIN_S: Final = 12.0
"""Seconds for an answer: two checks of servers, and a client that reads slowly."""

MOST_SILENT: Final = 256
"""Connections without a request. One more ends the oldest of them."""

MOST_ANSWERS: Final = 32
"""Concurrent answers that check servers. `/livez` is not counted."""

MOST_REQUEST_BYTES: Final = 8192


class ListenError(TradingError, ValueError):
    """The address for health and metrics cannot be used."""

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(
            f"--http is {address}, {why}. Allowed: a free HOST:PORT of this machine. Port 0 chooses a free port"
        )


class Reporting(Protocol):
    """A process with health and metrics."""

    async def health(self) -> Mapping[str, Any]:
        """Return the state, whether it is ready, and the problems by part."""
        ...

    async def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...


@dataclass(slots=True)
class StartingProcess:
    """The report of a process whose modules are being loaded."""

    waits_for: str

    async def health(self) -> Mapping[str, Any]:
        """Return the state `starting`, with the part that is being loaded."""
        return {"state": "starting", "ready": False, "problems": {"start": f"waits for {self.waits_for}"}}

    async def metrics(self) -> bytes:
        """Return the metrics of a worker that does not serve yet."""
        problem = b'agentic_worker_problem{part="start"} 1.0\n'
        return b"agentic_worker_serving 0.0\nagentic_worker_ready 0.0\n" + problem


@dataclass(slots=True)
class StatusPages:
    """The pages `/livez`, `/readyz` and `/metrics` of a process.

    Attributes:
        shown: The process that is reported. It may be replaced at any time.
        request_within_s: Time limit of a request, in seconds.
        answer_within_s: Time limit of an answer, in seconds.

    """

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
            # Otherwise silent connections would use up all sockets, and a probe would fail.
            next(iter(self._silent)).transport.abort()
        writer.transport.set_write_buffer_limits(high=0)  # so that `drain` waits until all bytes are sent
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
            found = {"busy": f"{self._answers} answers at once. Allowed: {MOST_ANSWERS}"}
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
    """Serve the pages over HTTP while the block runs. Yields the server's URL.

    `/livez` is 200 while the event loop runs. `/readyz` is 200 while the worker takes envelopes and all
    servers answer, otherwise 503 with the reasons as JSON.

    Raises:
        ListenError: If the address is invalid or in use.

    """
    host, port = host_and_port(address)
    try:
        server = await asyncio.start_server(pages.serve, host, port, limit=MOST_REQUEST_BYTES)
    except OSError as e:
        raise ListenError(address, f"which cannot be used ({e.strerror})") from e
    async with server:
        try:
            yield f"http://{address.rpartition(':')[0]}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            pages.abort()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address to listen at. Raises `ListenError` if it is not HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > 65535:
        raise ListenError(address, "which is not HOST:PORT")
    return host.strip("[]"), int(port)


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
