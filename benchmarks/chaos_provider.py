"""The provider of `chaos.py`: a server that bills what it reads, and the adapter by which workers number their requests.

Run: python -m benchmarks.chaos_provider INVOICE. It serves on a free port, which it prints, and appends a line of JSON to the invoice
for each request, before it answers.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.platform.adapters import OPENAI, ProviderContext

MODEL = "stub-1"
INPUT_NUSD, OUTPUT_NUSD = 1000, 2000
"""What a token costs, here and in the configuration of the workers."""

REFUSED, SILENT = 0.02, 0.01
LEAST_S, MOST_S = 0.02, 0.2
ANSWER = '{"action":"wait","size":0}'
ENDED = '{"action":"wait","size":0,"end":"ok"}'
"""The answer where the request asks for a last property, so that a cut one can be told."""

Outcome = Literal["answered", "refused", "silent"]

_NUMBERED = re.compile(r"call (\S+) attempt (\d+)\n")


@dataclass(frozen=True, slots=True)
class Billed:
    """One request as the server has read it: `at` is its own clock. A refused one costs nothing, a silent one what an answer costs."""

    call: str
    attempt: int
    outcome: Outcome
    nusd: int
    at: float


def read_invoice(lines: Iterable[str]) -> list[Billed]:
    """Read the lines of an invoice, in the order of the requests."""
    return [Billed(**json.loads(line)) for line in lines]


def numbered(context: ProviderContext) -> Provider:
    """Return the shipped adapter `openai`, with the call and the attempt said in each request: a server sees neither."""
    return _Numbered(OPENAI.make(context))


class _Numbered:
    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    async def complete(self, request: ModelRequest) -> ModelResponse:
        line = f"call {request.envelope.idempotency_key} attempt {request.attempt}\n"
        return await self._inner.complete(replace(request, system=line + request.system))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._inner.count_tokens(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def drawn(*what: object) -> float:
    """Return a number from 0 to 1 that is the same for the same words."""
    digest = blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def billed(call: str, attempt: int, at: float) -> tuple[Billed, dict[str, int]]:
    """Return what a request comes to, and the tokens that its answer names."""
    luck = drawn(call, attempt)
    outcome: Outcome = "refused" if luck < REFUSED else "silent" if luck < REFUSED + SILENT else "answered"
    tokens = {"prompt_tokens": 100 + round(50 * drawn(call, "in")), "completion_tokens": 20 + attempt}
    nusd = tokens["prompt_tokens"] * INPUT_NUSD + tokens["completion_tokens"] * OUTPUT_NUSD
    return Billed(call, attempt, outcome, 0 if outcome == "refused" else nusd, at), tokens


class Server:
    """Chat completions over HTTP, for one kind of request."""

    def __init__(self, invoice: Path) -> None:
        self._file = os.open(invoice, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until its end."""
        with suppress(OSError, asyncio.IncompleteReadError):
            async for body in _bodies(reader):
                if not await self._answer(body, reader, writer):
                    break
        writer.close()

    async def _answer(
        self, body: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        found = _NUMBERED.match(body["messages"][0]["content"])
        if found is None:
            raise ValueError("a request without its number; allowed are those of the adapter `numbered`")
        line, tokens = billed(found[1], int(found[2]), time.time())
        os.write(self._file, json.dumps(asdict(line)).encode() + b"\n")
        if line.outcome == "silent":
            await reader.read()  # until the client has gone
            return False
        await asyncio.sleep(LEAST_S + (MOST_S - LEAST_S) * drawn(line.call, line.attempt, "latency"))
        if line.outcome == "refused":
            _send(
                writer,
                "503 Service Unavailable",
                {"error": {"message": "overloaded", "type": "server_error"}},
            )
        else:
            text = ENDED if '"end"' in json.dumps(body["messages"]).replace("\\", "") else ANSWER
            _send(writer, "200 OK", _completion(text, tokens))
        await writer.drain()
        return True


async def _bodies(reader: asyncio.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body: Mapping[str, Any] = json.loads(await reader.readexactly(int(length[1]) if length else 0))
        yield body


def _completion(text: str, tokens: Mapping[str, int]) -> Mapping[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }  # fmt: skip


def _send(writer: asyncio.StreamWriter, status: str, page: Mapping[str, Any]) -> None:
    body = json.dumps(page).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(Server(Path(sys.argv[1])).serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
