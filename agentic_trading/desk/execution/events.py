"""What becomes of an assessment on record, beside intents, orders, fills and cancellations, which are bodies themselves."""

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
    """No intent came of a verdict, as a position of its side is open already."""

    KIND = "intent.skipped"

    symbol: str
    reason: Open[Literal["position_open"]]
    position: Decimal


class IntentDenied(Rejection, EventBody, frozen=True):
    """Our own limits stopped an intent before it was one."""

    KIND = "intent.denied"

    symbol: str


class IntentUndecided(NoDecision, EventBody, frozen=True):
    """It was not decided how an intent shall be filled: no order came of it."""

    KIND = "intent.undecided"

    symbol: str
    request_hash: str


class StrategyChosen(FillStrategy, EventBody, frozen=True, extra="ignore"):
    """How an intent shall be filled."""

    KIND = "intent.strategy_chosen"

    symbol: str
    request_hash: str


class OrderDenied(Rejection, EventBody, frozen=True):
    """Our own limits stopped the orders of a strategy, or the exchange refused one of them.

    `order_id` names the order that the exchange refused. It is empty if our own limits stopped the orders: none was sent.
    """

    KIND = "order.denied"

    symbol: str
    order_id: str = Field(default="", exclude_if=operator.not_)
