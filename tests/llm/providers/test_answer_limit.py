"""An answer is read up to the provider's limit, after decompression, and no further."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from itertools import count

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider, AnthropicSdkProvider
from agentic_trading.llm.providers.hosted import read_up_to
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from tests.llm.providers.openai_calls import CAPABILITY
from tests.structured.asking import request

LIMIT = 4096
ADAPTERS = {"openai": OpenAIProvider, "anthropic": AnthropicProvider, "anthropic-sdk": AnthropicSdkProvider}
CLAUDE = Capabilities.load().of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
EACH = pytest.mark.parametrize("name", ["openai", "anthropic", "anthropic-sdk"])


def asked(name: str) -> ModelRequest:
    if name == "openai":
        return request(CAPABILITY, model=CAPABILITY.model, provider=LLMProvider.OPENAI)
    return request(CLAUDE, model=CLAUDE.model)


def answer_of(name: str, text: str) -> bytes:
    """Return a good answer of the provider's API that holds `text`."""
    if name == "openai":
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return json.dumps({**body, "usage": usage}).encode()
    usage = {"input_tokens": 3, "output_tokens": 2}
    block = {"type": "text", "text": text}
    body = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    return json.dumps({**body, "content": [block], "usage": usage}).encode()


@asynccontextmanager
async def server_of(body: bytes, packing: str, status: str) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Serve `body` on a free port; yield its address and the heads of the requests that came."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        packed = f"Content-Encoding: {packing}\r\n" if packing else ""
        size = "" if "chunked" in status else f"Content-Length: {len(body)}\r\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{packed}{size}\r\n"
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


async def answered(
    name: str, body: bytes, packing: str = "", status: str = "200 OK"
) -> tuple[ModelResponse, bytes]:
    """Return what the provider makes of `body`, and the head of its request."""
    made = ADAPTERS[name]
    async with server_of(body, packing, status) as (address, heads):
        provider = made(OneKey("sk-limited-1"), base_url=address, max_answer_bytes=LIMIT)
        async with aclosing(provider):
            return await provider.complete(asked(name)), heads[0].lower()


@EACH
@pytest.mark.parametrize("packing", ["", "gzip"])
async def test_answer_of_exact_limit_is_read(name: str, packing: str) -> None:
    room = LIMIT - len(answer_of(name, ""))
    body = answer_of(name, "a" * room)

    response, head = await answered(name, gzip.compress(body) if packing else body, packing)

    assert response.text == "a" * room
    assert b"accept-encoding: gzip\r\n" in head


@EACH
@pytest.mark.parametrize("packing", ["", "gzip"])
async def test_oversized_answer_fails_truncated_and_sent(name: str, packing: str) -> None:
    body = answer_of(name, "a" * LIMIT)

    with pytest.raises(ProviderError, match="4096 bytes, the provider's max_answer_bytes") as caught:
        await answered(name, gzip.compress(body, 1) if packing else body, packing)

    assert (caught.value.kind, caught.value.sent) == (FailureKind.TRUNCATED, True)
    spelled = len(canonical_bytes(caught.value.text)) - 2
    assert body.decode().startswith(caught.value.text)
    assert LIMIT - 2 <= spelled <= LIMIT


@pytest.mark.parametrize("text", ["\x01", '"', "\\", "\\\\\x01", "é", "€", "💶", "\n\x1f", "\udcff", "a"])
async def test_truncated_text_fits_limit_when_serialized(text: str) -> None:
    body = (2 * LIMIT * text).encode(errors="surrogateescape")

    for shift in range(7):
        with pytest.raises(ProviderError) as caught:
            await answered("openai", b"a" * shift + body)

        spelled = len(canonical_bytes(caught.value.text)) - 2
        assert (b"a" * shift + body).decode(errors="replace").startswith(caught.value.text.rstrip("�"))
        assert LIMIT - 6 <= spelled <= LIMIT


@EACH
@pytest.mark.parametrize(
    ("packing", "body", "message"),
    [("br", b"x", "packed as 'br'"), ("gzip", b"no gzip", "no gzip, as it says")],
)
async def test_wrongly_encoded_answer_fails_as_sent(
    name: str, packing: str, body: bytes, message: str
) -> None:
    with pytest.raises(ProviderError, match=message) as caught:
        await answered(name, body, packing)

    assert (caught.value.kind, caught.value.sent) == (FailureKind.SERVER_ERROR, True)


