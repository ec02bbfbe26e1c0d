"""A server that keeps the requests that it gets, and answers each with one page."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, NamedTuple

COMPLETION = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "{}"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m-1",
    "content": [{"type": "text", "text": "{}"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


class Recorded(NamedTuple):
    """One request as it came."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Server:
    """Where it listens, its requests, whether one has arrived, and how many connections were opened and have ended."""

    port: int = 0
    scheme: str = "http"
    requests: list[Recorded] = field(default_factory=list)
    opened: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


def page(body: Any, status: str = "200 OK", **headers: str) -> bytes:
    """Return an answer with `body` as JSON."""
    raw = json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(raw)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + raw


@asynccontextmanager
async def recording(answer: bytes, tls: SSLContext | None = None) -> AsyncGenerator[Server]:
    """Serve `answer`, over connections that stay open; an empty one is never given."""
    server = Server(scheme="http" if tls is None else "https")
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.opened += 1
        writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                raw = await reader.readexactly(int(headers.get("content-length", "0")))
                server.requests.append(Recorded(first.split()[1], headers, raw))
                server.arrived.set()
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            server.ended.release()
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", ssl=tls) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
