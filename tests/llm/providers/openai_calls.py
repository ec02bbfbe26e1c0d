"""A gateway whose provider is the OpenAI adapter, speaking to the stub of the chat completions API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.clock import SimClock
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.models import Capabilities, Capability, DatedTable
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.keys import Keys, OneKey
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from tests.gateway import SCHEMA, START

MODEL = "stub-large"
CAP = 400
_DATED: dict[str, Any] = {"source": "the stub", "checked_on": date(2026, 1, 1)}
CAPABILITY = Capability(
    provider=LLMProvider.OPENAI,
    model=MODEL,
    sampling=True,
    native_schema=True,
    effort=("low", "medium", "high"),
    context_tokens=100_000,
    max_output_tokens=10_000,
    overhead_tokens=100,
    logprobs=True,
    **_DATED,
)
_PRICE: dict[str, Any] = {
    "provider": LLMProvider.OPENAI,
    "valid_from": date(2026, 1, 1),
    "service_tier": {"default": (1, 1)},
    "cache_write_1h": 0,
    **_DATED,
}
PRICES = (  # nano-dollars a token, written down again: the stub's own list is in dollars
    ModelPrice(model=MODEL, input=1250, cache_read=125, cache_write_5m=1500, output=10_000, **_PRICE),
    ModelPrice(model="stub-small", input=1, cache_read=1, cache_write_5m=1, output=1, **_PRICE),
)


@dataclass(frozen=True)
class Desk:
    """The pieces that a test looks at."""

    provider: OpenAIProvider
    store: MemoryInteractionStore
    ledger: MemoryLedger
    runner: CallRunner


@asynccontextmanager
async def desk(base_url: str, keys: Keys | None = None, *models: Capability) -> AsyncGenerator[Desk]:
    """Wire the adapter into a gateway in memory, and close its connections in the end."""
    clock = SimClock(START)
    capabilities = Capabilities([CAPABILITY, *models])
    provider = OpenAIProvider(
        keys or OneKey("sk-stub-1"), base_url=base_url, capabilities=capabilities, clock=clock
    )
    store, ledger = MemoryInteractionStore(), MemoryLedger()
    prices = PriceBook(DatedTable(Path("stub.json"), PRICES, {"name": "stub"}, "0" * 64))
    gate = Gate(ledger=ledger, prices=prices, capabilities=capabilities, clock=clock, mode="paper")
    parts = RunnerDependencies(
        gate=gate,
        providers=Providers.every(provider),
        recorder=Recorder(store, MemoryBroker()),
        capabilities=capabilities,
        clock=clock,
        checks={},
    )
    try:
        yield Desk(provider, store, ledger, CallRunner(parts))
    finally:
        await provider.aclose()


def asking(outcomes: str = "answer", workflow: str = "general", **policy: Any) -> EnvelopeBuilder:
    """Return a builder for a call that the stub answers with `outcomes`, one a request; `policy` is of its retries."""
    builder = EnvelopeBuilder(clock=SimClock(START))
    getattr(builder, f"for_{workflow}")()
    builder.with_instructions(f"@{outcomes}").with_output_schema(SCHEMA).with_agent("adviser-1", "adviser")
    builder.with_budget(max_output_tokens=CAP).with_context({"symbol": "BTCUSDT"})
    builder.with_retry_policy(RetryPolicy(**{"max_retries": 0, **policy}))
    return builder.with_provider(LLMProvider.OPENAI, MODEL)
