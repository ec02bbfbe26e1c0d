"""Calls to a platform: their envelopes, who answers them, and what became of them."""

from decimal import Decimal
from pathlib import Path

from agentic_trading.llm import (
    EnvelopeBuilder,
    FailureKind,
    LLMEnvelope,
    LLMProvider,
)
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import (
    ModelConfig,
    Platform,
    PriceConfig,
)
from tests.gateway import START

ROW = ModelConfig(
    model="quant-7b", context_tokens=32_768, max_output_tokens=4096, price=PriceConfig(input=20, output=150),
    source="own cluster", checked_on=START.date(),
)  # fmt: skip
BUDGET_USD = Decimal("0.1")
SMALL_USD = Decimal("0.0475")
"""For three calls of the scripted model: each costs 0.000212, and 0.046904 is reserved for it."""


def envelope(
    n: int = 0,
    *,
    tenant: str = "default",
    provider: str = "scripted",
    model: str = "scripted-1",
    retry_policy: RetryPolicy | None = None,
) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": n})
    if retry_policy is not None:
        builder = builder.with_retry_policy(retry_policy)
    return builder.with_tenant(tenant).with_provider(LLMProvider(provider), model).build()


def scripted() -> ScriptedProvider:
    return ScriptedProvider(lambda _request: "{}")


async def asked(platform: Platform, *envelopes: LLMEnvelope) -> list[FailureKind | None]:
    """Return how each call failed, None for one that was answered."""
    answers = [await platform.ask(each) for each in envelopes]
    return [answer.failure.category if answer.failure is not None else None for answer in answers]


async def spent_nusd(log: Path) -> int:
    records = JsonlRecords(log)
    spent = sum(row.cost_nusd for row in await records.spend("tenant"))
    await records.aclose()
    return spent
