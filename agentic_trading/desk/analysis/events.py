"""What an analyst puts on record: why it asked or did not, what it decided (`Assessment`), or why it did not decide."""

from decimal import Decimal

from pydantic import AwareDatetime, BaseModel

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.triggers import SkipReason, TriggerKind
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open


class TriggerBar(BaseModel, frozen=True):
    """A bar as it had closed: `parts` of the bars that it is made of were there, `expected` would have been without a hole.

    What its source did not give is None.
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
    """Something happened on `bar` that makes a question worth its price: it is where the question `why this order` ends."""

    KIND = "analysis.triggered"

    symbol: str
    step: str
    kind: Open[TriggerKind]
    detail: str
    bar: TriggerBar
    last_close: Decimal


class Skipped(EventBody, frozen=True):
    """Nothing was asked at a close of the decision timeframe."""

    KIND = "analysis.skipped"

    symbol: str
    step: str
    reason: Open[SkipReason]
    detail: str


class Undecided(NoDecision, EventBody, frozen=True):
    """An analysis gave no decision."""

    KIND = "analysis.undecided"

    symbol: str
    step: str
    request_hash: str
