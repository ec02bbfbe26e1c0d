"""A budget that outlasts a restart, a halt by an operator, and the sum of what was spent.

python examples/04_budget_and_halt.py
"""

import asyncio
from decimal import Decimal
from tempfile import TemporaryDirectory

import agentic_trading as at
from agentic_trading.operate import halt, resume, spend

BUDGET_USD = Decimal("0.0473")
"""For all starts in this folder together. One call reserves about 0.047 USD, the most that it can cost."""


async def ask(folder: str, task: str) -> None:
    """Open a gateway on the folder, as after a restart, and ask once."""
    async with at.local_gateway(
        at.ScriptedProvider(['{"side": "long"}']), folder=folder, budget_usd=BUDGET_USD
    ) as gateway:
        envelope = (
            at
            .EnvelopeBuilder()
            .with_agent("bot")
            .with_instructions(task)
            .with_provider(at.LLMProvider.SCRIPTED, "scripted-1")
            .build()
        )
        outcome = await gateway.ask_structured(envelope)
    print(f"{task:<8} {outcome.json_text or (outcome.error and outcome.error.category)}")


async def main() -> None:
    """Spend, halt, resume, and run into the limit."""
    with TemporaryDirectory() as folder:
        await ask(folder, "first")
        await halt(folder, "drifts from its backtest", agent="bot")  # or: agentic-trading halt --store ...
        await ask(folder, "halted")
        await resume(folder, "checked", agent="bot")
        for number in range(2, 5):
            await ask(folder, f"call {number}")

        report = await spend(folder, "agent")
        for row in report.rows:
            print(f"{row.key[0]} spent {row.cost_nusd / 1e9:.6f} USD in {row.attempts} attempts")


if __name__ == "__main__":
    asyncio.run(main())
