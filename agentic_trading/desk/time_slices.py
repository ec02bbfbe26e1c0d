"""Several feeds as one sequence of time slices, grouped by closing time."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from agentic_trading.desk.market.bar import Bar, Resampler, Timeframe
from agentic_trading.desk.market.correlation import CLOSES_KEPT, Close, ReferenceMarket
from agentic_trading.desk.market.feed import BarFeed, FeedItem, Note
from agentic_trading.desk.market.snapshot import BASE


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The bars that close at `at`, in order of symbol, and the feed notes before them.

    Notes after the last bar of all feeds come in a final time slice without bars, at the same time.
    """

    at: datetime
    bars: tuple[Bar, ...]
    notes: tuple[Note, ...]


async def merge_feeds(feeds: Sequence[BarFeed], *, most_bars: int | None = None) -> AsyncGenerator[TimeSlice]:
    """Yield the time slices of `feeds` in order.

    Only the first `most_bars` bars of each feed are used. A time slice is yielded as soon as every feed has
    yielded its next bar or has ended. Errors of a feed are raised.
    """
    readers = [_Reader(feed, most_bars) for feed in sorted(feeds, key=lambda feed: feed.symbol)]
    for reader in readers:
        await reader.advance()
    at: datetime | None = None
    while heads := [reader.head for reader in readers if reader.head is not None]:
        at = min(bar.close_time for bar in heads)
        due = [reader for reader in readers if reader.head is None or reader.head.close_time == at]
        yield TimeSlice(at, tuple(bar for bar in heads if bar.close_time == at), _notes_of(due))
        for reader in due:
            await reader.advance()
    notes = _notes_of(readers)
    if at is not None and notes:
        yield TimeSlice(at, (), notes)


async def close_items(items: AsyncIterator[FeedItem]) -> None:
    """End the iteration of a feed before its end, if its iterator has `aclose`."""
    # A plain iterator has no way to end, and so keeps nothing that has to be freed.
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


class _Reader:
    """One feed, read one bar ahead."""

    def __init__(self, feed: BarFeed, most_bars: int | None) -> None:
        self._items: AsyncIterator[FeedItem] = aiter(feed)
        self._left = most_bars
        self.head: Bar | None = None
        self.notes: list[Note] = []

    async def advance(self) -> None:
        """Move to the next bar, or to the end. Harmless at the end."""
        self.head = None
        if self._left == 0:
            await close_items(self._items)
            return
        async for item in self._items:
            if isinstance(item, Bar):
                self.head = item
                break
            self.notes.append(item)
        if self._left is not None:
            self._left -= 1


def _notes_of(readers: Sequence[_Reader]) -> tuple[Note, ...]:
    """Return the notes that no time slice has contained yet."""
    notes = tuple(note for reader in readers for note in reader.notes)
    for reader in readers:
        reader.notes.clear()
    return notes


class ReferenceMarketFeed:
    """The reference market of a recorded market, never ahead of it.

    The reference market ends with the first bar that differs from `own`, because its own bars would have been
    different too.

    Args:
        own: The recorded bars of the first market, in order of time.
        other: The bars of the reference market over the same period, in order of time.
        decision: The timeframe of decisions.

    Attributes:
        seen_until: The close of the last equal bar, None before the first.

    """

    def __init__(self, own: Sequence[Bar], other: Sequence[Bar], *, decision: Timeframe) -> None:
        self._own = {bar.open_time: bar for bar in own}
        self._ahead = deque(other)
        self.symbol = other[0].symbol
        self.seen_until: datetime | None = None
        self._resampler = Resampler(BASE, decision)
        self._closes: deque[Close] = deque(maxlen=CLOSES_KEPT)
        self._differs = False

    def push(self, bar: Bar) -> None:
        """Add the next bar of the first market.

        The reference market moves to the same close.
        """
        if self._differs or self._own.get(bar.open_time) != bar:
            self._differs = True
            return
        self.seen_until = bar.close_time
        while self._ahead and self._ahead[0].close_time <= bar.close_time:
            for closed in self._resampler.push(self._ahead.popleft()):
                self._closes.append(Close(closed.bar.close_time, float(closed.bar.close)))

    def reference_market(self, as_of: datetime) -> ReferenceMarket | None:
        """Return the reference market as of a moment.

        None after a bar of the first market has differed.
        """
        if self._differs:
            return None
        return ReferenceMarket(self.symbol, tuple(self._closes)).until(as_of)
