"""A trading session, from bars to fills: one time slice after the other, intents become orders."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from agentic_trading.cancellation import end_wait
from agentic_trading.clock import Clock
from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.execution.agent import TimedFillStrategy
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter
from agentic_trading.desk.execution.risk import (
    Rejection,
)
from agentic_trading.desk.instrument import Instrument, Instruments
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.time_slices import TimeSlice, merge_feeds
from agentic_trading.llm.errors import NoDecision


class MovableClock(Clock, Protocol):
    """A clock that follows the market's time."""

    def advance_to(self, moment: datetime) -> None:
        """Be at `moment`, or later."""
        ...


class Executor(Protocol):
    """An agent that decides how an intent shall be filled."""

    async def decide(
        self, intent: OrderIntent, instrument: Instrument, bars: Sequence[Bar], spread_bps: Decimal
    ) -> TimedFillStrategy | NoDecision:
        """Return how, or why there is no decision: then no order comes of the intent; all of it on record."""
        ...


class IntentSource(Protocol):
    """Where the intents of a session come from, the same for all its symbols."""

    def push(self, bar: Bar) -> None:
        """Take the next closed bar of a symbol, before anything of its time slice is done."""
        ...

    def bars(self, symbol: str) -> Sequence[Bar]:
        """Return the last closed bars of a symbol, oldest first: at least the one that was pushed last."""
        ...

    async def intents(self, time_slice: TimeSlice) -> list[OrderIntent]:
        """Return what was approved at the close of a time slice, after its fills; what was not is on record."""
        ...


class TradingSession:
    """Carry bars to the exchange and to `source`, its intents to the execution agent, and strategies to orders.

    Everything of one time slice is done before time moves on. Calls of several symbols run at once; orders are placed
    in the order of the intents, so that the order of the answers decides nothing. `instruments` follow every bar.
    `spread_bps` is the whole spread that the exchange charges.
    A decision taken at a bar's close can be filled by the next bar at the earliest. `before_slice` is awaited before
    anything of a time slice is done, `after_slice` when all is. `intents` are those whose orders were placed, `fills`
    all fills, each in order.
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
        """End after the present time slice; a wait for the next bar ends at once. Harmless twice."""
        self._stopping = True
        if self._waiting is not None:
            end_wait(self._waiting)

    async def run(self, feeds: Sequence[BarFeed], *, most_bars: int | None = None) -> None:
        """Trade until the feeds end or `stop` is called.

        Raises what a feed raises for a bar that is none, `StoreError` and `BusError`; what came before is on record.
        """
        async with aclosing(merge_feeds(feeds, most_bars=most_bars)) as sequence:
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
                raise  # of the feed: a stream that timed out has not ended
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
        approved = await self._source.intents(time_slice)
        for intent, chosen in await self._strategies(approved):
            placed = await self._router.place(intent, chosen.strategy, known_at=chosen.known_at)
            if not isinstance(placed, Rejection):
                self.intents.append(intent)

    async def _strategies(
        self, intents: Sequence[OrderIntent]
    ) -> list[tuple[OrderIntent, TimedFillStrategy]]:
        """Ask how each intent shall be filled, all at once; an intent without a decision gets no order."""
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
