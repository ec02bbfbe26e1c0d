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
from agentic_trading.trading_limits import DailyResume, LossRule


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


class RiskTripped(EventBody, frozen=True):
    """A limit on the loss of the account was reached. From now on only exits are allowed.

    Attributes:
        rule: The limit.
        percent: The limit in percent of `base`.
        base: The equity that the loss is measured from.
        floor: The equity at which the limit is reached.
        equity: The equity at this close.
        day: The day of a daily limit, in the time zone `zone`. Empty for other limits.
        zone: The time zone. Empty for other limits.
        resume: Who allows entries again: an operator, or the next day.

    """

    KIND = "risk.tripped"

    rule: Open[LossRule]
    percent: Decimal
    base: Decimal
    floor: Decimal
    equity: Decimal
    day: str = ""
    zone: str = ""
    resume: Open[DailyResume] = "operator"


class RiskResumed(EventBody, frozen=True):
    """Entries are allowed again, after a limit on the loss of the account or after errors of the agent.

    Attributes:
        rules: The rules that halted entries until now.
        equity: The equity at this close. It is the new base of all limits, unless the next day has resumed.
        by: The operator. Empty for the next day.
        why: The reason of the operator.
        command_id: The event of the operator's command. Empty for the next day.

    """

    KIND = "risk.resumed"

    rules: tuple[str, ...]
    equity: Decimal
    by: str = ""
    why: str = ""
    command_id: str = ""
