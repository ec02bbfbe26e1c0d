"""The port through which bars come in."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarSequenceError

Calendar = Sequence[datetime]
"""When the bars of a market open that is not always open, in order: what no bar can be missing from."""


@dataclass(frozen=True, slots=True)
class BarGrid:
    """How long the bars of a market are, and when they open; without a calendar it never closes."""

    timeframe: Timeframe
    calendar: Calendar | None = None


class Gap(BaseModel, frozen=True):
    """Bars that the source does not have, noted before the bar that shows their absence.

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


class UnreadColumns(BaseModel, frozen=True):
    """Columns of the source with names that no bar has; they are ignored."""

    kind: Literal["unread_columns"] = "unread_columns"
    symbol: str
    columns: tuple[str, ...]


class UnclosedBar(BaseModel, frozen=True):
    """A row of a bar whose window had not ended when it was read; it is left out."""

    kind: Literal["unclosed"] = "unclosed"
    symbol: str
    timeframe: Timeframe
    open_time: datetime


Note = Gap | Duplicate | UnreadColumns | UnclosedBar
FeedItem = Bar | Note


class BarFeed(Protocol):
    """Closed bars of one symbol and timeframe, each later than the one before, and notes between them.

    Promise: every bar of the source comes out once, unchanged and in order of close time; nothing is
    invented, and nothing is left out without a note. A hole gives one `Gap` right before the next bar, a
    repeated equal bar one `Duplicate` in its place, columns that are not read one `UnreadColumns` before the bars. With a
    clock, a bar is given when its window has ended by it: a row before that gives an `UnclosedBar` in its place, and a
    later row with the same open time is read as new. A repeated bar with other values and a bar that is
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


class Continuity:
    """Remember the last bar of a source; turn the next one into what the feed gives for it.

    Without a `calendar` the market never closes.
    """

    def __init__(
        self, source: str, symbol: str, timeframe: Timeframe, calendar: Calendar | None = None
    ) -> None:
        self._source = source
        self._symbol = symbol
        self._timeframe = timeframe
        self._calendar = calendar
        self._last: Bar | None = None

    def admit(self, line: int, bar: Bar) -> tuple[FeedItem, ...]:
        """Return the bar with the gap before it, or a note in its place; `line` counts from 1.

        Raises `BarSequenceError` for a bar of another symbol or timeframe, an earlier bar, and a repeated
        bar with other values.
        """
        self._check_identity(line, bar)
        last = self._last
        if last is None or bar.open_time == last.close_time:
            self._last = bar
            return (bar,)
        if bar.open_time == last.open_time:
            return (self._duplicate(line, last, bar),)
        if bar.open_time < last.open_time:
            raise BarSequenceError(
                self._source,
                line,
                "open_time",
                bar.open_time.isoformat(),
                f"{last.close_time.isoformat()} or later",
            )
        self._last = bar
        missing = self._missing(last, bar)
        return (self._gap(last, bar, missing), bar) if missing else (bar,)

    def _check_identity(self, line: int, bar: Bar) -> None:
        if bar.symbol != self._symbol:
            raise BarSequenceError(self._source, line, "symbol", bar.symbol, self._symbol)
        if bar.timeframe is not self._timeframe:
            raise BarSequenceError(self._source, line, "timeframe", bar.timeframe, self._timeframe)

    def _duplicate(self, line: int, first: Bar, second: Bar) -> Duplicate:
        for field in Bar.model_fields:
            before, now = getattr(first, field), getattr(second, field)
            if before != now:
                allowed = f"{before}, as in the bar that already opened at {first.open_time.isoformat()}"
                raise BarSequenceError(self._source, line, field, now, allowed)
        return Duplicate(symbol=self._symbol, timeframe=self._timeframe, open_time=first.open_time)

    def _missing(self, last: Bar, bar: Bar) -> int:
        """Return how many bars could have opened between two."""
        if self._calendar is None:
            return (bar.open_time - last.close_time) // self._timeframe.length
        return bisect_left(self._calendar, bar.open_time) - bisect_left(self._calendar, last.close_time)

    def _gap(self, last: Bar, bar: Bar, missing: int) -> Gap:
        return Gap(
            symbol=self._symbol,
            timeframe=self._timeframe,
            after=last.close_time,
            before=bar.open_time,
            missing=missing,
        )
