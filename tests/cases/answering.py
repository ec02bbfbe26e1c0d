"""Ask a server that gives one fixed answer, through a platform with the chat completions adapter."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from typing_extensions import override

from agentic_trading.llm import EnvelopeBuilder, LLMEnvelope, LLMInteraction, LLMProvider
from agentic_trading.platform import (
    LedgerConfig,
    ModelConfig,
    Platform,
    PlatformConfig,
    PriceConfig,
    ProviderConfig,
    TenantConfig,
)

PUBLIC = Path(__file__).parent / "public"
"""Bodies of answers, made by hand after public bug reports."""

PRICE = PriceConfig(input=1000, output=4000, cache_read=100, cache_write_5m=1250, cache_write_1h=2000)
MODEL = "stub/quant-7b"


@contextmanager
def answering(body: bytes, before: Callable[[int], object] = lambda _: None) -> Iterator[str]:
    """Answer every request with `body`, after `before` of its number; yield the base URL."""
    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            before(next(numbers))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def order(number: int = 0) -> LLMEnvelope:
    """Return a request for an order, asked for planning."""
    schema = {
        "type": "object",
        "properties": {
            "side": {"enum": ["BUY", "SELL"]},
            "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        },
        "required": ["side", "qty"],
        "additionalProperties": False,
    }
    builder = EnvelopeBuilder().for_planning().with_instructions("Give an order.").with_output_schema(schema)
    builder = builder.with_context({"n": number})
    return builder.with_provider(LLMProvider("stub"), "quant-7b").build()


def config(
    base_url: str,
    folder: Path | None,
    *,
    price: PriceConfig = PRICE,
    options: Mapping[str, Any] | None = None,
    ledger_url: str | None = None,
    **row: Any,
) -> PlatformConfig:
    """Return a platform with one model behind `base_url`, whose row has `row` in addition."""
    model = ModelConfig(
        model="quant-7b", context_tokens=32_768, max_output_tokens=4096, price=price, source="the stub",
        checked_on=date(2026, 1, 1), **row,
    )  # fmt: skip
    provider = ProviderConfig(adapter="openai", base_url=base_url, models=(model,), options=options or {})
    return PlatformConfig(
        folder=folder, providers={"stub": provider}, ledger=LedgerConfig(url=ledger_url),
        tenants={"default": TenantConfig(budget_usd=Decimal(10))},
    )  # fmt: skip


async def asked(body: bytes, folder: Path, **changes: Any) -> LLMInteraction:
    """Return the record of one order that the server answers with `body`."""
    with answering(body) as url:
        async with Platform(config(url, folder, **changes)) as platform:
            answer = await platform.ask(order())
    assert isinstance(answer, LLMInteraction)
    return answer
