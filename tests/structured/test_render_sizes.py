"""The short form of a schema takes a fraction of the characters of its JSON."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import AwareDatetime, BaseModel, Field

from benchmarks.sizes import sizes

SCHEMAS = Path(__file__).parents[2] / "schemas"


class Leg(BaseModel, extra="forbid"):
    """One part of the order. Legs are sent in the order given, each only after the one before it was filled."""

    venue: Literal["binance", "kraken", "coinbase"] = Field(
        description="where this part is sent; see the venue table"
    )
    px: float = Field(gt=0, multiple_of=0.01, description="limit price in USD")
    qty: float = Field(gt=0, le=10, description="coins")
    post_only: bool = Field(
        default=False, description="whether the leg is taken back rather than let it take liquidity"
    )


class Order(BaseModel, extra="forbid"):
    """One order for one instrument. It is checked against the limits of the account before it is sent anywhere."""

    action: Literal["BUY", "SELL", "HOLD"] = Field(
        description="what to do; HOLD wherever the evidence is not enough for either"
    )
    order_type: Literal["market", "limit", "stop_limit"] = Field(
        description="market only where the book is deep enough"
    )
    qty: float = Field(gt=0, le=10, description="coins, never dollars")
    limit_price: float | None = Field(
        default=None, gt=0, multiple_of=0.01, description="price in USD; null for market orders"
    )
    stop_loss: float | None = Field(
        default=None, gt=0, description="price in USD at which the position is closed"
    )
    take_profit: float | None = Field(
        default=None, gt=0, description="price in USD at which the gain is taken"
    )
    risk: float = Field(ge=0, le=0.05, description="fraction of the account (0.01 is one per cent)")
    time_in_force: Literal["gtc", "ioc", "day"] = Field(
        default="gtc", description="how long the order stays in the book before it is taken back"
    )
    expires_at: AwareDatetime | None = Field(default=None, description="UTC")
    reduce_only: bool = Field(
        default=False,
        description="whether the order may only make an open position smaller, never open a new one",
    )
    legs: list[Leg] = Field(
        min_length=1,
        max_length=3,
        description="the parts of the order, whose quantities add up to that of the order",
    )
    tags: list[str] = Field(
        default_factory=list,
        max_length=5,
        description="free words by which the order can be found again in the reports",
    )
    rationale: str = Field(
        min_length=1,
        max_length=400,
        description="one or two sentences that name the evidence by its id and say what would prove the idea wrong",
    )


def test_order_rendering_is_under_quarter_size() -> None:
    figures = sizes(Order.model_json_schema())

    assert figures.rendered < figures.sanitised < figures.compact < figures.indented
    assert figures.rendered / figures.indented < 0.24


@pytest.mark.parametrize("name", ["cmt_assessment.v2", "fill_strategy.v2"])
def test_published_schemas_render_below_third(name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))

    figures = sizes(schema)

    assert figures.indented == len(json.dumps(schema, indent=2))
    assert figures.rendered / figures.indented < 0.32


def test_broken_schema_size_equals_json_size() -> None:
    figures = sizes({"type": "objekt"})

    assert (figures.sanitised, figures.rendered) == (figures.compact, figures.compact)
