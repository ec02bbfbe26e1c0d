"""A server of both APIs that answers at once: started by `http_session.py`, in a process of its own."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from typing_extensions import override

from benchmarks.peers.question import ANSWER

VENDORS: Final = ("anthropic", "openai")
"""Whose APIs it speaks."""

MODEL: Final = "claude-sonnet-5-5"
"""What both answer as: a server of the other API, too, may serve any model."""

MESSAGE: Final[dict[str, Any]] = {
    "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": ANSWER}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1_200, "output_tokens": 410, "service_tier": "standard"},
}
COMPLETION: Final[dict[str, Any]] = {
    "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "object": "chat.completion",
    "created": 1_790_000_000,
    "model": MODEL,
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 1_200, "completion_tokens": 410, "total_tokens": 1_610},
}

CHUNK: Final = 16
"""Characters of the answer in an event of a stream, some four tokens."""


def _page(body: dict[str, Any]) -> bytes:
    return _reply("application/json", json.dumps(body).encode())


def _reply(kind: str, raw: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\nx-request-id: req_1\r\n\r\n"
    return head.encode() + raw


def _events() -> bytes:
    """Return the completion as events, all at once."""
    shared = {name: COMPLETION[name] for name in ("id", "created", "model")}
    deltas = [{"content": ANSWER[place : place + CHUNK]} for place in range(0, len(ANSWER), CHUNK)]
    parts: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": None}
        for delta in ({"role": "assistant", "content": ""}, *deltas)
    ]
    parts.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{**shared, "object": "chat.completion.chunk", "choices": [part]} for part in parts]
    chunks.append({
        **shared,
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": COMPLETION["usage"],
    })
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return _reply("text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode())


STREAM: Final = re.compile(rb'"stream": ?true')
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
PAGES: Final = {b"/v1/messages": _page(MESSAGE), b"/v1/chat/completions": _page(COMPLETION)}
STREAMED: Final = _events()


class _Connection(asyncio.Protocol):
    """Answers each whole request with the page of its path, or that there is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if len(rest) >= length:
            self._buffer.clear()  # nobody sends the next request before the answer to this one
            path = head.split(b" ", 2)[1]
            is_streamed = path == b"/v1/chat/completions" and STREAM.search(rest) is not None
            self._transport.write(STREAMED if is_streamed else PAGES.get(path, NOT_FOUND))


@contextmanager
def serving_process() -> Iterator[tuple[str, int]]:
    """Start the server; yield its address and its process id, and end it."""
    command = [sys.executable, "-m", "benchmarks.http_stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this module
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline() if process.stdout else 0)}", process.pid
        finally:
            process.terminate()


@contextmanager
def serving() -> Iterator[str]:
    """Start the server; yield its address, and end it."""
    with serving_process() as (address, _):
        yield address


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
