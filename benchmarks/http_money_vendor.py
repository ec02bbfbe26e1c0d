"""The vendor of `http_money.py`: chat completions over HTTP, with an invoice of its own of what it generated.

A whole answer is generated to its end, also if its client has gone. A stream that its client drops is billed up to then. `GET /invoice`
is the bill, `GET /open` counts the calls that are generated now, `GET /hold/N` keeps all ends but the next N back until `GET /go`.

Run: python -m benchmarks.http_money_vendor LATENCY_S SPREAD WITHOUT_USAGE. The first line of the output is the port.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from random import Random
from typing import Any

from aiohttp import web

from benchmarks.peers.load import DOLLARS, MODEL, NUSD_PER_TOKEN

PARTS = 8
"""The events of a streamed answer."""

Json = dict[str, Any]


class Vendor:
    """Answers each call with the tokens that its name draws, and bills them."""

    def __init__(self, latency_s: float, spread: float, without_usage: float) -> None:
        self._latency_s = latency_s
        self._spread = spread
        self._without_usage = without_usage
        self._lines: list[Json] = []
        self._open = 0
        self._may_end = asyncio.Event()
        self._may_end.set()
        self._ends_left: int | None = None

    def app(self) -> web.Application:
        """Return its routes."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/invoice", self._invoice)
        app.router.add_get("/open", self._count)
        app.router.add_get("/hold/{ends}", self._hold)
        app.router.add_get("/go", self._go)
        return app

    async def _invoice(self, _: web.Request) -> web.Response:
        return web.json_response(self._lines)

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response(self._open)

    async def _hold(self, request: web.Request) -> web.Response:
        self._ends_left = int(request.match_info["ends"])
        return web.json_response(self._ends_left)

    async def _go(self, _: web.Request) -> web.Response:
        self._ends_left = None
        self._may_end.set()
        return web.json_response(self._open)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = body["messages"][-1]["content"]
        self._open += 1
        if not body.get("stream"):
            # A task of its own, because the vendor generates to the end, whoever listens.
            page = await asyncio.shield(asyncio.create_task(self._whole(name)))
            return web.json_response(page)
        return await self._streamed(request, name)

    async def _whole(self, name: str) -> Json:
        tokens = self._bill(name, DOLLARS.used(name))
        try:
            await asyncio.sleep(self._seconds(name))
            await self._end()
        finally:
            self._open -= 1
        return _page("chat.completion", name, {"message": _said(tokens)}, self._usage(name, tokens))

    async def _streamed(self, request: web.Request, name: str) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        tokens, made = DOLLARS.used(name), 0
        try:
            await stream.prepare(request)
            for part in range(1, PARTS + 1):
                await asyncio.sleep(self._seconds(name) / PARTS)
                made = tokens * part // PARTS
                await stream.write(_event(_page("chat.completion.chunk", name, {"delta": _said(part)}, None)))
            await self._end()
            end = _page("chat.completion.chunk", name, {"delta": {}, "finish_reason": "stop"}, None)
            await stream.write(_event(end))
            if usage := self._usage(name, tokens):
                await stream.write(_event({**end, "choices": [], "usage": usage}))
            await stream.write(b"data: [DONE]\n\n")
        finally:
            self._open -= 1
            self._bill(name, made)
        return stream

    async def _end(self) -> None:
        """Wait until an answer may end."""
        if self._ends_left is None:
            return
        if self._ends_left:
            self._ends_left -= 1
            return
        self._may_end.clear()
        await self._may_end.wait()

    def _bill(self, name: str, tokens: int) -> int:
        self._lines.append({
            "call": name,
            "tokens": tokens,
            "nusd": tokens * NUSD_PER_TOKEN,
            "at": time.time(),
        })
        return tokens

    def _seconds(self, name: str) -> float:
        return self._latency_s * (1 + self._spread * Random(f"pause:{name}").uniform(-1, 1))  # noqa: S311 - no secret

    def _usage(self, name: str, tokens: int) -> Json | None:
        if is_without_usage(name, self._without_usage):
            return None
        return {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}


def is_without_usage(name: str, share: float) -> bool:
    """Return whether the answer to a call has no usage: chance that is the same for every contender."""
    return Random(f"usage:{name}").random() < share  # noqa: S311 - no secret


def _said(number: int) -> Json:
    return {"role": "assistant", "content": f"part {number}"}


def _page(kind: str, name: str, choice: Json, usage: Json | None) -> Json:
    page = {"id": f"chatcmpl-{name}", "object": kind, "created": 1, "model": MODEL}
    reason = "stop" if "message" in choice else None
    choices = [{"index": 0, "finish_reason": reason, **choice}]
    return {**page, "choices": choices, **({"usage": usage} if usage else {})}


def _event(page: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(page).encode() + b"\n\n"


async def main() -> None:
    """Serve until killed."""
    runner = web.AppRunner(Vendor(*map(float, sys.argv[1:4])).app(), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
