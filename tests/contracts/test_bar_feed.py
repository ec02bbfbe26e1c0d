"""What every bar feed promises, and that a feed which breaks a promise is found out."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import MarketError
from agentic_trading.desk.market.feed import BarFeed, Duplicate, FeedItem, Gap
from agentic_trading.desk.market.feeds import CsvFeed, MemoryFeed, StdinFeed
from tests.desk.market.bars import bar, rows

FeedOf = Callable[[Sequence[Bar]], BarFeed]


async def read(feed: BarFeed) -> tuple[list[FeedItem], MarketError | None]:
    items: list[FeedItem] = []
    try:
        async for item in feed:
            items.append(item)  # noqa: PERF401 - what came before an error counts
    except MarketError as e:
        return items, e
    return items, None


async def names_what_it_gives(feed_of: FeedOf) -> None:
    feed = feed_of([bar(0)])

    assert (feed.symbol, feed.timeframe) == ("BTCUSDT", Timeframe.M5)


async def gives_every_bar_once_unchanged_and_in_order(feed_of: FeedOf) -> None:
    bars = [bar(place, f"{100 + place}.50") for place in range(12)]

    assert await read(feed_of(bars)) == (bars, None)


async def gives_nothing_for_nothing(feed_of: FeedOf) -> None:
    assert await read(feed_of([])) == ([], None)


async def tells_a_gap_before_the_next_bar_and_invents_none(feed_of: FeedOf) -> None:
    before, after = bar(3), bar(8)

    items, error = await read(feed_of([before, after]))

    gap = Gap(
        symbol="BTCUSDT", timeframe=Timeframe.M5, after=before.close_time, before=after.open_time, missing=4
    )
    assert (items, error) == ([before, gap, after], None)


async def tells_an_equal_duplicate_in_its_place(feed_of: FeedOf) -> None:
    first, second = bar(0), bar(1)

    items, error = await read(feed_of([first, first, second]))

    note = Duplicate(symbol="BTCUSDT", timeframe=Timeframe.M5, open_time=first.open_time)
    assert (items, error) == ([first, note, second], None)


async def refuses_a_duplicate_with_other_values(feed_of: FeedOf) -> None:
    items, error = await read(feed_of([bar(0, "100"), bar(0, "100.01"), bar(1)]))

    assert items == [bar(0, "100")]
    assert error is not None


async def refuses_an_earlier_bar(feed_of: FeedOf) -> None:
    items, error = await read(feed_of([bar(0), bar(2), bar(1)]))

    assert items[-1] == bar(2)
    assert error is not None


async def refuses_another_symbol(feed_of: FeedOf) -> None:
    items, error = await read(feed_of([bar(0), bar(1, symbol="ETHUSDT")]))

    assert items == [bar(0)]
    assert error is not None


async def refuses_another_timeframe(feed_of: FeedOf) -> None:
    items, error = await read(feed_of([bar(0), bar(1, timeframe=Timeframe.H1)]))

    assert items == [bar(0)]
    assert error is not None


PROMISES: list[Callable[[FeedOf], Awaitable[None]]] = [
    names_what_it_gives,
    gives_every_bar_once_unchanged_and_in_order,
    gives_nothing_for_nothing,
    tells_a_gap_before_the_next_bar_and_invents_none,
    tells_an_equal_duplicate_in_its_place,
    refuses_a_duplicate_with_other_values,
    refuses_an_earlier_bar,
    refuses_another_symbol,
    refuses_another_timeframe,
]


@pytest.fixture(params=["memory", "file", "stdin"])
def feed_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FeedOf]:
    opened: list[int] = []

    def memory(bars: Sequence[Bar]) -> BarFeed:
        return MemoryFeed(bars, symbol="BTCUSDT", timeframe=Timeframe.M5)

    def file(bars: Sequence[Bar]) -> BarFeed:
        path = tmp_path / "bars.csv"
        path.write_bytes(rows(bars))
        return CsvFeed(path, symbol="BTCUSDT", timeframe=Timeframe.M5)

    def stdin(bars: Sequence[Bar]) -> BarFeed:
        reader, writer = os.pipe()
        opened.append(reader)
        os.write(writer, rows(bars))
        os.close(writer)
        return StdinFeed(reader, symbol="BTCUSDT", timeframe=Timeframe.M5)

    yield {"memory": memory, "file": file, "stdin": stdin}[request.param]
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("promise", PROMISES)
async def test_bar_feed_keeps_promise(feed_of: FeedOf, promise: Callable[[FeedOf], Awaitable[None]]) -> None:
    await promise(feed_of)


class Broken:
    """A feed that gives its items as they are handed to it, whatever they are."""

    timeframe = Timeframe.M5

    def __init__(self, items: Sequence[FeedItem], *, symbol: str = "BTCUSDT") -> None:
        self.symbol = symbol
        self._items = items

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        for item in self._items:
            yield item


def unchecked(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars)


def misnamed(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars, symbol="ETHUSDT")


def backwards(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars[::-1])


def cut_short(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars[:-1])


def repeating(bars: Sequence[Bar]) -> BarFeed:
    return Broken([*bars, bars[-1]])


def never_empty(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars or [bar(0)])


def quietly_skipping(bars: Sequence[Bar]) -> BarFeed:
    return Broken(bars[1:])


def filling(bars: Sequence[Bar]) -> BarFeed:
    first, last = bars[0], bars[-1]
    length = Timeframe.M5.length
    missing = (last.open_time - first.close_time) // length
    made_up = [
        first.model_copy(update={"open_time": first.close_time + step * length}) for step in range(missing)
    ]
    return Broken([first, *made_up, last])


@pytest.mark.parametrize(
    ("promise", "broken"),
    [
        (names_what_it_gives, misnamed),
        (gives_every_bar_once_unchanged_and_in_order, backwards),
        (gives_every_bar_once_unchanged_and_in_order, cut_short),
        (gives_every_bar_once_unchanged_and_in_order, repeating),
        (gives_nothing_for_nothing, never_empty),
        (tells_a_gap_before_the_next_bar_and_invents_none, unchecked),
        (tells_a_gap_before_the_next_bar_and_invents_none, filling),
        (tells_an_equal_duplicate_in_its_place, unchecked),
        (tells_an_equal_duplicate_in_its_place, quietly_skipping),
        (refuses_a_duplicate_with_other_values, unchecked),
        (refuses_an_earlier_bar, unchecked),
        (refuses_another_symbol, unchecked),
        (refuses_another_timeframe, unchecked),
    ],
)
async def test_broken_bar_feed_is_detected(
    promise: Callable[[FeedOf], Awaitable[None]], broken: FeedOf
) -> None:
    with pytest.raises(AssertionError):
        await promise(broken)
