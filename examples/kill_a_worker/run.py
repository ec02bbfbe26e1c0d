"""Kill a worker in the middle of its calls, and compare its log with the provider's invoice.

    python examples/kill_a_worker/run.py

needs no key and no network: the provider is a stub on the loopback that bills each request as it comes in. The worker
is a second process of this file; every dispatch is on disk before its request is sent.
"""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from agentic_trading import (
    EnvelopeBuilder,
    Gateway,
    JsonFileInteractionStore,
    LLMEnvelope,
    LLMProvider,
    Usage,
    local_gateway,
)
from agentic_trading.llm import NANO
from agentic_trading.operate import PriceBook, ReservationState, rebuild
from agentic_trading.providers import AnthropicProvider, OneKey
from agentic_trading.testing import Clock, SystemClock

CALLS = 12
WORKERS = 4
KILLED_AT_REQUEST = 7
MODEL = "claude-haiku-5-5"
SCHEMA = {
    "type": "object",
    "properties": {"strategy": {"enum": ["passive", "cross"]}},
    "required": ["strategy"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What both sides know after the kill, in nano-dollars by call.

    `settled` is what the log charged for answered calls, `in_doubt` what it charges for those that were sent and
    whose outcome is unknown: their whole reservations.
    """

    invoice: dict[str, int]
    settled: dict[str, int]
    in_doubt: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether the invoice is what was settled, to the nano-dollar, and calls that are listed in doubt; nothing else."""
        unsettled = {name: nusd for name, nusd in self.invoice.items() if name not in self.settled}
        return (
            all(self.invoice.get(name) == nusd for name, nusd in self.settled.items())
            and unsettled.keys() <= self.in_doubt.keys()
            and all(nusd <= self.in_doubt[name] for name, nusd in unsettled.items())
            and bool(unsettled)
        )


def main() -> int:
    """Kill the worker and print what both sides know; 1 if they do not agree."""
    with TemporaryDirectory(prefix="kill-a-worker-") as folder:
        report = asyncio.run(kill_in_mid_call(Path(folder)))
    billed = sum(nusd for name, nusd in report.invoice.items() if name in report.in_doubt)
    print(
        f"A worker made up to {CALLS} calls, {WORKERS} at once, and was killed while it waited for answers."
    )
    print(f"  invoice of the provider  {_sum(report.invoice)}")
    print(f"  settled in the log       {_sum(report.settled)}")
    print(f"  in doubt in the log      {_sum(report.in_doubt)}: {', '.join(sorted(report.in_doubt))}")
    print(
        f"  of these billed          {_usd(billed)} USD, which with what was settled makes the whole invoice"
    )
    if report.holds:
        print(
            "Every call that was billed is in the log; what is in doubt is charged in full until it is known."
        )
    else:
        print("The invoice and the log do not agree.")
    return 0 if report.holds else 1


def _sum(by_call: dict[str, int]) -> str:
    return f"{len(by_call):>2} calls, {_usd(sum(by_call.values()))} USD"


def _usd(nusd: int) -> str:
    return f"{Decimal(nusd) / NANO:.6f}"


async def kill_in_mid_call(folder: Path) -> CrashReport:
    """Run the worker against the stub, kill it while it waits for answers, and read its log in `folder`."""
    prices = await asyncio.to_thread(PriceBook.load)
    is_time = asyncio.Event()

    def on_request(number: int) -> bool:
        if number >= KILLED_AT_REQUEST:
            is_time.set()
        return is_time.is_set()

    stub = InvoicingStub(prices, SystemClock(), on_request)
    async with stub.serving():
        worker = await asyncio.create_subprocess_exec(
            sys.executable, __file__, str(folder), stub.url,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(60):
            await is_time.wait()
        worker.kill()
        await worker.wait()
    return CrashReport(dict(stub.invoice), *await _charged(folder))


async def _charged(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return what the log in a folder says was settled, and what is in doubt, by idempotency key."""
    rebuilt = await rebuild(folder)
    settled, in_doubt = (
        {each.request.key: each.charged.nusd for each in rebuilt.entries() if each.state is state}
        for state in (ReservationState.SETTLED, ReservationState.IN_DOUBT)
    )
    return settled, in_doubt


async def make_calls(folder: Path, base_url: str) -> None:
    """Make all calls of the worker through a gateway whose log lies in `folder`."""
    store = JsonFileInteractionStore(folder / "interactions.jsonl")
    await store.open()
    provider = AnthropicProvider(OneKey("demo"), base_url=base_url)
    gateway = local_gateway(provider, store=store, budget_usd=Decimal(5), workers=WORKERS)
    async with gateway as client, asyncio.TaskGroup() as group:
        for number in range(CALLS):
            group.create_task(_ask(client, number))
    await store.aclose()


async def _ask(client: Gateway, number: int) -> None:
    await client.ask(envelope(f"order-{number:02d}"))


def envelope(name: str) -> LLMEnvelope:
    """Return the envelope of one call; both sides of the wire know it by `name`."""
    builder = EnvelopeBuilder().for_execution().with_provider(LLMProvider.ANTHROPIC, MODEL)
    builder.with_instructions("Say how the order is to be filled.").with_output_schema(SCHEMA)
    builder.with_context({"call": name}).with_idempotency_key(name).with_agent("execution-1", "execution")
    return builder.with_budget(max_output_tokens=200).build()


@dataclass(slots=True)
class InvoicingStub:
    """Answers on the loopback as the Messages API does, and bills every request as it comes in, answered or not.

    `invoice` holds nano-dollars by call. `on_request` is given how many have come; while it returns True, answers are
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
            await reader.read()  # held back until the connection is closed
            return False
        answer = orjson.dumps({
            "id": f"msg_{len(self.invoice)}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": '{"strategy":"passive","end":"ok"}'}],
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
        named = re.search(r"order-\d\d", body)
        usage = Usage(input_tokens=len(body) // 4, output_tokens=20)
        name = named[0] if named is not None else f"unnamed-{len(self.invoice)}"
        self.invoice[name] = self.prices.cost_nusd(LLMProvider.ANTHROPIC, MODEL, usage, at=self.clock.now())
        return usage


if __name__ == "__main__":
    if len(sys.argv) == 3:  # the worker, which is killed
        asyncio.run(make_calls(Path(sys.argv[1]), sys.argv[2]))
    else:
        sys.exit(main())
