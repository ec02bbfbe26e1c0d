"""The exchange port: orders, fills, cancellations and the account."""

from collections.abc import Mapping, Sequence
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
"""A share of the volume of one bar, above 0 and at most 1."""


class Order(EventBody, frozen=True):
    """An order for the exchange, made by code from an intent and a fill strategy.

    Only bars that open at or after `active_from` can fill it, so that no order is filled by the bar that it
    was decided on.

    Attributes:
        limit_price: The limit. A limit or post-only order has either `limit_price` or `peg_bps`.
        peg_bps: The distance of the limit from the last close, in basis points to the passive side. The price
            is set once, when the order becomes active.
        time_in_force: `ioc` ends with the first bar that could fill the order. `day` only explains why
            `expires_at` may be a midnight.
        expires_at: From then on the unfilled rest is cancelled, or taken at the market if `on_expiry` is
            `cross`.
        void_from: The end of an entry's intent. From then on the order is not filled, even if it crosses.
            None for an exit, which stays open.
        max_participation: The share of a bar's volume that the order may take.
        reduce_only: The order never opens or reverses a position.
        stop_loss: Guards the filled quantity from its fill on. A quantity that could only be filled at or
            beyond the stop is cancelled.
        take_profit: Guards the filled quantity in the same way.

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
                "a market order has no price. A limit or post_only order has either limit_price or peg_bps."
            )
        if self.expires_at <= self.active_from:
            raise ValueError(f"expires_at {self.expires_at} must be after active_from {self.active_from}")
        return self


class Fill(EventBody, frozen=True):
    """A filled part of an order. Money and quantities are exact.

    Attributes:
        order_id: The submitted order, also if its stop or target traded.
        side: The side of the trade. A stop or target trades opposite to its order.
        fee: The fee in `fee_currency`, never negative.
        cause: The reason for the trade: the order, its deadline, its stop or its target.
        time: The time at which the fill is known: the close of the bar that opened at `bar_open_time`.

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
        """The price times the quantity."""
        return EXACT.multiply(self.price, self.quantity)

    @property
    def cash_change(self) -> Decimal:
        """The change of the account's cash, fee included. Negative for a purchase."""
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
    """The end of an order that was not filled completely.

    `quantity` is the unfilled rest.
    """

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
    """The position in one symbol. The `quantity` of a short is negative.

    `average_price` is the average entry price of the open quantity, rounded to 12 decimals. It is for
    display, because money is counted in cash.
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
        """Return the signed quantity of a symbol, 0 without a position."""
        return next((held.quantity for held in self.positions if held.symbol == symbol), ZERO)

    def equity(self, marks: Mapping[str, Decimal]) -> Decimal:
        """Return cash plus the value of all positions at their marks.

        Raises:
            KeyError: If a position has no mark.

        """
        worth = self.cash
        for held in self.positions:
            worth = EXACT.fma(held.quantity, marks[held.symbol], worth)
        return worth


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order that can still trade.

    Attributes:
        left: The unfilled quantity.
        guarded: The filled quantity that the order's stop or target watches.

    """

    order: Order
    left: Decimal
    guarded: Decimal


class OrderRefusedError(TradingError):
    """The exchange refused an order or a bar. Its state is unchanged."""

    def __init__(self, rule: str, was: object, allowed: str) -> None:
        self.rule = rule
        self.was = was
        self.allowed = allowed
        super().__init__(f"{rule} is {was}. Allowed: {allowed}")


class Exchange(Protocol):
    """An exchange: it takes orders and bars, and returns fills and cancellations.

    Closed bars are the only source of fills, and an order is filled only by bars that open at or after its
    `active_from`. A limit order is filled at its limit or better, and only by a bar that traded beyond the
    limit: touching it is not enough. The fills of an order never exceed its quantity, and those of its stop
    and target never exceed the filled quantity. After every call, cash is the starting cash plus the
    `cash_change` of all fills, and a position is the signed sum of their quantities, to the last digit.
    Without a bar, orders stay open and unfilled. The same orders and bars in the same order give the same
    reports.
    """

    async def submit(self, order: Order) -> None:
        """Submit an order. Submitting the same order twice is harmless.

        Raises:
            OrderRefusedError: If the symbol is unknown, a price or quantity is off the grid, another order
                has the id, or the venue has another reason. The session records it as `order.denied` and
                continues.

        """
        ...

    async def cancel(self, order_id: str) -> Cancellation | None:
        """Cancel the unfilled rest of an order. The filled part stays guarded.

        Returns:
            The cancellation, or None if the order has no unfilled rest.

        """
        ...

    async def on_bar(self, bar: Bar) -> list[ExecutionReport]:
        """Process a closed bar: fill orders and apply deadlines.

        Args:
            bar: The next bar of its symbol. The bars of a symbol come in order of time.

        Returns:
            Fills and cancellations, in the order in which they happened.

        Raises:
            OrderRefusedError: If the symbol is unknown, or the bar opens before the previous bar of the
                symbol closed.

        """
        ...

    async def account(self) -> Account:
        """Return cash and positions as of the last bar."""
        ...

    async def open_orders(self) -> tuple[OpenOrder, ...]:
        """Return the orders that can still trade, in order of submission."""
        ...


async def exits_first(exchange: Exchange, bars: Sequence[Bar]) -> Sequence[Bar]:
    """Return the bars of one moment in the order in which they fill orders.

    Symbols with an open exit order come first. Otherwise this is the order of `bars`.
    """
    exits = {entry.order.symbol for entry in await exchange.open_orders() if entry.order.reduce_only}
    # Exits come first, because their sales pay for the purchases of other symbols at the same open.
    return sorted(bars, key=lambda bar: bar.symbol not in exits)
