"""Ask with a JSON Schema of your own, and read each attempt.

python examples/02_own_schema.py
"""

import asyncio
from decimal import Decimal

import agentic_trading as at

SCHEMA = {
    "$id": "order.v1",
    "type": "object",
    "required": ["side", "quantity"],
    "additionalProperties": False,
    "properties": {
        "side": {"enum": ["buy", "sell", "none"]},
        "quantity": {"type": "number", "minimum": 0, "maximum": 0.5},
    },
}
ANSWERS = [
    '{"side": "buy", "quantity": 0.1',  # truncated: 0.1 may be the start of 0.15
    'I would buy. ```json\n{"side": "buy", "quantity": 0.150}\n```',
]


async def main() -> None:
    """Build an envelope, ask, and print the object and what happened on the way to it."""
    async with at.local_gateway(at.ScriptedProvider(ANSWERS), budget_usd=Decimal("0.50")) as gateway:
        envelope = (
            at
            .EnvelopeBuilder()
            .for_analysis()
            .with_instructions("Size the order. Stand aside with side none and quantity 0.")
            .add_evidence("indicators", {"rsi_14": 62.3, "atr_14": 450.2})
            .with_output_schema(SCHEMA)
            .with_provider(at.LLMProvider.SCRIPTED, "scripted-1")
            .build()
        )
        outcome = await gateway.ask_structured(envelope)

    print(outcome.json_text)  # compact JSON, with the digits that the model wrote
    for attempt in outcome.attempts:
        print(f"attempt {attempt.number}: {attempt.failure.description if attempt.failure else 'accepted'}")


if __name__ == "__main__":
    asyncio.run(main())
