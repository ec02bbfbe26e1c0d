"""A feed that has given its last wanted bar is closed, so that a shared stream keeps no lines for it."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.desk.late_bars import GracePeriod, merge_live
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.market.feeds import MemoryFeed, SharedStream, SharedStreamFeed
from agentic_trading.desk.session.feeds import BarSteps, CheckedFeed, ReadAhead, ResumedFeed
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from tests.desk.market.bars import MONDAY, bar, rows

M5 = Timeframe.M5
BARS = 200
LINE_BYTES = 20_000


def wide_rows(path: Path) -> int:
    """Write two bars of A and `BARS` of B, with lines of `LINE_BYTES`, and return a descriptor of the file."""
    bars = [bar(place, symbol=name) for place in range(BARS) for name in "AB" if name == "B" or place < 2]
    header, *lines = rows(bars).decode().splitlines()
    wide = [f"{header},note", *(f"{line},{'x' * LINE_BYTES}" for line in lines)]
    path.write_text("\n".join(wide) + "\n", encoding="utf-8")
    return os.open(path, os.O_RDONLY)


def wrapped(feed: SharedStreamFeed, *, resumed: bool) -> CheckedFeed:
    """Return the feed as a session reads it."""
    ahead = ReadAhead(feed, "-")
    kept = MemoryFeed([bar(0, symbol=feed.symbol)], symbol=feed.symbol, timeframe=M5)
    inner = ResumedFeed(kept, ahead) if resumed else ahead
    return CheckedFeed(inner, "-", BarSteps("-", M5, is_known=True))


def slices_of(feeds: list[CheckedFeed], *, live: bool) -> AsyncGenerator[TimeSlice]:
    if not live:
        return merge_feeds(feeds, most_bars=1)
    grace = GracePeriod(SimClock(MONDAY + timedelta(days=9)), timedelta(seconds=30), {"A", "B"})
    return merge_live(feeds, grace, most_bars=1)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("live", [False, True], ids=["backtest", "paper"])
async def test_stream_keeps_no_lines_for_feed_with_enough_bars(
    tmp_path: Path, *, live: bool, resumed: bool
) -> None:
    fd = await asyncio.to_thread(wide_rows, tmp_path / "bars.csv")
    stream = SharedStream(fd)
    limited = [wrapped(stream.feed(symbol="A", timeframe=M5), resumed=resumed)]
    other = stream.feed(symbol="B", timeframe=M5)
    try:
        async for _ in slices_of(limited, live=live):
            pass
        tracemalloc.start()
        count = 0
        async for item in other:
            count += getattr(item, "kind", "bar") == "bar"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(fd)

    assert count == BARS
    assert peak < BARS * LINE_BYTES / 4


async def test_feed_is_closed_before_its_first_bar(tmp_path: Path) -> None:
    fd = await asyncio.to_thread(wide_rows, tmp_path / "bars.csv")
    stream = SharedStream(fd)
    feed, other = (stream.feed(symbol=name, timeframe=M5) for name in "AB")
    await feed.aclose()
    try:
        assert len([item async for item in other if not hasattr(item, "kind")]) == BARS
        assert [item async for item in feed] == []
    finally:
        os.close(fd)


class PlainFeed:
    """A feed whose iterator has no `aclose`."""

    symbol = "A"
    timeframe = M5

    def __init__(self) -> None:
        self._left = [bar(1, symbol="A"), bar(0, symbol="A")]

    def __aiter__(self) -> AsyncIterator[FeedItem]:
        return self

    async def __anext__(self) -> FeedItem:
        return self._left.pop()


async def test_plain_iterator_ends_at_the_limit() -> None:
    assert [each.bars async for each in merge_feeds([PlainFeed()], most_bars=1)] == [(bar(0, symbol="A"),)]
