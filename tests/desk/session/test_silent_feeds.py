"""A silent feed halts the entries of its symbol until its next bar, and a session without bars warns its operators."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agentic_trading.desk import Agent, Bar, Desk
from agentic_trading.desk.exchange import Cancellation, Fill
from agentic_trading.desk.execution.silent_feeds import SilenceLimit
from agentic_trading.desk.late_bars import GracePeriod
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.calendar import ExchangeCalendar, MarketHours, OpenTimes
from agentic_trading.llm.event import Event
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from tests.desk.agents.trading import facts, played
from tests.desk.market.bars import MONDAY, bar
from tests.desk.test_late_bars import HandClock, LiveFeed, settled
from tests.flows.sessions import Evening, events_in

FIVE = timedelta(minutes=5)
KINDS = ("feed.silent", "feed.resumed")


class Both(Agent):
    """Buys one of each symbol that has had a bar at each close, and closes all at the closes in `leaves`."""

    def __init__(self, leaves: Sequence[int] = ()) -> None:
        super().__init__()
        self.leaves = leaves
        self.closes = 0
        self.traded = asyncio.Semaphore(0)
        self.reports: list[Fill | Cancellation] = []

    async def on_fill(self, desk: Desk, report: Fill | Cancellation) -> None:
        self.reports.append(report)

    async def on_close(self, desk: Desk) -> None:
        self.closes += 1
        self.traded.release()
        for symbol in desk.symbols:
            if not desk.history(symbol, 1):
                continue
            if self.closes in self.leaves:
                desk.close(symbol)
            else:
                desk.buy(symbol, notional=300)


def walk(symbol: str, places: Sequence[int]) -> list[Bar]:
    return [bar(place, "100.50", volume=10_000, symbol=symbol) for place in places]


async def traded(agent: Agent, a: Sequence[int], b: Sequence[int], limit: int, **changes: Any) -> Evening:
    bars = {"a": walk("AAA", a), "b": walk("BBB", b)}
    silence = changes.pop("silence", SilenceLimit(limit))
    return await played(agent, bars=bars, symbols=["AAA", "BBB"], silence=silence, **changes)


def close_of(event: Event) -> int:
    """Return the place of the bar at whose close an event was recorded."""
    assert event.as_of is not None
    return (event.as_of - MONDAY) // FIVE - 1


def shown(events: Sequence[Event]) -> list[tuple[str, str, int]]:
    return [(each.kind.removeprefix("feed."), each.body["symbol"], close_of(each)) for each in events]


def by_definition(has_bar: Sequence[bool], limit: int) -> tuple[list[tuple[str, str, int]], set[int]]:
    """Return the events of BBB, and the closes at which it is silent. Counts from the first bar of AAA."""
    changes, silent_at, missing, is_silent = [], set[int](), 0, False
    for place, has in enumerate(has_bar):
        if has:
            if is_silent:
                changes.append(("resumed", "BBB", place))
            missing, is_silent = 0, False
        elif place > 0:
            missing += 1
            if missing == limit:
                changes.append(("silent", "BBB", place))
                is_silent = True
        if is_silent:
            silent_at.add(place)
    return changes, silent_at


@given(st.lists(st.booleans(), min_size=2, max_size=25).filter(any), st.integers(1, 4))
def test_entries_of_a_symbol_are_denied_exactly_while_it_is_silent(has_bar: list[bool], limit: int) -> None:
    places = [place for place, has in enumerate(has_bar) if has]
    evening = asyncio.run(traded(Both(), range(len(has_bar)), places, limit))

    async def read() -> tuple[list[Event], list[Event], list[Event]]:
        denied = await facts(evening, "intent.denied")
        return await facts(evening, *KINDS), await facts(evening, "intent.approved"), denied

    events, approved, denied = asyncio.run(read())
    changes, silent_at = by_definition(has_bar, limit)
    assert shown(events) == changes
    bought = {(each.body["symbol"], close_of(each)) for each in approved}
    had_bar = {place for place in range(len(has_bar)) if any(has_bar[: place + 1])}
    assert {place for symbol, place in bought if symbol == "BBB"} == had_bar - silent_at
    assert {place for symbol, place in bought if symbol == "AAA"} == set(range(len(has_bar)))
    assert {(each.body["symbol"], each.body["rule"], close_of(each)) for each in denied} == {
        ("BBB", "feed_silent", place) for place in silent_at & had_bar
    }


async def test_silent_symbol_can_be_closed_and_its_unfilled_entries_are_cancelled() -> None:
    class Resting(Both):
        def order_lives(self, timeframe: Timeframe) -> timedelta:
            return timedelta(hours=2)

        async def on_close(self, desk: Desk) -> None:
            self.closes += 1
            if self.closes == 1:
                for symbol in desk.symbols:
                    desk.buy(symbol, notional=300)
                    desk.buy(symbol, notional=300, limit=96)
            if self.closes == 5:
                desk.close("BBB")

    agent = Resting()
    await traded(agent, range(8), [0, 1, 7], 3)

    ended = [each for each in agent.reports if isinstance(each, Cancellation)]
    assert [(each.symbol, each.time) for each in ended] == [("BBB", MONDAY + 5 * FIVE)]
    sold = [each for each in agent.reports if isinstance(each, Fill) and each.side.sign < 0]
    assert [(each.symbol, each.time) for each in sold] == [("BBB", MONDAY + 8 * FIVE)]


async def test_backtest_without_a_limit_has_no_silent_feed() -> None:
    evening = await traded(Both(), range(20), [0, 19], 0)

    assert await facts(evening, *KINDS, "intent.denied") == []


async def test_closed_hours_are_no_silence() -> None:
    """Both symbols pause over the night, and BBB opens two bars late. The calendar has no bars at night."""
    day = [MONDAY + place * FIVE for place in (*range(6), *range(100, 106))]
    calendar = OpenTimes(day)
    evening = await traded(
        Both(),
        [*range(6), *range(100, 106)],
        [*range(6), *range(102, 106)],
        3,
        silence=SilenceLimit(3, calendar),
    )
    without = await traded(Both(), [*range(6), *range(100, 106)], [*range(6), *range(102, 106)], 3)

    assert await facts(evening, *KINDS) == []
    assert shown(await facts(without, *KINDS)) == [("silent", "BBB", 100), ("resumed", "BBB", 102)]


class Live:
    """A session on paper over one or two live feeds, and its records."""

    def __init__(self, *symbols: str, limit: int = 3, **changes: Any) -> None:
        self.clock = HandClock(MONDAY + FIVE)
        self.feeds = [LiveFeed(symbol) for symbol in symbols]
        self.store = MemoryInteractionStore()
        self.agent = Both()
        self.waited = 0
        self.evening: Evening
        grace = GracePeriod(self.clock, timedelta(seconds=30), set(symbols)) if len(symbols) > 1 else None
        self._changes: dict[str, Any] = {
            "feeds": self.feeds,
            "symbols": symbols,
            "store": self.store,
            "grace": grace,
            "silence": SilenceLimit(limit, clock=self.clock, **changes),
        }

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the session while the block runs, and end its feeds."""
        async with asyncio.TaskGroup() as group:
            session = group.create_task(played(self.agent, bars={}, **self._changes))
            yield
            for feed in self.feeds:
                await feed.send(None)
            self.evening = await session

    async def traded(self, closes: int) -> None:
        """Wait until the session has traded so many closes, and waits for the next one."""
        for _ in range(closes - self.waited):
            await self.agent.traded.acquire()
        self.waited = closes
        await settled()

    async def trade_without_second(self) -> None:
        """Trade five bars of the first symbol. The second one has only the first bar."""
        async with self.running():
            await self.feeds[1].send(bar(0, symbol="BBB"))
            for place in range(5):
                await self.feeds[0].send(bar(place, symbol="AAA"))
                await self.clock.move_to(MONDAY + (place + 1) * FIVE + timedelta(seconds=31))
                await self.traded(place + 1)

    async def events(self, *kinds: str) -> list[Event]:
        return events_in([entry.record async for entry in self.store.scan()], *(kinds or KINDS))


