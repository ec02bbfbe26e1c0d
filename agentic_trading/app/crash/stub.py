"""A stand-in for a provider: answers over loopback as the Messages API does, and writes its own invoice."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from agentic_trading.app.crash.calls import MODEL
from agentic_trading.clock import Clock
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.result import Usage

_ANSWER = '{"strategy":"passive","end":"ok"}'
_CALL = re.compile(r"order-\d\d")


@dataclass(slots=True)
class InvoicingStub:
    """Bills every request as it comes in, whether anybody waits for its answer or not.

    `invoice` holds nano-dollars by call. `on_request` is told how many have come; while it returns True, answers are
    held back.
    """

    prices: PriceBook
    clock: Clock
    on_request: Callable[[int], bool]
    invoice: dict[str, int] = field(default_factory=dict)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Answer on a free port of the loopback for as long as the block lasts."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length is not None else b""
        usage = self._bill(body.decode())
        if self.on_request(len(self.invoice)):
            await reader.read()  # held back until whoever asked is gone
            return False
        answer = orjson.dumps({
            "id": f"msg_{len(self.invoice)}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": _ANSWER}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        })
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(answer), answer)
        )
        return True

    def _bill(self, body: str) -> Usage:
        named = _CALL.search(body)
        usage = Usage(input_tokens=len(body) // 4, output_tokens=20)
        name = named[0] if named is not None else f"unnamed-{len(self.invoice)}"
        self.invoice[name] = self.prices.cost_nusd(LLMProvider.ANTHROPIC, MODEL, usage, at=self.clock.now())
        return usage
