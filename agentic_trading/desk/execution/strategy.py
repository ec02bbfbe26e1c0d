"""Fill strategies: the terms of an intent's orders, their schema, and the orders."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field, WithJsonSchema

from agentic_trading.canonical import exact_value
from agentic_trading.desk.exchange import Order, OrderType, TimeInForce
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.instrument import EXACT, limit_from, round_down
from agentic_trading.ids import derived_id
from agentic_trading.llm.fields import Open

FILL_STRATEGY: Final = "fill_strategy.v2"
"""The schema's `$id`. It names the rule that answers offline, and the check of the answer."""

ASKED_CHARS: Final = 120
"""The maximum length of a rationale that is asked for. The published schema allows `RATIONALE_CHARS`."""

# Without this pattern a small model would write digits only.
ASKED_PATTERN: Final = "^[A-Z][A-Za-z0-9_]* [A-Za-z]"
"""The form of a rationale that is asked for: it begins with words."""

ASKED_CONFIDENCES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

RATIONALE_CHARS: Final = 300
MOST_EVIDENCE: Final = 8

Algo = Literal["single", "twap", "passive_then_cross"]

FillName = Literal[
    "take_now", "take_capped", "slices", "slices_slow", "wait_near", "wait_far", "at_plan", "at_plan_brief"
]

Schema = dict[str, Any]

# Decimals in Python and plain numbers in the schema, so that a model's 0.05 is read as exactly 0.05.
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
    """The terms of orders. Side, symbol and quantity are those of the intent.

    Every field is required. `terms_violations` checks their agreement and limits.
    """

    order_type: Open[OrderType] = Field(description="how each slice is placed")
    time_in_force: Open[TimeInForce] = Field(
        description="gtc: until the deadline; ioc: the first bar or nothing; day: not beyond midnight UTC"
    )
    algo: Open[Algo] = Field(
        description="one order; equal slices at equal intervals; or one patient order that crosses at the deadline"
    )
    slices: int = Field(ge=1, le=20, description="1 unless algo is twap")
    interval_seconds: int = Field(ge=0, le=86_400, description="between slices, rounded up to whole bars")
    limit_offset_bps: Bps = Field(description="from the reference price; positive is passive; 0 for market")
    price_reference: Open[Literal["last", "arrival"]] = Field(
        description="last: the close before a slice becomes active; arrival: the price of the decision"
    )
    max_participation: Participation = Field(description="share of a bar's volume a slice may take, above 0")
    deadline_seconds: int = Field(ge=1, le=86_400, description="after the decision")
    on_deadline: Open[Literal["cross", "cancel"]] = Field(description="what becomes of the rest")
    expected_slippage_bps: Bps = Field(description="against the price of the decision; positive is a cost")


class FillStrategy(FillTerms, frozen=True, extra="forbid"):
    """Chosen terms, with confidence and reasons."""

    confidence: Confidence = Field(description="in this choice")
    rationale: str = Field(max_length=RATIONALE_CHARS, description="why, from the evidence")
    evidence_ids: tuple[EvidenceId, ...] = Field(
        min_length=1, max_length=MOST_EVIDENCE, description="what it rests on"
    )


class FillChoice(BaseModel, frozen=True, extra="forbid"):
    """A model's answer: the name of computed terms, with confidence and reasons.

    The published schema also allows terms in full. A question offers names only.
    """

    evidence_ids: tuple[EvidenceId, ...] = Field(min_length=1, max_length=MOST_EVIDENCE)
    rationale: Annotated[str, Field(max_length=RATIONALE_CHARS)]
    fill: FillName | FillTerms
    confidence: Confidence

    def strategy(self, terms: FillTerms) -> FillStrategy:
        """Return the fill strategy with these terms."""
        return FillStrategy.model_validate({**terms.model_dump(), **self.model_dump(exclude={"fill"})})


def read_choice(text: str) -> FillChoice:
    """Return an answer to `fill_strategy.v2`, with every number as it was written.

    Raises:
        pydantic.ValidationError: If the answer is not valid.

    """
    return FillChoice.model_validate(exact_value(text.encode()))


def strategy_id(intent_id: str) -> str:
    """Return the id of an intent's recorded fill strategy, the cause of its orders."""
    return derived_id("fill.strategy", intent_id)


