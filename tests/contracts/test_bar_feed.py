"""The suite of bar feeds passes on the shipped feeds, and finds feeds that break one promise each."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from typing_extensions import override

from agentic_trading.clock import Clock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarSequenceError
from agentic_trading.desk.market.feed import BarFeed, Duplicate, FeedItem, Gap, UnclosedBar
from agentic_trading.desk.market.feeds import CsvFeed, MemoryFeed, SharedStream, StdinFeed, has_closed
from agentic_trading.testing import BarFeedSuite, LiveBarFeedSuite, SimClock
from tests.contracts.breaking import failures, unbroken
from tests.desk.market.bars import rows


class TestMemoryFeed(BarFeedSuite):
    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        return MemoryFeed(bars, symbol=self.symbol, timeframe=self.timeframe)


class TestHourlyMemoryFeed(TestMemoryFeed):
    symbol = "ETHUSDT"
    timeframe = Timeframe.H1


class TestCsvFeed(BarFeedSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "bars.csv"

    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        self.path.write_bytes(rows(bars))
        return CsvFeed(self.path, symbol=self.symbol, timeframe=self.timeframe)


class TestStdinFeed(LiveBarFeedSuite):
    @pytest.fixture(autouse=True)
    def _pipes(self) -> Iterator[None]:
        self.opened: list[int] = []
        yield
        for fd in self.opened:
            os.close(fd)

    def pipe_of(self, bars: Sequence[Bar]) -> int:
        reader, writer = os.pipe()
        self.opened.append(reader)
        os.write(writer, rows(bars))
        os.close(writer)
        return reader

    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        return StdinFeed(self.pipe_of(bars), symbol=self.symbol, timeframe=self.timeframe)

    @override
    def live_feed(self, bars: Sequence[Bar], clock: Clock) -> BarFeed:
        return StdinFeed(self.pipe_of(bars), symbol=self.symbol, timeframe=self.timeframe, clock=clock)


class TestSharedStreamFeed(TestStdinFeed):
    skips_others = True

    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        return SharedStream(self.pipe_of(bars)).feed(symbol=self.symbol, timeframe=self.timeframe)

    @override
    def live_feed(self, bars: Sequence[Bar], clock: Clock) -> BarFeed:
        stream = SharedStream(self.pipe_of(bars))
        return stream.feed(symbol=self.symbol, timeframe=self.timeframe, clock=clock)


class TestFileOfSeveralSymbols(TestCsvFeed):
    skips_others = True

    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        self.path.write_bytes(rows(bars))
        return CsvFeed(self.path, symbol=self.symbol, timeframe=self.timeframe, skips_others=True)


class Live:
    """A right feed with a clock. A subclass spoils one part of it."""

    def __init__(self, bars: Sequence[Bar], clock: Clock, symbol: str, timeframe: Timeframe) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self.clock = clock
        self.inner = MemoryFeed(self.kept(bars), symbol=symbol, timeframe=timeframe)

    def kept(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        return bars

    def given(self, item: FeedItem) -> Sequence[FeedItem]:
        return [item]

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        async for item in self.inner:
            if isinstance(item, Bar) and not await self.is_closed(item):
                yield UnclosedBar(symbol=item.symbol, timeframe=item.timeframe, open_time=item.open_time)
                continue
            for given in self.given(item):
                yield given

    async def is_closed(self, bar: Bar) -> bool:
        return await has_closed(bar, self.clock)


class Misnamed(Live):
    def __init__(self, bars: Sequence[Bar], clock: Clock, symbol: str, timeframe: Timeframe) -> None:
        super().__init__(bars, clock, symbol, timeframe)
        self.symbol = "ANOTHER"


class Cutting(Live):
    def kept(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        return bars[:-1]


class Inventive(Live):
    def kept(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        return bars or [BarFeedSuite().bar(0)]


class Changing(Live):
    made = 0

    def given(self, item: FeedItem) -> Sequence[FeedItem]:
        Changing.made += 1
        return [item.model_copy(update={"trades": Changing.made}) if isinstance(item, Bar) else item]


class Quiet(Live):
    def given(self, item: FeedItem) -> Sequence[FeedItem]:
        return [] if isinstance(item, Gap | Duplicate) else [item]


class Filling(Live):
    last: Bar | None = None

    def given(self, item: FeedItem) -> Sequence[FeedItem]:
        if isinstance(item, Bar):
            self.last = item
        if not isinstance(item, Gap) or self.last is None:
            return [item]
        last, length = self.last, item.timeframe.length
        return [
            last.model_copy(update={"open_time": item.after + place * length})
            for place in range(item.missing)
        ]


class Unchecked(Live):
    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        for bar in self.inner._bars:
            yield bar


class Sorting(Live):
    def kept(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        return sorted(bars, key=lambda bar: bar.open_time)


class Impatient(Live):
    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        items = []
        async for item in self.inner:
            items.append(item)  # noqa: PERF401 - an error comes before all items
        for item in items:
            yield item


class Early(Live):
    async def is_closed(self, bar: Bar) -> bool:
        return True


class Deaf(Live):
    async def is_closed(self, bar: Bar) -> bool:
        while True:
            try:
                return await super().is_closed(bar)
            except asyncio.CancelledError:
                self.clock = SimClock(bar.close_time)


class Renaming(Live):
    def kept(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        return [bar.model_copy(update={"symbol": self.symbol, "timeframe": self.timeframe}) for bar in bars]


class BrokenSuite(LiveBarFeedSuite):
    """The suite on a feed class."""

    timeout_s: float = 2
    make: ClassVar[Callable[[Sequence[Bar], Clock, str, Timeframe], BarFeed]]

    @override
    def feed(self, bars: Sequence[Bar]) -> BarFeed:
        return self.live_feed(bars, SimClock(self.bar(1000).open_time))

    @override
    def live_feed(self, bars: Sequence[Bar], clock: Clock) -> BarFeed:
        return type(self).make(bars, clock, self.symbol, self.timeframe)


def suite_of(feed: type[Live]) -> type[BrokenSuite]:
    return type("Suite", (BrokenSuite,), {"make": staticmethod(feed)})


BROKEN: dict[type[Live], set[str]] = {
    Misnamed: {"test_feed_has_symbol_and_timeframe_of_its_bars"},
    Cutting: {"test_every_bar_comes_once_unchanged_in_order"},
    Inventive: {"test_empty_source_gives_no_item"},
    Changing: {"test_equal_sources_give_equal_items"},
    Quiet: {
        "test_gap_comes_before_the_next_bar",
        "test_equal_duplicate_becomes_a_note_in_its_place",
    },
    Filling: {"test_gap_comes_before_the_next_bar"},
    Unchecked: {"test_duplicate_with_other_values_is_refused"},
    Sorting: {"test_earlier_bar_is_refused"},
    Impatient: {"test_duplicate_with_other_values_is_refused"},
    Renaming: {
        "test_bar_of_another_symbol_is_not_yielded",
        "test_bar_of_another_timeframe_is_refused",
    },
    Early: {"test_open_bar_is_held_back"},
    Deaf: {"test_wait_for_a_close_is_cancelled"},
}


@pytest.mark.parametrize("feed", BROKEN)
def test_broken_bar_feed_is_found(feed: type[Live]) -> None:
    assert BROKEN[feed] <= failures(suite_of(feed))


def test_each_check_finds_a_broken_bar_feed() -> None:
    assert unbroken(LiveBarFeedSuite, BROKEN) == set()


def test_right_feed_with_clock_passes() -> None:
    assert failures(suite_of(Live)) == set()


def test_errors_of_another_kind_are_not_refusals() -> None:
    class Careless(Live):
        async def __aiter__(self) -> AsyncIterator[FeedItem]:
            try:
                async for item in self.inner:
                    yield item
            except BarSequenceError as e:
                raise KeyError("open_time") from e

    assert "test_earlier_bar_is_refused" in failures(suite_of(Careless))


@pytest.mark.parametrize("check", ["test_empty_source_gives_no_item", "test_open_bar_is_held_back"])
def test_missing_hook_names_itself(check: str) -> None:
    with pytest.raises(TypeError, match=r"override `(live_)?feed`"):
        getattr(LiveBarFeedSuite(), check)()


@pytest.mark.parametrize("feed", [Live, Renaming], ids=["refuses", "renames"])
def test_feed_that_skips_others_may_neither_refuse_nor_rename(feed: type[Live]) -> None:
    skipping = type("Skipping", (suite_of(feed),), {"skips_others": True})

    assert "test_bar_of_another_symbol_is_not_yielded" in failures(skipping)
