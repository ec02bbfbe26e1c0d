"""The port through which bars come in."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, Protocol

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Bar, Timeframe


class Gap(BaseModel, frozen=True):
    """Bars that the source does not have, told before the bar that shows their absence.

    `after` is the close of the last bar before the gap, `before` the open of the first bar after it,
    `missing` how many bars would fit between them (at least 1).
    """

    kind: Literal["gap"] = "gap"
    symbol: str
    timeframe: Timeframe
    after: datetime
    before: datetime
    missing: int


class Duplicate(BaseModel, frozen=True):
    """A bar that the source gave twice with equal values; the second one is left out."""

    kind: Literal["duplicate"] = "duplicate"
    symbol: str
    timeframe: Timeframe
    open_time: datetime


FeedItem = Bar | Gap | Duplicate


class BarFeed(Protocol):
    """Closed bars of one symbol and timeframe, each later than the one before, and notes beside them.

    Promise: every bar of the source comes out once, unchanged and in order of close time; nothing is
    invented, and nothing is left out without a note. A hole gives one `Gap` right before the next bar, a
    repeated equal bar one `Duplicate` in its place. A repeated bar with other values and a bar that is
    earlier than its predecessor raise `BarSequenceError`; text that is no bar raises `BarFormatError`; a bar
    of another symbol or timeframe raises one of the two. What came before has been given. Iterate once.
    """

    @property
    def symbol(self) -> str:
        """The symbol of every bar."""
        ...

    @property
    def timeframe(self) -> Timeframe:
        """The timeframe of every bar."""
        ...

    def __aiter__(self) -> AsyncIterator[FeedItem]: ...
