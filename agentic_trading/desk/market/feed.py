"""The interface of bar feeds, and the check of the order of bars."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from pydantic import BaseModel

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.calendar import Calendar, missing_between
from agentic_trading.desk.market.errors import BarSequenceError


@dataclass(frozen=True, slots=True)
class BarGrid:
    """The length of a market's bars, and the bars that can be missing. Without a calendar it never closes."""

    timeframe: Timeframe
    calendar: Calendar | None = None


class Gap(BaseModel, frozen=True):
    """Bars that the source does not have. The note comes before the first bar after the gap.

    Attributes:
        after: The close of the last bar before the gap.
        before: The open of the first bar after the gap.
        missing: The number of bars that fit between them, at least 1.

    """

    kind: Literal["gap"] = "gap"
    symbol: str
    timeframe: Timeframe
    after: datetime
    before: datetime
    missing: int


class Duplicate(BaseModel, frozen=True):
    """A bar that the source has twice with equal values. The second one is left out."""

    kind: Literal["duplicate"] = "duplicate"
    symbol: str
    timeframe: Timeframe
    open_time: datetime


class UnreadColumns(BaseModel, frozen=True):
    """Columns of the source with unknown names. They are ignored."""

    kind: Literal["unread_columns"] = "unread_columns"
    symbol: str
    columns: tuple[str, ...]


class UnclosedBar(BaseModel, frozen=True):
    """A row of a bar whose window had not ended when the row was read. The row is left out."""

    kind: Literal["unclosed"] = "unclosed"
    symbol: str
    timeframe: Timeframe
    open_time: datetime


class LateBar(BaseModel, frozen=True):
    """A bar of a live source that came after the time slice of its close. The bar is left out."""

    kind: Literal["late"] = "late"
    symbol: str
    timeframe: Timeframe
    open_time: datetime


Note = Gap | Duplicate | UnreadColumns | UnclosedBar | LateBar
FeedItem = Bar | Note


class BarFeed(Protocol):
    """Closed bars of one symbol and timeframe in order of time, with notes between them. Iterate it once.

    Every bar of the source is yielded once, unchanged, in order of close time. No bar is invented, and no bar
    is left out without a note:

    - Missing bars give one `Gap` directly before the next bar.
    - A repeated equal bar gives a `Duplicate` in its place.
    - Unknown columns give an `UnreadColumns` before the first bar that has them.
    - A source of several symbols gives one feed per symbol. It skips the bars of other symbols.
    - With a clock, a bar is yielded after its window has ended by that clock. An earlier row of the bar gives
      an `UnclosedBar` in its place, and a later row with the same open time is read as a new bar.

    All items before an error are yielded first.

    Raises:
        BarSequenceError: If a repeated bar has other values, or a bar is earlier than the bar before it.
        BarFormatError: If a text is not a bar. A bar of another timeframe, or of another symbol in a source of
            one symbol, raises one of the two errors.

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
    """Checks the order of a source's bars, and finds gaps and duplicates.

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
        """Return the bar with the gap before it, or a note in its place. `line` counts from 1.

        Raises:
            BarSequenceError: If the bar has another symbol or timeframe, is earlier than the bar before, or
                repeats it with other values.

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
        missing = missing_between(last, bar, self._calendar)
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

    def _gap(self, last: Bar, bar: Bar, missing: int) -> Gap:
        return Gap(
            symbol=self._symbol,
            timeframe=self._timeframe,
            after=last.close_time,
            before=bar.open_time,
            missing=missing,
        )
