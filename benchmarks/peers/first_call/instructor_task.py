"""Ask for an order in instructor."""

from decimal import Decimal
from typing import Literal

import anthropic
import instructor
from pydantic import BaseModel, Field


class Order(BaseModel):
    """The form of the answer."""

    side: Literal["buy", "sell", "none"]
    price: Decimal = Field(gt=0)
    quantity: Decimal = Field(ge=0, le=Decimal("0.5"))


client = instructor.from_anthropic(anthropic.Anthropic())
order = client.create(
    model="claude-sonnet-5-5",
    max_tokens=1000,
    messages=[{"role": "user", "content": "Size the order."}],
    response_model=Order,
)

print(order)
