"""Ask a server that gives one fixed answer, through a platform with the chat completions adapter."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import date
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from typing_extensions import override

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.clock import Clock, SimClock
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm import EnvelopeBuilder, LLMEnvelope, LLMInteraction, LLMProvider
from agentic_trading.llm.models import Capabilities, DatedTable
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import (
    LedgerConfig,
    ModelConfig,
    Platform,
    PlatformConfig,
    PriceConfig,
    ProviderConfig,
    TenantConfig,
)
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from tests.gateway import START
from tests.stubs.server import StubServer

PUBLIC = Path(__file__).parent / "public"
"""Bodies of answers, made by hand after public bug reports."""

PRICE = PriceConfig(input=1000, output=4000, cache_read=100, cache_write_5m=1250, cache_write_1h=2000)
MODEL = "stub/quant-7b"


class Reply(NamedTuple):
    """One answer of the server, as it goes over the wire."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_file(cls, name: str) -> Self:
        """Return the answer in a file of `PUBLIC`: a body, a packed body (`.gz`), or a whole response (`.http`)."""
        raw = (PUBLIC / name).read_bytes()
        if name.endswith(".gz"):
            return cls(raw, headers=(("content-encoding", "gzip"),))
        if not name.endswith(".http"):
            return cls(raw)
        head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
        status, *lines = head.decode().split("\n")
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        kept = tuple(pair for pair in pairs if pair[0].lower() not in {"content-length", "connection"})
        return cls(body, int(status.split()[1]), kept)


@contextmanager
def answering(
    first: bytes | Reply, *more: bytes | Reply, before: Callable[[int], object] = lambda _: None
) -> Iterator[str]:
    """Answer each request with the next of these, and all further ones with the last; yield the base URL.

    `before` is called with the number of each request.
    """
    numbers = count()
    replies = [one if isinstance(one, Reply) else Reply(one) for one in (first, *more)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            number = next(numbers)
            before(number)
            reply = replies[min(number, len(replies) - 1)]
            self.send_response(reply.status)
            for name, value in (("content-type", "application/json"), *reply.headers):
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

    with StubServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def order(number: int = 0, *, workflow: str = "planning", cap: int = 4096) -> LLMEnvelope:
    """Return a request for an order whose answer has at most `cap` tokens."""
    schema = {
        "type": "object",
        "properties": {
            "side": {"enum": ["BUY", "SELL"]},
            "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        },
        "required": ["side", "qty"],
        "additionalProperties": False,
    }
    builder: EnvelopeBuilder = getattr(EnvelopeBuilder(clock=SimClock(START)), f"for_{workflow}")()
    builder = builder.with_instructions("Give an order.").with_output_schema(schema)
    builder = builder.with_context({"n": number}).with_budget(max_output_tokens=cap)
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


async def asked(body: bytes | Reply, folder: Path, **changes: Any) -> LLMInteraction:
    """Return the record of one order that the server answers with `body`."""
    with answering(body) as url:
        async with Platform(config(url, folder, **changes)) as platform:
            answer = await platform.ask(order())
    assert isinstance(answer, LLMInteraction)
    return answer


async def attempts_at(
    envelope: LLMEnvelope, *replies: bytes | Reply, clock: Clock | None = None, **changes: Any
) -> list[LLMInteraction]:
    """Return the attempts at an order, as they are on record, whose requests are answered with `replies`.

    They pass a gate in memory, with the model of `config` and without limits and real waits.
    """
    store, clock = MemoryInteractionStore(), clock or SimClock(START)
    with answering(*replies) as url:
        row = config(url, None, **changes).providers["stub"].models[0]
        price, capabilities = row.price_of("stub"), Capabilities([row.capability_of("stub")])
        assert price is not None
        prices = PriceBook(DatedTable(Path("stub.json"), (price,), {"name": "stub"}, "0" * 64))
        gate = Gate(
            ledger=MemoryLedger(), prices=prices, capabilities=capabilities, clock=clock, mode="paper"
        )
        async with aclosing(OpenAIProvider(OneKey("sk-stub-1"), base_url=url, clock=clock)) as provider:
            parts = RunnerDependencies(
                gate=gate, providers=Providers.every(provider), recorder=Recorder(store, MemoryBroker()),
                capabilities=capabilities, clock=clock, checks={},
            )  # fmt: skip
            await CallRunner(parts).run(envelope)
    return await store.get_by_trace_id(envelope.trace_id)
