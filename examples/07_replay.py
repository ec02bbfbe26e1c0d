"""Replay recorded answers: no network, no cost, the same objects.

python examples/07_replay.py
"""

import asyncio
from decimal import Decimal
from tempfile import TemporaryDirectory

import agentic_trading as at
from agentic_trading.operate import open_log
from agentic_trading.providers import RecordedAnswers
from agentic_trading.replay import no_network

ANSWERS = ['{"side": "long"}', '{"side": "flat"}', '{"side": "long"}']


async def judge(provider: at.Provider, folder: str) -> list[str]:
    """Ask about three bars, and return each answer with its cost."""
    async with at.local_gateway(provider, folder=folder, budget_usd=Decimal("0.50")) as gateway:
        found = []
        for close in ("27010.5", "26950.0", "27120.5"):
            envelope = (
                at
                .EnvelopeBuilder()
                .with_instructions("Judge the trend. Answer with a side.")
                .with_context({"close": Decimal(close)})
                .with_provider(at.LLMProvider.SCRIPTED, "scripted-1")
                .build()
            )
            outcome = await gateway.ask_structured(envelope)
            found.append(f"{outcome.json_text} {outcome.usage.cost_nusd} nUSD")
    return found


async def main() -> None:
    """Run once and record, then run from the record with the network blocked."""
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        paid = await judge(at.ScriptedProvider(ANSWERS), first)

        async with open_log(first) as log:
            records = [entry.record async for entry in log.scan()]
        recorded = RecordedAnswers(record for record in records if isinstance(record, at.LLMInteraction))
        with no_network():
            replayed = await judge(recorded, second)

    for before, after in zip(paid, replayed, strict=True):
        print(f"{before}  ->  {after}")
    print(f"missing: {len(recorded.misses)}, not asked again: {len(recorded.unused)}")


if __name__ == "__main__":
    asyncio.run(main())
