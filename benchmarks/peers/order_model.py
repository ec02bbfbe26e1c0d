"""The order as pydantic models, with the rules of its JSON Schemas: for contenders that are built on pydantic."""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Price = Annotated[float, Field(gt=0)]
Quantity = Annotated[float, Field(gt=0, le=10)]


class Closed(BaseModel):
    """A model that takes no property but its own."""

    model_config = ConfigDict(extra="forbid")


class Leg(Closed):
    """One leg of the order."""

    limit_price: Price
    qty: Quantity
    post_only: bool = False
    note: Annotated[str, Field(max_length=120)] = ""


class Full(Closed):
    """The order, all of it required."""

    symbol: Annotated[str, Field(min_length=1, max_length=20)]
    side: Literal["BUY", "SELL"]
    qty: Quantity
    order_type: Literal["MARKET", "LIMIT", "STOP_LIMIT"]
    limit_price: Price
    stop_loss: Price
    take_profit: Annotated[list[Price], Field(max_length=4)]
    tif: Literal["GTC", "IOC", "FOK"]
    reduce_only: bool
    confidence: Annotated[float, Field(ge=0, le=1)]
    legs: Annotated[list[Leg], Field(min_length=1, max_length=6)]
    rationale: Annotated[str, Field(max_length=2000)]
    next_action: Literal["submit", "wait"]


class Typical(Closed):
    """The order, three properties of which are required; what is absent stays out of what is told."""

    symbol: Annotated[str, Field(min_length=1, max_length=20)]
    side: Literal["BUY", "SELL"]
    qty: Quantity
    order_type: Literal["MARKET", "LIMIT", "STOP_LIMIT"] | None = None
    limit_price: Price | None = None
    stop_loss: Price | None = None
    take_profit: Annotated[list[Price], Field(max_length=4)] | None = None
    tif: Literal["GTC", "IOC", "FOK"] | None = None
    reduce_only: bool | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    legs: Annotated[list[Leg], Field(min_length=1, max_length=6)] | None = None
    rationale: Annotated[str, Field(max_length=2000)] | None = None
    next_action: Literal["submit", "wait"] | None = None


class Ticket(Closed):
    """The small order of the slips."""

    symbol: str
    side: Literal["BUY", "SELL"]
    qty: Quantity
    reduce_only: bool
    stop: float | None
    note: str
    tags: list[str]


MODELS: dict[str, type[Closed]] = {"typical": Typical, "full": Full, "ticket": Ticket}


def plain(value: BaseModel) -> dict[str, object]:
    """Return what was read, without what was absent."""
    return value.model_dump(exclude_unset=True)


def spelled(value: BaseModel) -> str:
    """Return what was read as JSON, without what was absent; NaN stays visible."""
    return json.dumps(plain(value))
