"""A trading session, which turns bars into intents, orders and fills, one time slice after the other."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from agentic_trading.cancellation import end_wait
from agentic_trading.clock import Clock
from agentic_trading.desk.exchange import ExecutionReport, Fill
from agentic_trading.desk.execution.agent import TimedFillStrategy
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter
from agentic_trading.desk.execution.risk import (
    Rejection,
)
from agentic_trading.desk.instrument import Instrument, Instruments
from agentic_trading.desk.late_bars import GracePeriod, merge_live
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from agentic_trading.llm.errors import NoDecision


class MovableClock(Clock, Protocol):
    """A clock that follows the market's time."""

    def advance_to(self, moment: datetime) -> None:
        """Move to `moment`, unless the clock is already later."""
        ...


class Executor(Protocol):
    """An agent that decides how to fill an intent."""

    async def decide(
        self, intent: OrderIntent, instrument: Instrument, bars: Sequence[Bar], spread_bps: Decimal
    ) -> TimedFillStrategy | NoDecision:
        """Return a fill strategy, or a `NoDecision`, in which case there is no order. Both are recorded."""
        ...


class IntentSource(Protocol):
    """The source of a session's intents for all symbols."""

    def push(self, bar: Bar) -> None:
        """Add the next closed bar of a symbol. Called before `intents` of the same time slice."""
        ...

    def bars(self, symbol: str) -> Sequence[Bar]:
        """Return the last closed bars of a symbol, oldest first, with at least the last pushed bar."""
        ...

    def report(self, reports: Sequence[ExecutionReport]) -> None:
        """Add the fills and cancellations of a bar, in the exchange's order."""
        ...

    async def intents(self, time_slice: TimeSlice) -> list[OrderIntent]:
        """Return the approved intents at the close of a time slice, after its fills.

        Rejected ones are recorded.
        """
        ...


class TradingSession:
    """A trading session. It sends bars to the exchange and to `source`, and turns intents into orders.

    Each time slice is completed before the next one starts. Calls for several symbols run concurrently, and
    orders are placed in the order of the intents, so that the order of the answers has no effect. A decision
    at the close of a bar is filled by the next bar at the earliest.

    Args:
        source: The source of intents.
        execution: The agent that decides how to fill an intent.
        router: Places orders and reports fills.
        instruments: The instruments, which are updated with every bar.
        spread_bps: The full spread that the exchange charges, in basis points.
        clock: The clock that follows the time slices.
        before_slice: Awaited before each time slice.
        after_slice: Awaited after each time slice.

    Attributes:
        intents: The intents whose orders were placed, in order.
        fills: All fills, in order.

    """

    def __init__(
        self,
        *,
        source: IntentSource,
        execution: Executor,
        router: OrderRouter,
        instruments: Instruments,
        spread_bps: Decimal,
        clock: MovableClock,
        before_slice: Callable[[TimeSlice], Awaitable[None]],
        after_slice: Callable[[TimeSlice], Awaitable[None]],
    ) -> None:
        self._source = source
        self._execution = execution
        self._router = router
        self._instruments = instruments
        self._spread_bps = spread_bps
        self._clock = clock
        self._before_slice = before_slice
        self._after_slice = after_slice
        self.intents: list[OrderIntent] = []
        self.fills: list[Fill] = []
        self._stopping = False
        self._waiting: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End after the current time slice. A wait for the next bar ends immediately. May be called twice."""
        self._stopping = True
        if self._waiting is not None:
            end_wait(self._waiting)

    async def run(
        self, feeds: Sequence[BarFeed], *, most_bars: int | None = None, grace: GracePeriod | None = None
    ) -> None:
        """Trade until the feeds end or `stop` is called. Everything before an error is recorded.

        Args:
            feeds: The feeds of bars, one per symbol.
            most_bars: The maximum number of bars of each feed, or None for all.
            grace: The wait for late bars of live feeds. None to wait for every feed.

        Raises:
            MarketError: If a bar is broken.
            StoreError: If the log cannot be written.
            BusError: If the bus cannot be used.

        """
        merged = (
            merge_feeds(feeds, most_bars=most_bars)
            if grace is None
            else merge_live(feeds, grace, most_bars=most_bars)
        )
        async with aclosing(merged) as sequence:
            while not self._stopping and (time_slice := await self._next(sequence)) is not None:
                await self._before_slice(time_slice)
                await self._process(time_slice)
                await self._after_slice(time_slice)

    async def _next(self, sequence: AsyncGenerator[TimeSlice]) -> TimeSlice | None:
        self._waiting = waiting = asyncio.timeout(None)
        try:
            async with waiting:
                return await anext(sequence, None)
        except TimeoutError:
            if not waiting.expired():
                raise  # an error of the feed, because otherwise a stream with a timeout would count as ended
            return None
        finally:
            self._waiting = None

    async def _process(self, time_slice: TimeSlice) -> None:
        self._clock.advance_to(time_slice.at)
        for bar in await self._router.fill_order(time_slice.bars):
            self._source.push(bar)
            self._instruments.see(bar.symbol, (bar.open, bar.high, bar.low, bar.close), bar.volume)
            reports = await self._router.on_bar(bar)
            self.fills.extend(report for report in reports if isinstance(report, Fill))
            self._source.report(reports)
        approved = await self._source.intents(time_slice)
        # Placed one by one in the order of the intents, so that a replay places the same orders.
        for intent, chosen in await self._strategies(approved):
            placed = await self._router.place(intent, chosen.strategy, known_at=chosen.known_at)
            if not isinstance(placed, Rejection):
                self.intents.append(intent)

    async def _strategies(
        self, intents: Sequence[OrderIntent]
    ) -> list[tuple[OrderIntent, TimedFillStrategy]]:
        """Ask concurrently how to fill each intent. An intent without a decision is left out."""
        if not intents:
            return []
        calls = []
        async with asyncio.TaskGroup() as group:
            for intent in intents:
                instrument, bars = self._instruments[intent.symbol], self._source.bars(intent.symbol)
                deciding = self._execution.decide(intent, instrument, bars, self._spread_bps)
                calls.append((intent, group.create_task(deciding, name=f"execution-{intent.symbol}")))
        decided = [(intent, task.result()) for intent, task in calls]
        return [(intent, chosen) for intent, chosen in decided if isinstance(chosen, TimedFillStrategy)]
