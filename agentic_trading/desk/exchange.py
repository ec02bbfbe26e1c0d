"""The port to where orders are filled, and what goes through it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from agentic_trading.desk.instrument import EXACT, ZERO, Price, Quantity, Side
from agentic_trading.desk.market.bar import Bar
from agentic_trading.errors import TradingError
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open, is_unknown

OrderType = Literal["market", "limit", "post_only"]
TimeInForce = Literal["gtc", "ioc", "day"]
Liquidity = Literal["maker", "taker"]
FillCause = Literal["order", "deadline", "stop_loss", "take_profit"]

Share = Annotated[Decimal, Field(gt=0, le=1)]
"""A part of the volume of one bar."""


class Order(EventBody, frozen=True):
    """What the exchange shall do, and until when; made by code from an intent and a fill strategy.

    Only bars that open at or after `active_from` may fill it: that is where a decision cannot reach the
    bar it was made on. A limit or post-only order has either `limit_price` or `peg_bps`; a pegged one gets
    its price once, when it becomes active, that many basis points to the passive side of the last close.
    At `expires_at` what is left is cancelled, or from then on taken at the market (`on_expiry="cross"`).
    From `void_from` on nothing of it is filled, crossing or not: there the intent of an entry ends. None is for
    an exit, which goes on. `ioc` ends with the first bar that could fill it; `day` says why `expires_at` may be a
    midnight.
    `max_participation` is the share of a bar's volume that the order may take. `reduce_only` never opens
    or turns a position. `stop_loss` and `take_profit` guard what was filled, from its fill on; what could only be
    filled at or beyond one of them is cancelled.
    """

    KIND = "order.submitted"

    order_id: str
    intent_id: str
    symbol: str
    side: Open[Side]
    quantity: Quantity
    order_type: Open[OrderType]
    limit_price: Price | None = None
    peg_bps: Decimal | None = None
    time_in_force: Open[TimeInForce] = "gtc"
    active_from: AwareDatetime
    expires_at: AwareDatetime
    on_expiry: Open[Literal["cross", "cancel"]] = (
        "cancel"  # in the order of `FillTerms`: typing keeps one of equal Literals
    )
    void_from: AwareDatetime | None = None
    max_participation: Share = Decimal("0.25")
    reduce_only: bool = False
    stop_loss: Price | None = None
    take_profit: Price | None = None
    trace_id: str = ""
    causation_id: str = ""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        priced = (self.limit_price is not None) + (self.peg_bps is not None)
        if priced != (self.order_type != "market") and not is_unknown(self.order_type):
            raise ValueError(
                "a market order has no price; a limit or post_only order has limit_price or peg_bps"
            )
        if self.expires_at <= self.active_from:
            raise ValueError(f"expires_at {self.expires_at} must be after active_from {self.active_from}")
        return self


class Fill(EventBody, frozen=True):
    """A part of an order that was traded; money and quantities are exact.

    `order_id` is the order as submitted, also where its stop or target was what traded: `cause` says which,
    and `side` is then the opposite one. `fee` is in `fee_currency` and never negative. `time` is when the
    fill is known: the close of the bar that opened at `bar_open_time`.
    """

    KIND = "order.filled"

    fill_id: str
    intent_id: str
    order_id: str
    symbol: str
    side: Open[Side]
    price: Price
    quantity: Quantity
    fee: Annotated[Decimal, Field(ge=0)]
    fee_currency: str
    liquidity: Open[Liquidity]
    cause: Open[FillCause]
    time: AwareDatetime
    bar_open_time: AwareDatetime
    trace_id: str = ""

    @property
    def notional(self) -> Decimal:
        """Price times quantity."""
        return EXACT.multiply(self.price, self.quantity)

    @property
    def cash_change(self) -> Decimal:
        """What the fill does to cash, its fee included: negative for a purchase."""
        return EXACT.subtract(EXACT.multiply(-self.side.sign, self.notional), self.fee)


class CancelReason(StrEnum):
    """Why the rest of an order will not be filled."""

    REQUESTED = "requested"
    DEADLINE = "deadline"
    INTENT_EXPIRED = "intent_expired"
    PLAN_PASSED = "plan_passed"
    IMMEDIATE_OR_CANCEL = "immediate_or_cancel"
    WOULD_TAKE = "would_take"
    NO_FUNDS = "no_funds"
    SHORT_NOT_ALLOWED = "short_not_allowed"
    NOTHING_TO_REDUCE = "nothing_to_reduce"
    EXITED = "exited"


class Cancellation(EventBody, frozen=True):
    """The end of an order that was not filled whole: `quantity` is what is left of it."""

    KIND = "order.canceled"

    order_id: str
    intent_id: str
    symbol: str
    quantity: Quantity
    reason: Open[CancelReason]
    time: AwareDatetime
    trace_id: str = ""


ExecutionReport = Fill | Cancellation


class Position(BaseModel, frozen=True):
    """What is held of one symbol: `quantity` is negative for a short.

    `average_price` is that of the open quantity, rounded to 12 decimals: for reading, while money is
    counted in cash.
    """

    symbol: str
    quantity: Decimal
    average_price: Decimal


class Account(BaseModel, frozen=True):
    """Cash after all fills and fees, and the open positions in order of symbol."""

    currency: str
    cash: Decimal
    positions: tuple[Position, ...] = ()

    def quantity(self, symbol: str) -> Decimal:
        """Return the signed quantity held; 0 where there is none."""
        return next((held.quantity for held in self.positions if held.symbol == symbol), ZERO)

    def equity(self, marks: Mapping[str, Decimal]) -> Decimal:
        """Return cash plus all positions at their mark; raises `KeyError` for a position without one."""
        worth = self.cash
        for held in self.positions:
            worth = EXACT.fma(held.quantity, marks[held.symbol], worth)
        return worth


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order that can still trade: `left` is unfilled, `guarded` is filled and watched by its stop or target."""

    order: Order
    left: Decimal
    guarded: Decimal


