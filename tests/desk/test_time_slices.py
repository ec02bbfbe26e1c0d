"""Several feeds become one sequence of time slices: in order of time, complete, and no further ahead than needed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import BarFeed, Duplicate, FeedItem, Gap
from agentic_trading.desk.market.feeds import MemoryFeed
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from tests.desk.market.bars import MONDAY, bar, series


class WatchedFeed:
    """Give items, count how many were asked for, and raise `error` after the last one."""

    def __init__(self, items: Sequence[FeedItem], *, symbol: str = "BTCUSDT", error: Exception | None = None):
        self.symbol = symbol
        self.timeframe = Timeframe.M5
        self.given = 0
        self._items = items
        self._error = error

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        for item in self._items:
            self.given += 1
            yield item
        if self._error is not None:
            raise self._error


def feed_of(symbol: str, *places: int) -> MemoryFeed:
    """Return a feed of bars at these places."""
    return MemoryFeed([bar(place, symbol=symbol) for place in places], symbol=symbol, timeframe=Timeframe.M5)


async def all_of(*feeds: BarFeed, most_bars: int | None = None) -> list[TimeSlice]:
    return [time_slice async for time_slice in merge_feeds(feeds, most_bars=most_bars)]


def shown(found: Sequence[TimeSlice]) -> list[tuple[int, str]]:
    """Return each time slice as the place of its bars and their symbols."""
    five_minutes = timedelta(minutes=5)
    return [((m.at - MONDAY) // five_minutes - 1, "+".join(each.symbol for each in m.bars)) for m in found]


async def test_simultaneous_bars_share_sorted_slice() -> None:
    found = await all_of(feed_of("ETH", 0, 1, 3), feed_of("BTC", 1, 2, 3))

    assert shown(found) == [(0, "ETH"), (1, "BTC+ETH"), (2, "BTC"), (3, "BTC+ETH")]


async def test_bar_limit_is_per_feed() -> None:
    found = await all_of(feed_of("ETH", 0, 1, 2), feed_of("BTC", 4, 5, 6), most_bars=2)

    assert shown(found) == [(0, "ETH"), (1, "ETH"), (4, "BTC"), (5, "BTC")]


async def test_feed_is_not_read_beyond_limit() -> None:
    feed = WatchedFeed([bar(0), bar(1), bar(2)])

    await all_of(feed, most_bars=2)

    assert feed.given == 2


async def test_slice_yielded_before_reading_next_bar() -> None:
    feed = WatchedFeed([bar(0), bar(1)])

    async with aclosing(merge_feeds([feed])) as sequence:
        await anext(sequence)

        assert feed.given == 1


async def test_note_is_delivered_with_next_bar() -> None:
    found = await all_of(feed_of("BTC", 0, 0, 1, 5))

    assert [[type(note) for note in time_slice.notes] for time_slice in found] == [[], [Duplicate], [Gap]]


async def test_trailing_note_has_slice_without_bars() -> None:
    found = await all_of(feed_of("BTC", 0, 1, 1))

    last = found[-1]
    assert (len(found), last.bars, last.at) == (3, (), found[1].at)
    assert [note.kind for note in last.notes] == ["duplicate"]


async def test_ended_feed_note_joins_next_slice() -> None:
    found = await all_of(feed_of("BTC", 0, 0), feed_of("ETH", 0, 1))

    assert [[note.symbol for note in time_slice.notes] for time_slice in found] == [[], ["BTC"]]


async def test_empty_feeds_yield_no_slices() -> None:
    assert await all_of() == []
    assert await all_of(feed_of("BTC"), feed_of("ETH")) == []


async def test_bars_before_error_are_yielded() -> None:
    error = BarFormatError("feed", 3, "close", "x", "a number")
    found: list[TimeSlice] = []

    async def follow() -> None:
        async for time_slice in merge_feeds([WatchedFeed([bar(0), bar(1)], error=error)]):
            found.append(time_slice)  # noqa: PERF401 - what came before the error is what the test is about

    with pytest.raises(BarFormatError) as raised:
        await follow()

    assert raised.value is error
    assert shown(found) == [(0, "BTCUSDT"), (1, "BTCUSDT")]


@given(series(most=30), series(most=30))
async def test_each_bar_appears_once_in_order(one: list[Bar], other: list[Bar]) -> None:
    others = [each.model_copy(update={"symbol": "ETHUSDT"}) for each in other]
    feeds = [
        MemoryFeed(one, symbol="BTCUSDT", timeframe=Timeframe.M5),
        MemoryFeed(others, symbol="ETHUSDT", timeframe=Timeframe.M5),
    ]

    found = await all_of(*feeds)

    given_bars = [each for time_slice in found for each in time_slice.bars]
    assert sorted(given_bars, key=lambda each: (each.symbol, each.open_time)) == [*one, *others]
    assert [m.at for m in found] == sorted({m.at for m in found})
    assert all(each.close_time == time_slice.at for time_slice in found for each in time_slice.bars)


@given(series(most=20), st.integers(1, 25))
async def test_limited_sequence_is_prefix_of_full(bars: list[Bar], most: int) -> None:
    def feed() -> MemoryFeed:
        return MemoryFeed(bars, symbol="BTCUSDT", timeframe=Timeframe.M5)

    assert await all_of(feed(), most_bars=most) == (await all_of(feed()))[:most]
