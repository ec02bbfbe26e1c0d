"""How an intent is to be filled, and why."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from agentic_trading.canonical import exact_value
from agentic_trading.desk.exchange import OrderType, TimeInForce
from agentic_trading.ids import derived_id

FILL_STRATEGY_V1: Final = "fill_strategy.v1"
"""The `$id` of the schema that asked for all of a strategy: it names the check that runs on such an answer."""

RATIONALE_CHARS: Final = 300
MOST_EVIDENCE: Final = 8

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


class FillTerms(BaseModel, frozen=True, extra="forbid"):
    """How orders are placed. Side, symbol and quantity are not in it: they are the intent's.

    Every field is required. What they must say together, and within which limits, is for
    `terms_violations` to judge.
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


class FillStrategy(FillTerms, frozen=True, extra="forbid"):
    """Terms that were chosen, how surely, and why."""

    confidence: Confidence = Field(description="in this choice")
    rationale: str = Field(max_length=RATIONALE_CHARS, description="why, from the evidence")
    evidence_ids: tuple[EvidenceId, ...] = Field(
        min_length=1, max_length=MOST_EVIDENCE, description="what it rests on"
    )


def read_strategy(text: str) -> FillStrategy:
    """Read an answer to `fill_strategy.v1`, every number as it was written; raises pydantic's `ValidationError`."""
    return FillStrategy.model_validate(exact_value(text.encode()))


def strategy_id(intent_id: str) -> str:
    """Return the id under which the fill strategy of an intent is on record: the cause of its orders."""
    return derived_id("fill.strategy", intent_id)


def closed_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model without nested ones: closed, and without titles."""
    made = model.model_json_schema()
    properties = {
        name: {key: value for key, value in rules.items() if key != "title"}
        for name, rules in made["properties"].items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": made["required"],
        "additionalProperties": False,
    }


FILL_STRATEGY_V1_SCHEMA: Final[Mapping[str, Any]] = MappingProxyType({
    "$id": FILL_STRATEGY_V1,
    **closed_schema(FillStrategy),
})
"""The JSON Schema `fill_strategy.v1`, released and therefore fixed: what an answer had to fit before v2."""
