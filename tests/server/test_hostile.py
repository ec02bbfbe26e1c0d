"""Hostile bytes on a connection: clients that do not read, odd headers and paths, and a server that still answers."""

import asyncio
import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.result import Stage
from tests.server.conftest import Served, Serving
from tests.server.test_joins import AGAIN, NO_ANSWER
from tests.server.test_replies import attempt
from tests.server.test_server import CHAT, said

PATH = "/v1/chat/completions"


async def raw(served: Served, *chunks: bytes) -> bytes:
    """Send bytes, and return all bytes of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    try:
        for chunk in chunks:
            writer.write(chunk)
        async with asyncio.timeout(15):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def head(
    served: Served, *lines: str | bytes, line: str | bytes = f"POST {PATH} HTTP/1.1", body: bytes = b""
) -> bytes:
    """Return the bytes of a request with a key."""
    own = (
        "Host: 127.0.0.1",
        f"Authorization: Bearer {served.secret}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    rows = [line, *own, *lines]
    return b"\r\n".join(one if isinstance(one, bytes) else one.encode() for one in rows) + b"\r\n\r\n" + body


class Large:
    """A gateway with an answer that is larger than all buffers of a connection."""

    def __init__(self) -> None:
        self.calls = 0

    async def ask_structured(self, envelope: LLMEnvelope, *, check: Any = None) -> StructuredOutcome:
        self.calls += 1
        message = {"role": "assistant", "content": "x" * 12_000_000}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return replace(NO_ANSWER, attempts=(attempt(1, Stage.PASSED_ON, json.dumps(body)),))


@pytest.mark.parametrize("is_late", [False, True])
async def test_client_that_does_not_read_loses_its_connection_and_can_ask_again(
    serve: Serving, *, is_late: bool
) -> None:
    timing = {"taken_within_s": 0.2, **({"begins_after_s": 0.0} if is_late else {})}
    async with serve(timing=timing) as served:
        behind: Any = served.server.served
        behind.clients = {"": (large := Large())}
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(0)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(served.url.rpartition(":")[2])))
            await loop.sock_sendall(
                client, head(served, body=json.dumps({**CHAT, "stream": is_late}).encode())
            )
            async with asyncio.timeout(15):
                while not served.server._counts:  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0)
        again = await said(served, PATH, CHAT, headers=AGAIN)

    assert (again[0], again[2]["x-agentic-interaction-id"], large.calls) == (200, "i1", 1)


BODY = json.dumps(CHAT).encode()
KEYS = [b"", b"Bearer", b"Bearer \xff\xfe", "Bearer é".encode(), b"Basic eDp5", b"Bearer " + b"a" * 7000]
NAMES = [
    b"Idempotency-Key: \xff", b"Idempotency-Key: a b", "Idempotency-Key: ключ".encode(), b"Idempotency-Key: " + b"k" * 256,
]  # fmt: skip


@pytest.mark.parametrize("value", KEYS)
async def test_odd_key_is_401(serve: Serving, value: bytes) -> None:
    async with serve() as served:
        lines = head(served, body=BODY).replace(f"Bearer {served.secret}".encode(), value)
        answer = await raw(served, lines)
        events = await raw(served, lines.replace(b"/chat/completions", b"/events"))

    assert [answer[:12], events[:12]] == [b"HTTP/1.1 401"] * 2


@pytest.mark.parametrize("line", NAMES)
async def test_odd_idempotency_key_is_400_and_unsent(serve: Serving, line: bytes) -> None:
    async with serve() as served:
        before = len(await served.asked())
        answer = await raw(served, head(served, line, body=BODY))
        after = len(await served.asked())

    assert (answer[:12], after - before) == (b"HTTP/1.1 400", 0)


ODD_LINES = [
    b"x-agentic-trace-id: a\xff", b"x-agentic-trace-id: ../../etc", b"openai-project: \xe9", b"traceparent: \xff",
    b"x-agentic-deadline-s: nan", b"x-agentic-deadline-s: -1", b"x-agentic-deadline-s: 1e999", b"x-stainless-timeout: \xff",
    b"x-stainless-retry-count: " + b"9" * 5000, b"x-stainless-retry-count: \xd9\xa1", b"Origin: http://evil.example",
]  # fmt: skip


@pytest.mark.parametrize("line", ODD_LINES)
async def test_odd_header_without_a_meaning_is_ignored(serve: Serving, line: bytes) -> None:
    async with serve() as served:
        answer = await raw(served, head(served, line, body=BODY))

    top = answer.partition(b"\r\n\r\n")[0].lower()
    assert top.startswith(b"http/1.1 200")
    assert b"access-control" not in top
    assert b"etc" not in top


HOSTS = [
    b"Host: evil.example",
    b"Host: 127.0.0.1.evil.example",
    b"Host: 127.0.0.1@evil",
    b"Host: \xff",
    b"Host:",
    b"X: y",
]


@pytest.mark.parametrize("line", HOSTS)
async def test_other_or_missing_host_is_refused_without_a_lookup(
    serve: Serving, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_up(_name: str = "") -> str:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr(socket, "getfqdn", looked_up)
    async with serve() as served:
        for version in (b"1.1", b"1.0"):
            sent = (
                head(served, body=BODY)
                .replace(b"Host: 127.0.0.1", line)
                .replace(b"HTTP/1.1", b"HTTP/" + version)
            )
            answer = await raw(served, sent)
            assert answer.split(b" ", 2)[1] in {b"421", b"400"}, answer


BROKEN = [
    b"x: a\x00b", b"x: a\rb", b"x\x00: a", b" x: a", b"Host: localhost", b"Content-Length: 5", b"Transfer-Encoding: chunked",
    b"x: " + b"a" * 20_000, b"\r\n".join(b"x%d: a" % n for n in range(40_000)),
]  # fmt: skip


@pytest.mark.parametrize("line", BROKEN)
async def test_broken_headers_are_refused_and_the_server_still_answers(serve: Serving, line: bytes) -> None:
    async with serve() as served:
        before = len(await served.asked())
        answer = await raw(served, head(served, line, body=BODY))
        after = len(await served.asked())
        still = await said(served, PATH, CHAT)

    assert answer.split(b" ", 2)[1] == b"400", answer
    assert (after - before, still[0]) == (0, 200)


PATHS = [
    "/t/../v1/chat/completions", "/t/%2e%2e/v1/chat/completions", "/t/a%2fb/v1/chat/completions", "/t/a%00b/v1/chat/completions",
    "/t/a%0d%0aX:%20y/v1/chat/completions", "/t/%ff/v1/chat/completions", "/t/%ed%a0%80/v1/chat/completions", f"/t/{'a' * 129}/v1/chat/completions",
    "//v1/chat/completions", "/v1/../v1/chat/completions", "/t//v1/chat/completions",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_odd_path_reaches_no_trace_outside_of_its_name(serve: Serving, path: str) -> None:
    async with serve() as served:
        answer = await raw(served, head(served, line=f"POST {path} HTTP/1.1", body=BODY))
        traces = [one.envelope.trace_id for one in await served.store.recent()]

    status = answer.split(b" ", 2)[1]
    assert status in {b"200", b"400", b"404"}, answer
    assert b"\nx: y" not in answer.lower()
    assert all("/" not in one and "\x00" not in one for one in traces)


@pytest.mark.parametrize(
    "name", ["..%2f..%2fetc", "%00", "a%0d%0ab", "%ff", "%ed%a0%80", "a" * 4000, "%25", "'%20OR%201=1"]
)
async def test_odd_trace_id_is_404(serve: Serving, name: str) -> None:
    async with serve() as served:
        answer = await raw(served, head(served, line=f"GET /v1/traces/{name} HTTP/1.1"))

    assert answer.split(b" ", 2)[1] in {b"404", b"400"}, answer
