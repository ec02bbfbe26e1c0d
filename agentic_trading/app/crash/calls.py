"""The program that is killed: a worker that makes orders' calls, four at once, with every dispatch on disk before."""

import asyncio
import sys
from decimal import Decimal
from pathlib import Path

from agentic_trading.app import wire
from agentic_trading.app.local import local_gateway
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider

CALLS = 12
WORKERS = 4
MODEL = "claude-haiku-5-5"
SCHEMA = {
    "type": "object",
    "properties": {"strategy": {"enum": ["passive", "cross"]}},
    "required": ["strategy"],
    "additionalProperties": False,
}


def call_name(number: int) -> str:
    """Return what a call is known by, on both sides of the wire."""
    return f"order-{number:02d}"


def envelope(number: int) -> LLMEnvelope:
    """Return the envelope of one call."""
    name = call_name(number)
    builder = EnvelopeBuilder().for_execution().with_provider(LLMProvider.ANTHROPIC, MODEL)
    builder.with_instructions("Say how the order is to be filled.").with_output_schema(SCHEMA)
    builder.with_context({"call": name}).with_idempotency_key(name).with_agent("execution-1", "execution")
    return builder.with_budget(max_output_tokens=200).build()


async def make_calls(folder: Path, base_url: str) -> None:
    """Make all calls of the program through a gateway whose log lies in `folder`."""
    store = wire.log_for("paper", folder / "interactions.jsonl")
    await store.open()
    provider = wire.anthropic(wire.keys("demo", folder=None, name="anthropic", is_free=True), base_url)  # type: ignore[arg-type]  # a key is given
    gateway = local_gateway(provider, store=store, budget_usd=Decimal(5), workers=WORKERS)
    async with gateway as client, asyncio.TaskGroup() as group:
        for number in range(CALLS):
            group.create_task(_ask(client, number), name=call_name(number))
    await store.aclose()


async def _ask(client: GatewayClient, number: int) -> None:
    await client.ask(envelope(number))


if __name__ == "__main__":
    asyncio.run(make_calls(Path(sys.argv[1]), sys.argv[2]))
