"""Ask for an order in agentic_trading."""

import os
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field

import agentic_trading as at
from agentic_trading.providers import AnthropicProvider, OneKey


class Order(BaseModel):
    """The form of the answer."""

    side: Literal["buy", "sell", "none"]
    price: Decimal = Field(gt=0)
    quantity: Decimal = Field(ge=0, le=Decimal("0.5"))


key, address = OneKey(os.environ["ANTHROPIC_API_KEY"]), os.environ["ANTHROPIC_BASE_URL"]
model = AnthropicProvider(key, base_url=address)
with at.local_gateway(model, budget_usd=Decimal("0.50")).sync() as gateway:
    answer = gateway.decide("Size the order.", output=Order, model="anthropic/claude-sonnet-5-5")

print(answer.output or (answer.failure and answer.failure.category))
