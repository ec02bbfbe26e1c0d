"""Events between an assessment and its orders: skipped, denied, undecided, chosen."""

import operator
from decimal import Decimal
from typing import Literal

from pydantic import Field

from agentic_trading.desk.execution.risk import Rejection
from agentic_trading.desk.execution.strategy import FillStrategy
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open


class IntentSkipped(EventBody, frozen=True):
    """A verdict gave no intent, because a position on its side is already open."""

    KIND = "intent.skipped"

    symbol: str
    reason: Open[Literal["position_open"]]
    position: Decimal


class IntentDenied(Rejection, EventBody, frozen=True):
    """Our own limits denied an intent before it was approved."""

    KIND = "intent.denied"

    symbol: str


class IntentUndecided(NoDecision, EventBody, frozen=True):
    """It was not decided how to fill an intent. It gets no order."""

    KIND = "intent.undecided"

    symbol: str
    request_hash: str


class StrategyChosen(FillStrategy, EventBody, frozen=True, extra="ignore"):
    """The chosen fill strategy of an intent."""

    KIND = "intent.strategy_chosen"

    symbol: str
    request_hash: str


class OrderDenied(Rejection, EventBody, frozen=True):
    """Our limits denied the orders of a strategy, or the exchange refused an order.

    `order_id` is the refused order. It is empty if our own limits denied the orders, because no order was
    sent.
    """

    KIND = "order.denied"

    symbol: str
    order_id: str = Field(default="", exclude_if=operator.not_)
