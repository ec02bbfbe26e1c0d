"""Live feeds: a silent feed holds up no other one longer than the grace period, and kept bars repeat the slices."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

import pytest
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.desk.late_bars import GracePeriod, merge_live
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.calendar import OpenTimes
from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.market.feed import FeedItem, Gap, LateBar
from agentic_trading.desk.market.feeds import MemoryFeed
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from tests.desk.market.bars import MONDAY, bar

M5 = Timeframe.M5
GRACE = timedelta(seconds=30)


class HandClock(SimClock):
    """A clock whose sleepers wait until a test has moved it far enough."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self._moved = asyncio.Event()

    @override
    async def sleep(self, seconds: float) -> None:
        end = self.now() + timedelta(seconds=seconds)
        while self.now() < end:
            await self._moved.wait()

    async def move_to(self, moment: datetime) -> None:
        self.advance_to(moment)
        self._moved.set()
        self._moved = asyncio.Event()
        await settled()


class LiveFeed:
    """A feed whose items a test sends."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.timeframe = M5
        self._items: asyncio.Queue[FeedItem | BarFormatError | None] = asyncio.Queue()

    async def send(self, *items: FeedItem | BarFormatError | None) -> None:
        for item in items:
            self._items.put_nowait(item)
        await settled()

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        while (item := await self._items.get()) is not None:
            if isinstance(item, BarFormatError):
                raise item
            yield item


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(200):
        await asyncio.sleep(0)


class Merged:
    """The time slices that `merge_live` has yielded so far."""

    def __init__(self, slices: AsyncGenerator[TimeSlice]) -> None:
        self.found: list[TimeSlice] = []
        self.task = asyncio.get_running_loop().create_task(self._read(slices))

    async def _read(self, slices: AsyncGenerator[TimeSlice]) -> None:
        async with aclosing(slices):
            async for time_slice in slices:
                self.found.append(time_slice)

    @property
    def shown(self) -> list[tuple[int, str]]:
        return shown(self.found)


def shown(slices: Sequence[TimeSlice]) -> list[tuple[int, str]]:
    """Return each time slice as the place of its bars and their symbols."""
    return [
        ((each.at - MONDAY) // M5.length - 1, "+".join(one.symbol for one in each.bars)) for each in slices
    ]


def close_of(place: int) -> datetime:
    return bar(place).close_time


async def merged(*feeds: LiveFeed, clock: HandClock, most_bars: int | None = None) -> Merged:
    grace = GracePeriod(clock, GRACE, {feed.symbol for feed in feeds})
    run = Merged(merge_live(feeds, grace, most_bars=most_bars))
    await settled()
    return run


async def replayed(slices: Sequence[TimeSlice]) -> list[TimeSlice]:
    """Merge the bars of time slices again, as a replay does."""
    bars = [one for each in slices for one in each.bars]
    feeds = [
        MemoryFeed([one for one in bars if one.symbol == symbol], symbol=symbol, timeframe=M5)
        for symbol in sorted({one.symbol for one in bars})
    ]
    return [each async for each in merge_feeds(feeds)]


async def test_silent_feed_is_awaited_until_grace_ends() -> None:
    clock = HandClock(close_of(0))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(bar(0, symbol="A"))
    await b.send(bar(0, symbol="B"))
    await clock.move_to(close_of(1))
    await a.send(bar(1, symbol="A"))

    await clock.move_to(close_of(1) + GRACE - timedelta(seconds=1))
    assert run.shown == [(0, "A+B")]
    await clock.move_to(close_of(1) + GRACE)
    assert run.shown == [(0, "A+B"), (1, "A")]
    run.task.cancel()


async def test_grace_runs_from_close_and_not_from_arrival() -> None:
    clock = HandClock(close_of(0))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await clock.move_to(close_of(0) + timedelta(seconds=20))
    await a.send(bar(0, symbol="A"))

    await clock.move_to(close_of(0) + GRACE)
    assert run.shown == [(0, "A")]
    run.task.cancel()


async def test_feed_that_runs_ahead_makes_no_other_bar_late() -> None:
    clock = HandClock(close_of(20))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(*(bar(place, symbol="A") for place in range(20)))
    for place in range(20):
        await clock.move_to(clock.now() + timedelta(seconds=25))
        await b.send(bar(place, symbol="B"))

    assert run.shown == [(place, "A+B") for place in range(20)]
    run.task.cancel()


async def test_backlog_of_others_passes_silent_feed_after_one_grace() -> None:
    clock = HandClock(close_of(100))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(*(bar(place, symbol="A") for place in range(20)))

    await clock.move_to(close_of(100) + GRACE)
    assert run.shown == [(place, "A") for place in range(20)]
    run.task.cancel()


async def test_late_bar_is_noted_and_kept_bars_give_same_slices() -> None:
    clock = HandClock(close_of(0))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(bar(0, symbol="A"))
    await b.send(bar(0, symbol="B"))
    for place in (1, 2):
        await clock.move_to(close_of(place))
        await a.send(bar(place, symbol="A"))
        await clock.move_to(close_of(place) + GRACE)
    await b.send(bar(1, symbol="B"), bar(2, symbol="B"))
    await clock.move_to(close_of(3))
    await a.send(bar(3, symbol="A"), None)
    await b.send(bar(3, symbol="B"), None)
    await run.task

    assert run.shown == [(0, "A+B"), (1, "A"), (2, "A"), (3, "A+B")]
    late = [LateBar(symbol="B", timeframe=M5, open_time=bar(place).open_time) for place in (1, 2)]
    gap = Gap(symbol="B", timeframe=M5, after=close_of(0), before=close_of(2), missing=2)
    assert run.found[-1].notes == (*late, gap)
    again = await replayed(run.found)
    assert [(each.at, each.bars) for each in again] == [(each.at, each.bars) for each in run.found]
    assert again[-1].notes == (gap,)


async def test_closed_market_gives_no_gap_after_a_late_bar() -> None:
    clock, eth, btc = HandClock(close_of(0)), LiveFeed("ETHUSDT"), LiveFeed("BTCUSDT")
    hours = OpenTimes([bar(place).open_time for place in (0, 1, 5, 6)])
    grace = GracePeriod(clock, GRACE, {"ETHUSDT", "BTCUSDT"}, calendar=hours)
    run = Merged(merge_live((eth, btc), grace))
    await btc.send(*(bar(place, symbol="BTCUSDT") for place in (0, 1, 5)))
    await eth.send(bar(0, symbol="ETHUSDT"))
    await clock.move_to(close_of(1) + GRACE)
    await eth.send(bar(1, symbol="ETHUSDT"), bar(5, symbol="ETHUSDT"), None)
    await btc.send(None)
    await clock.move_to(close_of(5) + GRACE)
    await run.task

    notes = [note for each in run.found for note in each.notes]
    assert [type(note) for note in notes] == [LateBar, Gap]
    assert [(note.symbol, note.missing) for note in notes if isinstance(note, Gap)] == [("ETHUSDT", 1)]


async def test_late_bar_after_the_last_slice_is_noted() -> None:
    clock = HandClock(close_of(0) + GRACE)
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(bar(0, symbol="A"), None)
    await clock.move_to(clock.now() + GRACE)
    await b.send(bar(0, symbol="B"), None)
    await run.task

    assert run.shown == [(0, "A"), (0, "")]
    assert [note.kind for note in run.found[-1].notes] == ["late"]


async def test_resumed_run_repeats_slices_and_leaves_out_their_late_bars() -> None:
    """B was silent for bars 1 and 2 of the earlier run. Now its source has them."""
    a = MemoryFeed([bar(place, symbol="A") for place in range(5)], symbol="A", timeframe=M5)
    b = MemoryFeed([bar(place, symbol="B") for place in range(5)], symbol="B", timeframe=M5)
    grace = GracePeriod(HandClock(close_of(9)), GRACE, {"A", "B"}, {"A": 3, "B": 1}, close_of(2))

    found = [each async for each in merge_live([a, b], grace)]

    assert shown(found) == [(0, "A+B"), (1, "A"), (2, "A"), (3, "A+B"), (4, "A+B")]
    assert [note.kind for each in found for note in each.notes] == ["late", "late", "gap"]


async def test_feeds_without_silence_merge_as_in_backtest() -> None:
    def feeds() -> list[MemoryFeed]:
        places = {"A": (0, 1, 3, 4), "B": (1, 2, 4), "C": ()}
        return [
            MemoryFeed([bar(place, symbol=name) for place in each], symbol=name, timeframe=M5)
            for name, each in places.items()
        ]

    grace = GracePeriod(HandClock(close_of(9)), GRACE, {"A", "B", "C"})
    for most in (None, 2):
        live = [each async for each in merge_live(feeds(), grace, most_bars=most)]
        assert live == [each async for each in merge_feeds(feeds(), most_bars=most)]


async def test_file_is_awaited_without_limit() -> None:
    clock = HandClock(close_of(0))
    stream, file = LiveFeed("A"), LiveFeed("F")
    run = Merged(merge_live([stream, file], GracePeriod(clock, GRACE, {"A"})))
    await stream.send(bar(0, symbol="A"))
    await clock.move_to(close_of(9))
    assert run.shown == []

    await file.send(bar(0, symbol="F"), None)
    assert run.shown == [(0, "A+F")]
    run.task.cancel()


async def test_error_of_feed_ends_the_merge() -> None:
    clock = HandClock(close_of(0))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await b.send(BarFormatError("stdin", 2, "open", "x", "a number"))

    with pytest.raises(BarFormatError, match="line 2"):
        await run.task


async def test_closed_merge_stops_all_reads() -> None:
    a, b = LiveFeed("A"), LiveFeed("B")
    await a.send(bar(0, symbol="A"))
    async with aclosing(
        merge_live([a, b], GracePeriod(HandClock(close_of(9)), timedelta(), {"B"}))
    ) as slices:
        assert (await anext(slices)).bars == (bar(0, symbol="A"),)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_end_of_wait_stops_all_reads() -> None:
    clock = HandClock(close_of(0))
    a, b = LiveFeed("A"), LiveFeed("B")
    run = await merged(a, b, clock=clock)
    await a.send(bar(0, symbol="A"))
    before = asyncio.all_tasks()

    run.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.task

    assert len(before) == 4  # the test, the merge, the read of B, the timer
    assert asyncio.all_tasks() == {asyncio.current_task()}