async def test_session_without_bars_warns_once_and_ends_the_warning_with_a_bar() -> None:
    live = Live("AAA")
    with capture_logs() as logged:
        async with live.running():
            await live.feeds[0].send(bar(0, symbol="AAA"))
            await live.traded(1)
            await live.clock.move_to(MONDAY + 4 * FIVE - timedelta(seconds=1))
            early = await live.events()
            for steps in (4, 5, 6, 9):
                await live.clock.move_to(MONDAY + steps * FIVE)
            silent = await live.events()
            await live.feeds[0].send(bar(8, symbol="AAA"))
            await live.traded(2)

    assert early == []
    (event,) = silent
    assert event.body["symbol"] == ""
    assert event.body["last_close"] == "2026-01-05T00:05:00Z"
    assert event.body["missing"] >= 3
    assert [each.kind for each in await live.events()] == list(KINDS)
    assert [(each["event"], each["log_level"]) for each in logged if each["event"].startswith("feed_")] == [
        ("feed_silent", "warning"),
        ("feed_resumed", "warning"),
    ]
    assert not any(b'"feed.' in line for line in live.evening.log)
    assert live.evening.played.counters.silences == {"": 1}


async def test_one_silent_feed_of_two_is_in_the_decision_log() -> None:
    live = Live("AAA", "BBB")
    with capture_logs() as logged:
        await live.trade_without_second()

    assert shown(await live.events()) == [("silent", "BBB", 3)]
    assert sum(b'"feed.silent"' in line for line in live.evening.log) == 1
    assert [each["symbol"] for each in logged if each["event"] == "feed_silent"] == ["BBB"]


