"""Several feeds as one sequence of time slices: everything that closes at the same time comes at once."""

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
    """The bars that close at `at`, in order of symbol, and what was noted of the feeds before them.

    Notes behind the last bar of all come in a last time slice at the same time, which has no bars.
    """

    at: datetime
    bars: tuple[Bar, ...]
    notes: tuple[Note, ...]


async def merge_feeds(feeds: Sequence[BarFeed], *, most_bars: int | None = None) -> AsyncGenerator[TimeSlice]:
    """Give the time slices of `feeds` in order, each feed's first `most_bars` bars; raises what a feed raises.

    A time slice is given as soon as every feed has given its next bar or its end.
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


class _Reader:
    """One feed, read one bar ahead."""

    def __init__(self, feed: BarFeed, most_bars: int | None) -> None:
        self._items: AsyncIterator[FeedItem] = aiter(feed)
        self._left = most_bars
        self.head: Bar | None = None
        self.notes: list[Note] = []

    async def advance(self) -> None:
        """Move to the next bar, or to the end; harmless there."""
        self.head = None
        if self._left == 0:
            return
        async for item in self._items:
            if isinstance(item, Bar):
                self.head = item
                break
            self.notes.append(item)
        if self._left is not None:
            self._left -= 1


def _notes_of(readers: Sequence[_Reader]) -> tuple[Note, ...]:
    """Return the notes that no time slice has had yet."""
    notes = tuple(note for reader in readers for note in reader.notes)
    for reader in readers:
        reader.notes.clear()
    return notes


class ReferenceMarketFeed:
    """The reference market of one whose bars are `own`, never ahead of it.

    `other` goes with these very bars: from the first bar that is another one there is no reference market any more,
    since its own bars would have been other ones too. Both are in order of time. `seen_until` is the close of the last
    bar that was the same, None before the first.
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
        """Take the next bar of the first market; the reference market goes on to the same close."""
        if self._differs or self._own.get(bar.open_time) != bar:
            self._differs = True
            return
        self.seen_until = bar.close_time
        while self._ahead and self._ahead[0].close_time <= bar.close_time:
            for closed in self._resampler.push(self._ahead.popleft()):
                self._closes.append(Close(closed.bar.close_time, float(closed.bar.close)))

    def reference_market(self, as_of: datetime) -> ReferenceMarket | None:
        """Return the reference market as of a moment; None once a bar of the first one has differed."""
        if self._differs:
            return None
        return ReferenceMarket(self.symbol, tuple(self._closes)).until(as_of)
