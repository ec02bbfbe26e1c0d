"""The contract suites of bar feeds."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from typing_extensions import override

from agentic_trading.clock import Clock, SimClock
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.errors import BarFormatError, BarSequenceError, MarketError
from agentic_trading.desk.market.feed import BarFeed, Duplicate, FeedItem, Gap
from agentic_trading.testing.suite import Suite, require, require_equal

_START: Final = datetime(2026, 1, 5, tzinfo=UTC)
_SHORT_S: Final = 0.05
"""Enough for a feed to read one bar and begin to wait."""


class BarFeedSuite(Suite):
    """The promises of `BarFeed`, tested on your feed. Override `feed`.

    Attributes:
        symbol: The symbol of the bars.
        timeframe: The length of the bars. At least a minute for a feed with a clock, because a feed may wait for a
            bar that closes soon.
        skips_others: Set it for a source of several symbols, if its feeds skip the bars of other symbols.

    Example:
        class TestHouseFeed(BarFeedSuite):
            def feed(self, bars):
                return HouseFeed(rows=[to_row(bar) for bar in bars], symbol=self.symbol)

    """

    symbol: str = "BTCUSDT"
    timeframe: Timeframe = Timeframe.M5
    skips_others: bool = False

    def feed(self, bars: Sequence[Bar]) -> BarFeed:  # noqa: ARG002 - a subclass uses it
        """Return a new feed whose source holds these bars in this order, valid or not.

        It is called outside of an event loop, so that it may write files.
        """
        raise TypeError("override `feed`: return your feed over the given bars")

    def bar(self, place: int, price: str = "100.5") -> Bar:
        """Return the bar at a place of the series, from 0."""
        return Bar(
            symbol=self.symbol,
            timeframe=self.timeframe,
            open_time=_START + place * self.timeframe.length,
            open=Decimal(price),
            high=Decimal(price),
            low=Decimal(price),
            close=Decimal(price),
            volume=Decimal(2),
            trades=7,
        )

    def test_feed_has_symbol_and_timeframe_of_its_bars(self) -> None:
        """The properties of a feed are those of its bars."""
        feed = self.feed([self.bar(0)])

        require_equal("a feed has the symbol of its bars", feed.symbol, self.symbol)
        require_equal("a feed has the timeframe of its bars", feed.timeframe, self.timeframe)

    def test_every_bar_comes_once_unchanged_in_order(self) -> None:
        """No bar is lost, repeated, changed or moved."""
        bars = [self.bar(place, f"{100 + place}.50") for place in range(12)]

        self._require_items("every bar comes once, unchanged and in order", bars, bars)

    def test_empty_source_gives_no_item(self) -> None:
        """A source without bars is an empty feed."""
        self._require_items("a source without bars gives no item", [], [])

    def test_equal_sources_give_equal_items(self) -> None:
        """A feed depends on its source only."""
        bars = [self.bar(0), self.bar(1, "101.25"), self.bar(1, "101.25"), self.bar(4)]

        require_equal("equal sources give equal items", self._read(bars), self._read(bars))

    def test_gap_comes_before_the_next_bar(self) -> None:
        """Missing bars are one note, and no bar is invented."""
        before, after = self.bar(3), self.bar(8)
        gap = Gap(
            symbol=self.symbol,
            timeframe=self.timeframe,
            after=before.close_time,
            before=after.open_time,
            missing=4,
        )

        self._require_items(
            "missing bars give one Gap before the next bar", [before, after], [before, gap, after]
        )

    def test_equal_duplicate_becomes_a_note_in_its_place(self) -> None:
        """A repeated equal bar is left out with a note."""
        first, second = self.bar(0), self.bar(1)
        note = Duplicate(symbol=self.symbol, timeframe=self.timeframe, open_time=first.open_time)

        self._require_items(
            "a repeated equal bar gives a Duplicate", [first, first, second], [first, note, second]
        )

    def test_duplicate_with_other_values_is_refused(self) -> None:
        """Two versions of one bar are an error, and bars before it come first."""
        bars = [self.bar(0), self.bar(0, "100.75"), self.bar(1)]

        self._require_refusal("a repeated bar with other values", bars, bars[:1], BarSequenceError)

    def test_earlier_bar_is_refused(self) -> None:
        """Bars come in order of time."""
        bars = [self.bar(0), self.bar(1), self.bar(3), self.bar(2)]

        self._require_refusal("a bar before the last one", bars, [*bars[:2], None, bars[2]], BarSequenceError)

    def test_bar_of_another_symbol_is_not_yielded(self) -> None:
        """A feed has one symbol. Bars of others are refused, or skipped if the source has several symbols."""
        other = self.bar(1).model_copy(update={"symbol": f"{self.symbol}X"})
        if self.skips_others:
            bars = [self.bar(0), other, self.bar(1)]
            self._require_items("a bar of another symbol is skipped", bars, [self.bar(0), self.bar(1)])
            return

        self._require_refusal("a bar of another symbol", [self.bar(0), other], [self.bar(0)])

    def test_bar_of_another_timeframe_is_refused(self) -> None:
        """A feed has one length of bars."""
        longer = Timeframe.H1 if self.timeframe is not Timeframe.H1 else Timeframe.M5
        other = self.bar(0).model_copy(update={"timeframe": longer, "open_time": _START + timedelta(days=2)})

        self._require_refusal("a bar of another timeframe", [self.bar(0), other], [self.bar(0)])

    def _read(self, bars: Sequence[Bar]) -> tuple[list[FeedItem], MarketError | None]:
        return self._items_of(self.feed(bars))

    def _items_of(self, feed: BarFeed) -> tuple[list[FeedItem], MarketError | None]:
        """Return the items of a feed, and the error after them."""
        items: list[FeedItem] = []
        errors: list[MarketError] = []

        async def read() -> None:
            try:
                async for item in feed:
                    items.append(item)  # noqa: PERF401 - items before an error count
            except MarketError as e:
                errors.append(e)

        self.run_check(read())
        return items, errors[0] if errors else None

    def _require_items(self, promise: str, bars: Sequence[Bar], expected: Sequence[FeedItem]) -> None:
        items, error = self._read(bars)
        require(promise, error, kept=error is None)
        require_equal(promise, items, list(expected))

    def _require_refusal(
        self,
        wrong: str,
        bars: Sequence[Bar],
        before: Sequence[Bar | None],
        *kinds: type[MarketError],
    ) -> None:
        """Require the items before a wrong bar, and then an error. None stands for a note."""
        allowed = kinds or (BarSequenceError, BarFormatError)
        items, error = self._read(bars)
        names = " or ".join(kind.__name__ for kind in allowed)
        require(f"{wrong} raises {names}", repr(error), kept=isinstance(error, allowed))
        kept = [item if isinstance(item, Bar) else None for item in items]
        require_equal(f"the items before {wrong} come first", kept, list(before))


class _WaitingClock(SimClock):
    """A clock whose `sleep` never ends."""

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class LiveBarFeedSuite(BarFeedSuite):
    """The promises of `BarFeed`, and those of a feed with a clock. Override `feed` and `live_feed`."""

    def live_feed(self, bars: Sequence[Bar], clock: Clock) -> BarFeed:  # noqa: ARG002 - a subclass uses it
        """Return a new feed over these bars that yields a bar only after it has closed by this clock."""
        raise TypeError("override `live_feed`: return your feed with the given clock")

    def test_open_bar_is_held_back(self) -> None:
        """A bar whose window has not ended would be a look into the future."""
        bars = [self.bar(place) for place in range(3)]
        clock = SimClock(bars[2].open_time + self.timeframe.length / 5)
        items, error = self._items_of(self.live_feed(bars, clock))

        given = [item for item in items if isinstance(item, Bar)]
        require("an open bar is no error", error, kept=error is None)
        require_equal("a bar comes only after it has closed", given, bars[:2])
        notes = [item.kind for item in items if not isinstance(item, Bar)]
        require_equal("an open bar gives an UnclosedBar", notes, ["unclosed"])

    def test_wait_for_a_close_is_cancelled(self) -> None:
        """A session can end while its feed waits."""
        bar = self.bar(0)
        feed = self.live_feed([bar], _WaitingClock(bar.close_time - timedelta(seconds=1)))
        self.run_check(self._cancel_reading(feed))

    async def _cancel_reading(self, feed: BarFeed) -> None:
        items: list[FeedItem] = []

        async def read() -> None:
            async for item in feed:
                items.append(item)  # noqa: PERF401 - items before the cancellation count

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await asyncio.wait({reading}, timeout=_SHORT_S)
            reading.cancel()
            await asyncio.wait({reading}, timeout=self.timeout_s / 4)
            is_done = reading.done()
            reading.cancel()
        require("a feed that waits can be cancelled", "it still waited", kept=is_done)
        given = [item for item in items if isinstance(item, Bar)]
        require_equal("a bar comes only after it has closed", given, [])