async def test_known_silence_of_a_resumed_run_warns_no_operator_again() -> None:
    live = Live("AAA", "BBB", known_until=MONDAY + 10 * FIVE)
    with capture_logs() as logged:
        await live.trade_without_second()

    assert shown(await live.events()) == [("silent", "BBB", 3)]
    assert not [each for each in logged if each["event"] == "feed_silent"]


async def test_old_bars_after_a_start_are_no_silence() -> None:
    live = Live("AAA")
    async with live.running():
        await live.clock.move_to(MONDAY + timedelta(days=2))
        await live.feeds[0].send(bar(0, symbol="AAA"))
        await live.traded(1)
        await live.clock.move_to(MONDAY + timedelta(days=2) + 2 * FIVE)
        early = await live.events()
        await live.clock.move_to(MONDAY + timedelta(days=2) + 4 * FIVE)
        silent = await live.events()

    assert early == []
    assert [each.body["symbol"] for each in silent] == [""]


async def test_wait_over_closed_hours_warns_no_operator() -> None:
    hours = [
        MarketHours((MONDAY + day).date(), MONDAY + day, MONDAY + day + 12 * FIVE)
        for day in map(timedelta, (0, 1))
    ]
    live = Live("AAA", calendar=ExchangeCalendar("TEST", hours))
    async with live.running():
        await live.clock.move_to(MONDAY + 12 * FIVE)
        await live.feeds[0].send(*(bar(place, symbol="AAA") for place in range(12)))
        await live.traded(12)
        await live.clock.move_to(MONDAY + timedelta(days=1))
        night = await live.events()
        for steps in range(1, 6):
            await live.clock.move_to(MONDAY + timedelta(days=1) + steps * FIVE)
        morning = await live.events()

    assert night == []
    assert [each.body["symbol"] for each in morning] == [""]


async def test_late_bar_is_on_record_and_not_in_the_decision_log() -> None:
    live = Live("AAA", "BBB")
    one, other = live.feeds
    async with live.running():
        await one.send(bar(0, symbol="AAA"), bar(1, symbol="AAA"))
        await other.send(bar(0, symbol="BBB"))
        await live.traded(1)
        await live.clock.move_to(MONDAY + 2 * FIVE + timedelta(seconds=31))
        await live.traded(2)
        await one.send(bar(2, symbol="AAA"))
        await other.send(bar(1, symbol="BBB"), bar(2, symbol="BBB"))
        await live.traded(3)

    (late,) = await live.events("feed.bar_left_out")
    assert late.body == {"symbol": "BBB", "timeframe": "5m", "open_time": "2026-01-05T00:05:00Z"}
    assert not any(b'"feed.bar_left_out"' in line for line in live.evening.log)


@pytest.mark.parametrize("workers", [1, 8])
async def test_number_of_workers_changes_no_line(workers: int) -> None:
    one = await traded(Both(), range(12), [0, 1, 6, 7, 8, 11], 2)
    other = await traded(Both(), range(12), [0, 1, 6, 7, 8, 11], 2, workers=workers)

    assert one.digest == other.digest
    assert sum(b'"feed.' in line for line in one.log) == 4
