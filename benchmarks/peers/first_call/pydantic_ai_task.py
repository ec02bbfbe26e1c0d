"""Ask for an order in pydantic-ai."""

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent


class Order(BaseModel):
    """The form of the answer."""

    side: Literal["buy", "sell", "none"]
    price: Decimal = Field(gt=0)
    quantity: Decimal = Field(ge=0, le=Decimal("0.5"))


agent = Agent("anthropic:claude-sonnet-5-5", output_type=Order)
answer = agent.run_sync("Size the order.")

print(answer.output)
