"""How an intent is to be filled: what the model is asked for, and the schema of its answer."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from agentic_trading.canonical import exact_value
from agentic_trading.desk.exchange import OrderType, TimeInForce
from agentic_trading.ids import derived_id

FILL_STRATEGY: Final = "fill_strategy.v1"
"""The schema's `$id`: it names the rule that answers it offline, and the check that runs on the answer."""

Algo = Literal["single", "twap", "passive_then_cross"]

# In Python exact numbers, in the schema plain ones: a model writes 0.05, and 0.05 is what is read.
Bps = Annotated[
    Decimal,
    Field(ge=-1_000, le=1_000),
    WithJsonSchema({"type": "number", "minimum": -1_000, "maximum": 1_000}),
]
Participation = Annotated[
    Decimal,
    Field(ge=0, le=Decimal("0.25")),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 0.25}),
]
Confidence = Annotated[
    Decimal, Field(ge=0, le=1), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})
]
EvidenceId = Annotated[str, Field(pattern="^E[1-9][0-9]*$")]


class FillStrategy(BaseModel, frozen=True, extra="forbid"):
    """The model's choice. Side, symbol and quantity are not in it: they are the intent's.

    Every field is required. What they must say together, and within which limits, is for
    `check_fill_strategy` to judge.
    """

    order_type: OrderType = Field(description="how each slice is placed")
    time_in_force: TimeInForce = Field(
        description="gtc: until the deadline; ioc: the first bar or nothing; day: not beyond midnight UTC"
    )
    algo: Algo = Field(
        description="one order; equal slices at equal intervals; or one patient order that crosses at the deadline"
    )
    slices: int = Field(ge=1, le=20, description="1 unless algo is twap")
    interval_seconds: int = Field(ge=0, le=86_400, description="between slices, rounded up to whole bars")
    limit_offset_bps: Bps = Field(description="from the reference price; positive is passive; 0 for market")
    price_reference: Literal["last", "arrival"] = Field(
        description="last: the close before a slice becomes active; arrival: the price of the decision"
    )
    max_participation: Participation = Field(description="share of a bar's volume a slice may take, above 0")
    deadline_seconds: int = Field(ge=1, le=86_400, description="after the decision")
    on_deadline: Literal["cross", "cancel"] = Field(description="what becomes of the rest")
    expected_slippage_bps: Bps = Field(description="against the price of the decision; positive is a cost")
    confidence: Confidence = Field(description="in this choice")
    rationale: str = Field(max_length=300, description="why, from the evidence")
    evidence_ids: tuple[EvidenceId, ...] = Field(min_length=1, max_length=8, description="what it rests on")


def read_strategy(text: str) -> FillStrategy:
    """Read an accepted answer, every number as it was written; raises pydantic's `ValidationError`."""
    return FillStrategy.model_validate(exact_value(text.encode()))


def strategy_id(intent_id: str) -> str:
    """Return the id under which the fill strategy of an intent is on record: the cause of its orders."""
    return derived_id("fill.strategy", intent_id)


def _schema() -> dict[str, Any]:
    made = FillStrategy.model_json_schema()
    properties = {
        name: {key: value for key, value in rules.items() if key != "title"}
        for name, rules in made["properties"].items()
    }
    return {
        "$id": FILL_STRATEGY,
        "type": "object",
        "properties": properties,
        "required": made["required"],
        "additionalProperties": False,
    }


FILL_STRATEGY_SCHEMA: Final[Mapping[str, Any]] = MappingProxyType(_schema())
"""The JSON Schema of `FillStrategy`, made from it."""