@EACH
async def test_oversized_error_page_keeps_status_meaning(name: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await answered(name, b"x" * (2 * LIMIT), status="429 Too Many Requests")

    assert (caught.value.kind, caught.value.sent) == (FailureKind.RATE_LIMIT, False)


HALVES = (slice(None, 40), slice(40, None))


@EACH
@pytest.mark.parametrize("packing", ["gzip", "x-gzip", "GZIP"])
@pytest.mark.parametrize(
    "behind", [b"", bytes(512), b"nothing of it"], ids=["nothing", "zeros", "other bytes"]
)
async def test_multi_member_answer_is_read_fully(name: str, packing: str, behind: bytes) -> None:
    body = answer_of(name, "a" * 100)
    members = b"".join(gzip.compress(body[half]) for half in HALVES)

    response, _ = await answered(name, members + behind, packing)

    assert response.text == "a" * 100


async def test_members_are_read_across_any_chunks() -> None:
    body = b'{"a": "' + b"b" * 200 + b'"}'
    packed = b"".join(gzip.compress(body[half]) for half in HALVES) + bytes(9)

    for size in range(1, len(packed)):
        pieces = [packed[start : start + size] for start in range(0, len(packed), size)]
        assert await read_up_to(each_of(pieces), "gzip", LIMIT, is_answer=True) == body


async def each_of(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_bytes_after_answer_are_not_read() -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        yield gzip.compress(b"{}")
        while True:
            read += 1
            yield bytes(65_536)

    assert await read_up_to(endless(), "gzip", LIMIT, is_answer=True) == b"{}"
    assert read == 1


@pytest.mark.parametrize(
    ("start", "part", "message"),
    [
        (b"", gzip.compress(b""), "more than 1000 parts"),
        (gzip.compress(b"")[:10], b"\0\0\0\xff\xff", "longer than one of its size"),  # blocks of nothing
    ],
    ids=["members", "blocks"],
)
async def test_endless_contentless_parts_raise(start: bytes, part: bytes, message: str) -> None:
    endless = (start * (n == 0) + part * 100 for n in count())

    with pytest.raises(ProviderError, match=message) as caught:
        await read_up_to(each_of(endless), "gzip", LIMIT, is_answer=True)

    assert (caught.value.kind, caught.value.sent) == (FailureKind.SERVER_ERROR, True)


async def test_broken_second_member_raises() -> None:
    broken = gzip.compress(b"{}") + b"\x1f\x8b" + b"\xff" * 30

    with pytest.raises(ProviderError, match="no gzip, as it says"):
        await read_up_to(each_of([broken]), "gzip", LIMIT, is_answer=True)


@EACH
@pytest.mark.parametrize(
    ("packing", "body"),
    [
        ("gzip", b'{"error": {"message": "slow down"}}'),
        ("br", b'{"error": {"message": "slow down"}}'),
        ("gzip", gzip.compress(b'{"error": {"message": "slow down"}}' * 9)[:40]),
        ("zstd", b"\x28\xb5\x2f\xfd"),
    ],
    ids=["not packed", "packed as another word says", "cut", "unknown"],
)
async def test_error_status_survives_undecodable_body(name: str, packing: str, body: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        await answered(name, body, packing, "429 Too Many Requests\r\nRetry-After: 7")

    error = caught.value
    assert (error.kind, error.sent, error.retry_after_s) == (FailureKind.RATE_LIMIT, False, 7)
    assert ("slow down" in error.message) == body.startswith(b"{")


@EACH
async def test_error_status_survives_truncated_page(name: str) -> None:
    head = "503 Service Unavailable\r\nRetry-After: 7\r\nTransfer-Encoding: chunked"

    with pytest.raises(ProviderError) as caught:
        await answered(name, b"5\r\nab", status=head)

    assert (caught.value.kind, caught.value.retry_after_s) == (FailureKind.SERVER_ERROR, 7)
    assert "HTTP 503" in caught.value.message


@pytest.mark.parametrize("packing", ["gzip", "br"])
async def test_undecodable_error_page_is_kept_raw(packing: str) -> None:
    pieces = [b'{"detail": "caf\xe9', b" is closed", b'"}']

    page = await read_up_to(each_of(pieces), packing, LIMIT, is_answer=False)

    assert page == b"".join(pieces)
    assert await read_up_to(each_of(pieces), packing, 20, is_answer=False) == page[:20]


async def test_broken_off_error_page_is_kept() -> None:
    async def breaking_off() -> AsyncIterator[bytes]:
        yield b'{"error": '
        raise ConnectionResetError

    page = await read_up_to(breaking_off(), "", LIMIT, is_answer=False, breaks_off=(OSError,))

    assert page == b'{"error": '
    with pytest.raises(ConnectionResetError):
        await read_up_to(breaking_off(), "", LIMIT, is_answer=True, breaks_off=(OSError,))


async def test_answer_of_many_members_is_refused() -> None:
    body, empty = gzip.compress(b"{}"), gzip.compress(b"")

    assert await read_up_to(each_of([empty * 999 + body]), "gzip", 10**6, is_answer=True) == b"{}"
    with pytest.raises(ProviderError, match="more than 1000 parts") as caught:
        await read_up_to(each_of([empty * 1000 + body]), "gzip", 10**6, is_answer=True)
    assert caught.value.sent
