"""Live feeds as one sequence of time slices that does not wait for a silent feed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from agentic_trading.clock import Clock
from agentic_trading.desk.market.bar import EPOCH, Bar
from agentic_trading.desk.market.calendar import Calendar
from agentic_trading.desk.market.feed import BarFeed, Continuity, FeedItem, Gap, LateBar, Note
from agentic_trading.desk.time_slices import TimeSlice, close_items


@dataclass(frozen=True, slots=True)
class GracePeriod:
    """The time for which a time slice waits for the bars of live feeds.

    Attributes:
        clock: The clock of the machine.
        length: The grace period. It begins at the close of the time slice. For older bars, it begins when the
            feed is asked for its next bar.
        streams: The symbols of the live feeds. All other feeds are waited for.
        kept: The number of bars at the start of each feed that an earlier run used. They are waited for.
        kept_until: The close of the last time slice of the earlier run. Other bars up to then are late.
        calendar: The open times of the market, which decide what bars are missing. None if it never closes.

    """

    clock: Clock
    length: timedelta
    streams: Collection[str]
    kept: Mapping[str, int] = field(default_factory=dict)
    kept_until: datetime = EPOCH
    calendar: Calendar | None = None


async def merge_live(
    feeds: Sequence[BarFeed], grace: GracePeriod, *, most_bars: int | None = None
) -> AsyncGenerator[TimeSlice]:
    """Yield the time slices of `feeds` in order, each at the latest after its grace period.

    A bar that comes after the time slice of its close gives a `LateBar`. `merge_feeds` makes the same time
    slices of the bars in them. Errors of a feed are raised.
    """
    end: Exception | GeneratorExit | None = None
    # The tasks return errors instead of raising them, because a group would cancel the caller of this
    # generator in the middle of a time slice. The end is raised after the group, because a group wraps it.
    async with asyncio.TaskGroup() as group:
        ordered = sorted(feeds, key=lambda feed: feed.symbol)
        readers = [_LiveReader(feed, grace, most_bars, group) for feed in ordered]
        try:
            async with aclosing(_merge(readers, grace.clock, group)) as slices:
                async for time_slice in slices:
                    yield time_slice
        except (Exception, GeneratorExit) as error:  # noqa: BLE001 - raised below
            end = error
        for reader in readers:
            reader.end()
    if end is not None:
        raise end


async def _merge(
    readers: Sequence["_LiveReader"], clock: Clock, group: asyncio.TaskGroup
) -> AsyncGenerator[TimeSlice]:
    at: datetime | None = None
    for reader in readers:
        reader.ask()
    while any(reader.head or reader.reading for reader in readers):
        for reader in readers:
            reader.take(at)
        heads = [reader.head for reader in readers if reader.head is not None]
        closes = min((bar.close_time for bar in heads), default=None)
        if waits := _waits(readers, closes, clock.now()):
            await _wait(readers, clock, min(waits), group)
            continue
        if closes is None:
            continue
        at = closes
        due = [reader for reader in readers if reader.head is None or reader.head.close_time == at]
        yield TimeSlice(at, tuple(bar for bar in heads if bar.close_time == at), _notes_of(due))
        for reader in due:
            reader.ask()
    notes = _notes_of(readers)
    if at is not None and notes:
        yield TimeSlice(at, (), notes)


_NO_LIMIT = timedelta.max


class _LiveReader:
    """One feed, read one bar ahead by a task."""

    def __init__(
        self, feed: BarFeed, grace: GracePeriod, most_bars: int | None, group: asyncio.TaskGroup
    ) -> None:
        self._items: AsyncIterator[FeedItem] = aiter(feed)
        self._symbol = feed.symbol
        self._grace = grace
        self._group = group
        self._left = most_bars
        self._kept = grace.kept.get(feed.symbol, 0)
        # The gaps of the source are replaced, because late bars are missing too, and a replay finds their gaps.
        self._continuity = Continuity("live", feed.symbol, feed.timeframe, grace.calendar)
        self._fed = 0
        self._has_ended = False
        self._asked_at = EPOCH
        self.reading: asyncio.Task[Bar | Exception | None] | None = None
        self.head: Bar | None = None
        self.notes: list[Note] = []

    def ask(self) -> None:
        """Begin to read the next bar, unless this has begun."""
        self.head = None
        if self.reading is None and not self._has_ended:
            self._asked_at = self._grace.clock.now()
            self.reading = self._group.create_task(self._next(), name=f"feed-{self._symbol}")

    def end(self) -> None:
        """Stop reading."""
        if self.reading is not None:
            self.reading.cancel()

    def take(self, at: datetime | None) -> None:
        """Take a bar that has come as the head. `at` is the close of the last time slice."""
        if self.reading is None or not self.reading.done():
            return
        bar = self.reading.result()
        self.reading = None
        if isinstance(bar, Exception):
            raise bar
        if bar is None:
            self._has_ended = True
        elif self._is_late(bar, at):
            self.notes.append(LateBar(symbol=bar.symbol, timeframe=bar.timeframe, open_time=bar.open_time))
            self.ask()
        else:
            self._feed(bar)

    def wait(self, closes: datetime, now: datetime) -> timedelta:
        """Return how long the time slice that `closes` then still waits for this feed. Zero or less: no longer."""
        if self._kept > 0 or self._symbol not in self._grace.streams:
            return _NO_LIMIT
        if closes <= self._grace.kept_until:
            return timedelta()
        return max(closes, self._asked_at) + self._grace.length - now

    def _is_late(self, bar: Bar, at: datetime | None) -> bool:
        if self._kept > 0 or self._symbol not in self._grace.streams:
            return False
        return bar.close_time <= max(at or EPOCH, self._grace.kept_until)

    def _feed(self, bar: Bar) -> None:
        self._kept = max(0, self._kept - 1)
        self._left = None if self._left is None else self._left - 1
        self._fed += 1
        self.head = bar
        self.notes.extend(
            item for item in self._continuity.admit(self._fed, bar) if not isinstance(item, Bar)
        )

    async def _next(self) -> Bar | Exception | None:
        try:
            if self._left == 0:
                await close_items(self._items)
                return None
            async for item in self._items:
                if isinstance(item, Bar):
                    return item
                if not isinstance(item, Gap):
                    self.notes.append(item)
        except Exception as error:  # noqa: BLE001 - raised by `take`
            return error
        return None


def _waits(readers: Sequence[_LiveReader], closes: datetime | None, now: datetime) -> list[timedelta]:
    """Return how long the next time slice waits for each feed that has not given its next bar."""
    reading = [reader for reader in readers if reader.reading is not None]
    if closes is None:
        return [_NO_LIMIT for _ in reading]
    waits = [reader.wait(closes, now) for reader in reading]
    return [left for left in waits if left > timedelta()]


async def _wait(
    readers: Sequence[_LiveReader], clock: Clock, most: timedelta, group: asyncio.TaskGroup
) -> None:
    """Wait until a feed gives its next bar or ends, at most for `most`."""
    ends: set[asyncio.Task[Any]] = {reader.reading for reader in readers if reader.reading is not None}
    if most == _NO_LIMIT:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return
    timer = group.create_task(clock.sleep(most.total_seconds()), name="grace-period")
    try:
        await asyncio.wait({*ends, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()


def _notes_of(readers: Sequence[_LiveReader]) -> tuple[Note, ...]:
    notes = tuple(note for reader in readers for note in reader.notes)
    for reader in readers:
        reader.notes.clear()
    return notes
