"""Ask a question about a log. The model may split it, within limits on cost, calls and depth.

python examples/08_ask_a_log.py
"""

import asyncio
import json
from decimal import Decimal
from tempfile import TemporaryDirectory

import agentic_trading as at
from agentic_trading.operate import open_log, spend
from agentic_trading.recursion import Recursion, RecursionLimits

PARTS = ("Compare the agents.", "Compare the workflows.")


def answer(request: at.ModelRequest) -> str:
    """Stand in for a model: split the question, answer each part, and join what the parts found."""
    context = request.envelope.context
    if "findings" in context:
        return json.dumps({"conclusion": " ".join(one["conclusion"] for one in context["findings"])})
    if context.get("question") in PARTS:
        return json.dumps({"conclusion": f"{context['question']} They are equal.", "confidence": 0.9})
    tasks = [{"query": part, "priority": place} for place, part in enumerate(PARTS, start=1)]
    return json.dumps({
        "conclusion": "It depends on two sums.",
        "sub_tasks": tasks,
        "next_action": "continue",
    })


def call() -> at.EnvelopeBuilder:
    """Return an envelope for the model."""
    return at.EnvelopeBuilder().for_general().with_provider(at.LLMProvider.SCRIPTED, "scripted-1")


async def main() -> None:
    """Record two calls, then ask about them with their sums as evidence."""
    with TemporaryDirectory() as folder:
        async with at.local_gateway(
            at.ScriptedProvider(answer), folder=folder, budget_usd=Decimal(1)
        ) as gateway:
            for agent in ("a", "b"):
                await gateway.ask(call().with_agent(agent).with_instructions("Report.").build())

            report = await spend(folder, "agent", "workflow")
            rows = {" ".join(row.key): row.cost_nusd for row in report.rows}
            limits = RecursionLimits(max_cost_nusd=500_000_000)
            async with open_log(folder) as log:
                asking = Recursion(gateway, log.trace, limits, lambda: call().add_evidence("spend", rows))
                outcome = await asking.run("Which agent spent the most?")

    for frame in outcome.frames:
        print(f"{'  ' * frame.depth}{frame.question}  {frame.state}: {frame.conclusion}")


if __name__ == "__main__":
    asyncio.run(main())
