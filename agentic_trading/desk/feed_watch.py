"""The watch over the feeds of a session on paper: late bars are recorded, and a wait without bars raises an alarm."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

from agentic_trading.canonical import utc_text
from agentic_trading.clock import Clock
from agentic_trading.desk.execution.order_router import TradeJournal
from agentic_trading.desk.execution.silent_feeds import SilenceLimit, publish_feed_event
from agentic_trading.desk.feed_events import BarLeftOut, FeedResumed, FeedSilent
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.calendar import missing_between
from agentic_trading.desk.market.feed import LateBar
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.ids import derived_id


class FeedWatch:
    """Records late bars, and warns operators if no feed of a session sends bars.

    Its events are not in the decision log, because they depend on the clock of the machine. No decision
    depends on them: a late bar is left out, and without a time slice no agent runs.

    Args:
        session_id: The ids of its events are derived from it.
        limit: The limit on missing bars. Without a clock, no wait is watched.
        journal: Records the events.

    """

    def __init__(self, session_id: str, limit: SilenceLimit, journal: TradeJournal) -> None:
        self._session_id = session_id
        self._limit = limit
        self._journal = journal
        self._last: Bar | None = None
        self._waits_since: datetime | None = None
        self._is_silent = False

    async def before_slice(self) -> None:
        """End the wait for a time slice, because it has come."""
        self._waits_since = None
        if self._is_silent and self._last is not None:
            self._is_silent = False
            await self._publish(FeedResumed(symbol="", last_close=self._last.close_time))

    async def after_slice(self, time_slice: TimeSlice) -> None:
        """Record the late bars of a time slice, and begin to wait for the next one."""
        for note in time_slice.notes:
            if isinstance(note, LateBar):
                await self._record_late(note, time_slice.at)
        if self._limit.clock is not None:
            self._last = time_slice.bars[-1] if time_slice.bars else self._last
            self._waits_since = self._limit.clock.now()

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Watch the waits while the block runs."""
        clock = self._limit.clock
        if clock is None or self._limit.bars == 0:
            yield
            return
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(clock), name="feed-watch")
            try:
                yield
            finally:
                watching.cancel()

    async def _watch(self, clock: Clock) -> None:
        """Check the wait once in the length of a bar, or each second before the first bar."""
        while True:
            await clock.sleep(1.0 if self._last is None else self._last.timeframe.length.total_seconds())
            await self._check(clock.now())

    async def _check(self, now: datetime) -> None:
        last, since = self._last, self._waits_since
        if last is None or since is None or self._is_silent:
            return
        length = last.timeframe.length
        # Old bars close long before the wait begins, for example after a start.
        if now - max(since, last.close_time) < length * self._limit.bars:
            return
        newest = last.model_copy(update={"open_time": now - length})
        missing = missing_between(last, newest, self._limit.calendar)
        if missing >= self._limit.bars:
            self._is_silent = True
            await self._publish(FeedSilent(symbol="", last_close=last.close_time, missing=missing))

    async def _publish(self, event: FeedSilent | FeedResumed) -> None:
        await publish_feed_event(self._journal, event, self._session_id, event.last_close)
        if self._limit.clock is not None:
            self._limit.warn(event, self._limit.clock.now())

    async def _record_late(self, note: LateBar, at: datetime) -> None:
        late = BarLeftOut(symbol=note.symbol, timeframe=note.timeframe, open_time=note.open_time)
        trace_id = derived_id(self._session_id, late.KIND, note.symbol, utc_text(note.open_time))
        await self._journal.publish(late, derived_id(late.KIND, trace_id), trace_id, "", at)
