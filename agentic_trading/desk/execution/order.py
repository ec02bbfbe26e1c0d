"""Order intents, and the limits of their fill strategies."""

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from agentic_trading.desk.exchange import OrderType
from agentic_trading.desk.instrument import EXACT, Instrument, Price, Quantity, Side
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open

SizedBy = Literal["risk", "exposure", "notional", "position", "weight"]


class Sizing(BaseModel, frozen=True):
    """The basis of a quantity: the account at the time, and the bound that set it.

    Attributes:
        equity: The equity in the quote currency.
        position: The signed position in the symbol.
        pending: The signed quantity that open entries of the symbol would add.
        gross: The value of all positions and open entries of all symbols at their marks, in the quote
            currency.
        risk_pct: The percentage of the equity that an entry may lose at its stop.
        sized_by: The bound. `position` is an exit that closes all of it, and `weight` is a plan that wants
            another share of the equity.

    """

    equity: Decimal
    position: Decimal
    pending: Decimal
    gross: Decimal
    risk_pct: Decimal | None
    sized_by: Open[SizedBy]


class OrderIntent(EventBody, frozen=True):
    """A decision to buy or sell, made and sized by code. It has no fill strategy yet.

    Attributes:
        arrival_price: The last close at `as_of`. Fills are compared with it.
        limit_price: The worst accepted price of an entry. None takes the market.
        stop_loss: The stop of an entry. An exit only reduces, and has neither stop nor target.
        take_profit: The target of an entry.
        sizing: The basis of the quantity.
        causation_id: The event that proposed it.

    """

    KIND = "intent.approved"

    intent_id: str
    symbol: str
    side: Open[Side]
    quantity: Quantity
    kind: Open[Literal["entry", "exit"]]
    arrival_price: Price
    limit_price: Price | None = None
    stop_loss: Price | None = None
    take_profit: Price | None = None
    sizing: Sizing | None = None
    reason: Annotated[str, Field(max_length=500)] = ""
    as_of: AwareDatetime
    expires_at: AwareDatetime
    trace_id: str
    causation_id: str = ""

    @model_validator(mode="after")
    def _lives_and_fits_its_kind(self) -> Self:
        if self.expires_at <= self.as_of:
            raise ValueError(f"expires_at {self.expires_at} must be after as_of {self.as_of}")
        if self.kind == "exit" and (self.limit_price or self.stop_loss or self.take_profit):
            raise ValueError(
                "an exit takes no limit_price, stop_loss or take_profit. Only an entry has them."
            )
        return self

    @property
    def reference_price(self) -> Decimal:
        """The price that `arrival` refers to: the plan's limit, or the last close."""
        return self.limit_price or self.arrival_price


class FillLimits(BaseModel, frozen=True):
    """The bounds of a fill strategy, set by code before the model is asked.

    Attributes:
        max_participation: The maximum share of a bar's volume.
        max_deadline_s: The longest deadline, counted from the first slice.
        price_band_bps: The maximum limit offset to either side.
        bar_seconds: The length of a bar. Intervals are rounded up to whole bars.
        may_cross: False if the plan's price is the worst accepted price. Orders then stay at that price or on
            its passive side, and never cross.

    """

    max_slices: Annotated[int, Field(ge=1, le=20)] = 10
    max_participation: Annotated[Decimal, Field(gt=0, le=Decimal("0.25"))] = Decimal("0.1")
    max_deadline_s: Annotated[int, Field(ge=1, le=86_400)] = 3_600
    price_band_bps: Annotated[Decimal, Field(ge=0, le=1_000)] = Decimal(50)
    allowed_order_types: Annotated[tuple[OrderType, ...], Field(min_length=1)] = (
        "market",
        "limit",
        "post_only",
    )
    min_slice_quantity: Quantity = Decimal("0.001")
    tick_size: Price = Decimal("0.01")
    lot_size: Quantity = Decimal("0.00001")
    bar_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    may_cross: bool = True

    def narrowed_to(self, intent: OrderIntent, instrument: Instrument) -> Self:
        """Return the limits for one intent: its lifetime, size, price and grid."""
        lifetime_s = max(1, int((intent.expires_at - intent.as_of).total_seconds()))
        may_cross = self.may_cross and intent.limit_price is None
        # Without `may_cross` there are no market orders, because their price could be worse than the plan's.
        patient = tuple(kind for kind in self.allowed_order_types if kind != "market" or may_cross)
        least = max(self.min_slice_quantity, instrument.min_quantity)
        # The number of slices is bounded so that each can have the minimum quantity.
        slices = int(EXACT.divide_int(intent.quantity, least))
        narrower = {
            "max_deadline_s": min(self.max_deadline_s, lifetime_s),
            "min_slice_quantity": least,
            "max_slices": max(1, min(self.max_slices, slices)),
            "tick_size": instrument.tick_size,
            "lot_size": instrument.lot_size,
            "allowed_order_types": patient or self.allowed_order_types,
            "may_cross": may_cross,
        }
        return type(self).model_validate({**self.model_dump(), **narrower})

    def interval(self, seconds: int) -> timedelta:
        """Return `seconds` rounded up to whole bars."""
        return timedelta(seconds=-(-seconds // self.bar_seconds) * self.bar_seconds)
