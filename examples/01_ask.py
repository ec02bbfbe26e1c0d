"""Ask a model for a typed answer, within a budget.

    python examples/01_ask.py

The answers come from a script, so no key is needed. With a key, pass an adapter such as
`AnthropicProvider`, and the name of its model: benchmarks/peers/first_call/ours_task.py.
"""

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field

import agentic_trading as at


class Trend(BaseModel):
    """The schema of the answer. It is sent to the model, and other answers are rejected."""

    direction: Literal["up", "down", "flat"]
    confidence: float = Field(ge=0, le=1)


ANSWERS = ['{"direction": "up", "confidence": 1.7}', '{"direction": "up", "confidence": 0.7}']


def main() -> None:
    """Ask once. The first answer breaks a bound, so the gateway asks again with the error."""
    with at.local_gateway(at.ScriptedProvider(ANSWERS), budget_usd=Decimal("0.50")).sync() as gateway:
        answer = gateway.decide(
            "Judge the trend from the evidence.",
            output=Trend,
            model="scripted/scripted-1",
            evidence={"indicators": {"rsi_14": 62.3, "atr_14": 450.2}},
        )

    if answer:  # false unless the answer may be acted on
        print(answer.output)
    print(f"{len(answer.outcome.attempts)} attempts, {answer.outcome.usage.cost_nusd / 1e9:.6f} USD")


if __name__ == "__main__":
    main()