def closed_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a flat model, closed and without titles."""
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


def _schema(evidence_ids: Schema, rationale: Schema, fill: Schema, confidence: Schema) -> Mapping[str, Any]:
    properties = {
        "evidence_ids": {"type": "array", "minItems": 1, **evidence_ids},
        "rationale": {"type": "string", **rationale},
        "fill": fill,
        "confidence": {"type": "number", **confidence},
    }
    return MappingProxyType({
        "$id": FILL_STRATEGY,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    })


def _named(names: Collection[str]) -> Schema:
    return {"type": "string", "enum": [*names]}


@cache
def asked_fill_schema(names: tuple[FillName, ...], evidence: int) -> Mapping[str, Any]:
    """Return the schema of an answer that chooses from `names` and cites evidence.

    It may cite E1 to E`evidence`. An answer that fits it also fits the published schema, which has the same
    `$id`. Values that must agree are combined under one name.
    """
    # Every choice is an enum, because some decoders enforce only types and enums.
    return _schema(
        {"maxItems": evidence, "items": _named([f"E{place}" for place in range(1, evidence + 1)])},
        {"maxLength": ASKED_CHARS, "pattern": ASKED_PATTERN},
        _named(names),
        {"enum": [*ASKED_CONFIDENCES]},
    )


FILL_STRATEGY_SCHEMA: Final[Mapping[str, Any]] = _schema(
    {"maxItems": MOST_EVIDENCE, "items": {"type": "string", "pattern": "^E[1-9][0-9]*$"}},
    {"maxLength": RATIONALE_CHARS},
    {"anyOf": [_named(get_args(FillName)), closed_schema(FillTerms)]},
    {"minimum": 0, "maximum": 1},
)
"""The published schema. Every answer to a question of the execution agent fits it."""


def plan_orders(
    intent: OrderIntent, strategy: FillStrategy, limits: FillLimits, *, known_at: datetime
) -> list[Order]:
    """Return the orders of a checked strategy, one per slice.

    The quantities add up to the intent's quantity exactly. The first slice may be filled by the first bar
    that opens at or after both `intent.as_of` and `known_at`. Each further slice is an interval of whole bars
    later. All orders have the same deadline, counted from the first slice. Orders of an entry end with the
    intent at the latest. Equal arguments give equal orders, ids included.

    Args:
        intent: The intent.
        strategy: The strategy. It must have passed its check.
        limits: The limits of the intent.
        known_at: The time at which the strategy was known.

    """
    start = _first_open(intent.as_of, known_at, timedelta(seconds=limits.bar_seconds))
    deadline = start + timedelta(seconds=strategy.deadline_seconds)
    interval = limits.interval(strategy.interval_seconds)
    quantities = slice_quantities(intent.quantity, strategy.slices, limits.lot_size)
    return [
        _order(intent, strategy, limits, number, quantity, start + number * interval, deadline)
        for number, quantity in enumerate(quantities)
    ]


def slice_quantities(quantity: Decimal, slices: int, lot_size: Decimal) -> list[Decimal]:
    """Return `slices` equal quantities in whole lots.

    The remainder is added to the last quantity.
    """
    each = round_down(EXACT.divide(quantity, slices), lot_size)
    return [each] * (slices - 1) + [EXACT.fma(each, -(slices - 1), quantity)]


def _order(
    intent: OrderIntent,
    strategy: FillStrategy,
    limits: FillLimits,
    number: int,
    quantity: Decimal,
    start: datetime,
    deadline: datetime,
) -> Order:
    ends_with_day = strategy.time_in_force == "day" and _midnight_after(start) < deadline
    is_priced = strategy.order_type != "market"
    by_arrival = is_priced and strategy.price_reference == "arrival"
    return Order(
        order_id=derived_id("order", intent.intent_id, number),
        intent_id=intent.intent_id,
        symbol=intent.symbol,
        side=intent.side,
        quantity=quantity,
        order_type=strategy.order_type,
        limit_price=_arrival_limit(intent, strategy, limits) if by_arrival else None,
        peg_bps=strategy.limit_offset_bps if is_priced and not by_arrival else None,
        time_in_force=strategy.time_in_force,
        active_from=start,
        expires_at=_midnight_after(start) if ends_with_day else deadline,
        on_expiry="cancel" if ends_with_day else strategy.on_deadline,
        # An exit stays open after its intent, so that the position is closed in any case.
        void_from=intent.expires_at if intent.kind == "entry" else None,
        max_participation=strategy.max_participation,
        reduce_only=intent.kind == "exit",
        stop_loss=intent.stop_loss,
        take_profit=intent.take_profit,
        trace_id=intent.trace_id,
        causation_id=strategy_id(intent.intent_id),
    )


def _first_open(as_of: datetime, known_at: datetime, bar: timedelta) -> datetime:
    """Return the open of the first bar at or after both `as_of` and `known_at`."""
    return as_of + max(0, -((as_of - known_at) // bar)) * bar


def _arrival_limit(intent: OrderIntent, strategy: FillStrategy, limits: FillLimits) -> Decimal:
    return limit_from(intent.reference_price, strategy.limit_offset_bps, intent.side, limits.tick_size)


def _midnight_after(moment: datetime) -> datetime:
    """Return the end of the UTC day of `moment`."""
    day = moment.astimezone(UTC)
    return datetime.combine(day.date(), time(), UTC) + timedelta(days=1)
