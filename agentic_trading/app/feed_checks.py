"""The feeds of a run: opened, looked at before anything is written, and refused where they cannot feed one."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from agentic_trading.app.feeds import STDIN, BarSource, open_feed, what_of
from agentic_trading.app.options import OptionError
from agentic_trading.desk.market.bar import EPOCH, Bar, Timeframe
from agentic_trading.desk.market.feed import BarFeed, FeedItem

ENOUGH: Final = 4
"""Bars that show how long the bars of a source are: three equal steps in a row are no holes."""


class ReadAhead:
    """The feed of a source called `name`; its first bars can be looked at before it is iterated, and come again then."""

    def __init__(self, feed: BarFeed, name: str) -> None:
        self.name = name
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._items = aiter(feed)
        self._ahead: deque[FeedItem] = deque()

    async def show(self, most: int, *, after: datetime = EPOCH) -> list[Bar]:
        """Return the next bars that open at or after `after`, at most `most`; waits for them, or for the end."""
        shown = [item for item in self._ahead if isinstance(item, Bar) and item.open_time >= after][:most]
        while len(shown) < most and (item := await anext(self._items, None)) is not None:
            self._ahead.append(item)
            if isinstance(item, Bar) and item.open_time >= after:
                shown.append(item)
        return shown

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield what was looked at, then the rest."""
        while self._ahead:
            yield self._ahead.popleft()
        async for item in self._items:
            yield item


class CheckedFeed:
    """Give what `feed` gives; raise `OptionError` for bars of another length, and at the end if there was no bar."""

    def __init__(self, feed: BarFeed, name: str) -> None:
        self.symbol = feed.symbol
        self.timeframe = feed.timeframe
        self._feed = feed
        self._name = name

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield bars and notes, as long as they are those of a source that can feed a run."""
        first: list[Bar] = []
        async for item in self._feed:
            if isinstance(item, Bar) and len(first) < ENOUGH:
                first.append(item)
                refuse_longer_bars(self._name, first, self.timeframe)
            yield item
        refuse_none(self._name, first)


async def open_feeds(named: Sequence[BarSource]) -> list[ReadAhead]:
    """Open every source, and look at the first bars of those that need no waiting.

    Raises `OptionError` for one without a bar or with bars of another length, and what a feed raises for text that
    is no bar.
    """
    feeds = []
    for source in named:
        feed = ReadAhead(await open_feed(source.data), source.data.name)
        if what_of(source.data.name) != STDIN:
            first = await feed.show(ENOUGH)
            refuse_none(feed.name, first)
            refuse_longer_bars(feed.name, first, feed.timeframe)
        feeds.append(feed)
    return feeds


def refuse_none(name: str, first: Sequence[Bar]) -> None:
    """Raise `OptionError` where a source has ended without a bar."""
    if not first:
        raise OptionError("--data", f"{name}, which holds no bar", "a source of one closed bar and more")


def refuse_longer_bars(name: str, first: Sequence[Bar], timeframe: Timeframe) -> None:
    """Raise `OptionError` if the first bars, `ENOUGH` of them, are all the same longer step apart."""
    steps = {after.open_time - before.open_time for before, after in pairwise(first)}
    if len(first) == ENOUGH and len(steps) == 1 and min(steps) > timeframe.length:
        raise OptionError("--data", f"{name}, which looks like bars of {_spelled(*steps)}", timeframe)


def _spelled(step: timedelta) -> str:
    minutes = step // timedelta(minutes=1)
    for unit, length in (("d", 1_440), ("h", 60)):
        if minutes % length == 0:
            return f"{minutes // length}{unit}"
    return f"{minutes}m"
