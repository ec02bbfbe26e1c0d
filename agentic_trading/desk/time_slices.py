"""Several feeds as one sequence of moments: everything that closes at the same time comes at once."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed, Duplicate, Gap


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The bars that close at `at`, in order of symbol, and what was noted of the feeds before them.

    Notes behind the last bar of all come in a last moment at the same time, which has no bars.
    """

    at: datetime
    bars: tuple[Bar, ...]
    notes: tuple[Gap | Duplicate, ...]


async def merge_feeds(feeds: Sequence[BarFeed], *, most_bars: int | None = None) -> AsyncGenerator[TimeSlice]:
    """Give the moments of `feeds` in order of time, each feed's first `most_bars` bars; raises what a feed raises.

    A moment is given as soon as every feed has shown its next bar or its end.
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
    """One feed, looked at one bar ahead."""

    def __init__(self, feed: BarFeed, most_bars: int | None) -> None:
        self._items: AsyncIterator[Bar | Gap | Duplicate] = aiter(feed)
        self._left = most_bars
        self.head: Bar | None = None
        self.notes: list[Gap | Duplicate] = []

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


def _notes_of(readers: Sequence[_Reader]) -> tuple[Gap | Duplicate, ...]:
    """Take what was noted and not told yet."""
    notes = tuple(note for reader in readers for note in reader.notes)
    for reader in readers:
        reader.notes.clear()
    return notes
