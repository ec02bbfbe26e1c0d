"""Serve a model of your own: a provider is a class with three methods.

python examples/03_own_provider.py
"""

import asyncio
from datetime import date
from decimal import Decimal

import agentic_trading as at


class HouseProvider:
    """Answers from a cluster of your own. It answers once: retries, budgets and parsing are the gateway's."""

    async def complete(self, request: at.ModelRequest) -> at.ModelResponse:
        """Return one answer, or raise `ProviderError` with `sent=False` if nothing can have been billed."""
        if "offline" in request.envelope.instructions:
            raise at.ProviderError(at.FailureKind.SERVER_ERROR, "the cluster is not reachable", sent=False)
        usage = at.Usage(input_tokens=40, output_tokens=5)
        return at.ModelResponse('{"trend": "up"}', "end_turn", usage, "quant-7b")

    async def count_tokens(self, _request: at.ModelRequest) -> int | None:
        """Return the exact size of a request, or None to have it estimated."""
        return None

    async def aclose(self) -> None:
        """Close connections."""


QUANT = at.ModelConfig(
    model="quant-7b",
    context_tokens=32_768,
    max_output_tokens=4096,
    price=at.PriceConfig(input=20, output=150),  # nano-dollars a token
    source="own cluster",
    checked_on=date(2026, 11, 22),
)
CONFIG = at.PlatformConfig(
    tenants={"default": at.TenantConfig(budget_usd=Decimal(5), window=at.Window.DAY)},
    providers={"house": at.ProviderConfig(models=(QUANT,))},
)


async def main() -> None:
    """Ask twice. The second call fails before it is sent, so it costs nothing."""
    async with at.Platform(CONFIG, at.Ports(providers={"house": HouseProvider()})) as gateway:
        for task in ("Judge the trend.", "Judge the trend of an offline market."):
            builder = at.EnvelopeBuilder().with_provider(at.LLMProvider("house"), "quant-7b")
            builder.with_instructions(task).with_retry_policy(at.RetryPolicy(max_retries=0))
            outcome = await gateway.ask_structured(builder.build())
            error = outcome.error
            print(error.description if error else outcome.json_text, outcome.usage.cost_nusd, "nUSD")


if __name__ == "__main__":
    asyncio.run(main())
