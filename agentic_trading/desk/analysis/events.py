"""Events of an analyst: why it asked or not, and missing decisions."""

from decimal import Decimal

from pydantic import AwareDatetime, BaseModel

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.triggers import SkipReason, TriggerKind
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open


class TriggerBar(BaseModel, frozen=True):
    """A closed bar. Fields that its source does not provide are None.

    Attributes:
        parts: The number of shorter bars that it was made from.
        expected: The number of shorter bars without a hole.

    """

    symbol: str
    timeframe: Open[Timeframe]
    open_time: AwareDatetime
    close_time: AwareDatetime
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    volume: Decimal
    quote_volume: Decimal | None
    trades: int | None
    taker_buy_volume: Decimal | None
    parts: int
    expected: int


class Triggered(EventBody, frozen=True):
    """A trigger on `bar` that led to a question.

    The explanation of an order ends with this event.
    """

    KIND = "analysis.triggered"

    symbol: str
    step: str
    kind: Open[TriggerKind]
    detail: str
    bar: TriggerBar
    last_close: Decimal


class Skipped(EventBody, frozen=True):
    """A close of the decision timeframe without a question."""

    KIND = "analysis.skipped"

    symbol: str
    step: str
    reason: Open[SkipReason]
    detail: str


class Undecided(NoDecision, EventBody, frozen=True):
    """An analysis without a decision."""

    KIND = "analysis.undecided"

    symbol: str
    step: str
    request_hash: str