class OrderRefusedError(TradingError):
    """The exchange does not take an order or a bar; nothing has changed."""

    def __init__(self, rule: str, was: object, allowed: str) -> None:
        self.rule = rule
        self.was = was
        self.allowed = allowed
        super().__init__(f"{rule} is {was}; allowed: {allowed}")


class Exchange(Protocol):
    """Orders in; fills and cancellations out; cash and positions conserved.

    A closed bar is the only source of fills, and an order is filled only by bars that open at or after its
    `active_from`. A limit order is filled at its limit or better, and only by a bar that traded beyond the
    limit: to touch it is not enough. The fills of an order never pass its quantity, and those of its stop and
    target never what was filled. After every call cash is the starting cash plus the `cash_change` of all
    fills, and a position is the signed sum of their quantities, to the last digit. Where no bar comes,
    nothing is filled and orders live on. The same orders and bars, in the same order, give the same reports.
    """

    async def submit(self, order: Order) -> None:
        """Take an order; the same order twice is harmless.

        Raises `OrderRefusedError` for an unknown symbol, a price or quantity off the grid, an id that another order
        has, and any other reason of a venue. The session records it as `order.denied` and continues.
        """
        ...

    async def cancel(self, order_id: str) -> Cancellation | None:
        """Take back what is left of an order; None if nothing is. What was filled stays guarded."""
        ...

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        """Let a closed bar fill orders and deadlines pass; return what happened, in order.

        Bars of a symbol come in order of time. Raises `OrderRefusedError` for an unknown symbol and for a
        bar that opens before the one before it closed.
        """
        ...

    async def account(self) -> Account:
        """Return cash and positions as of the last bar."""
        ...

    async def open_orders(self) -> tuple[OpenOrder, ...]:
        """Return the orders that can still trade, in order of submission."""
        ...
