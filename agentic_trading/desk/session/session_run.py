"""Run one session in this process, live or from its recording."""

import asyncio
from array import array
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableSequence, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import assert_never
from zoneinfo import ZoneInfo

from agentic_trading.client.call_log import EarlierCalls
from agentic_trading.client.gateway import AskingGateway, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome, checked_outcome
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.decisions import CountingGateway, DecisionLoggingGateway, SessionCounters
from agentic_trading.desk.economics import CostOfQuestions, EconomicGateway
from agentic_trading.desk.exchange import Account, Exchange, Fill, OpenOrder
from agentic_trading.desk.execution.entry_halt import NoResumes, ResumeSource
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import TradeJournal
from agentic_trading.desk.execution.shortfall import Baselines
from agentic_trading.desk.execution.silent_feeds import SilenceLimit
from agentic_trading.desk.feed_watch import FeedWatch
from agentic_trading.desk.inference import DOLLARS, InferenceRate
from agentic_trading.desk.instrument import Instruments
from agentic_trading.desk.late_bars import GracePeriod
from agentic_trading.desk.market import feed as bar_feed
from agentic_trading.desk.market.bar import Bar, TradingYear
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.trading_session import MovableClock, TradingSession
from agentic_trading.desk.time_slices import ReferenceMarketFeed, TimeSlice
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.port_adapters import boards_of, first_useful, ledger_of
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.trading_limits import Economics, LossLimits


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """All inputs of a session.

    Attributes:
        config: The configuration of the session's platform, with one tenant. Its providers come from
            `answers`.
        ports: The ports of the platform, including the log.
        most_bars: The maximum number of bars of each feed, or None for all.
        answers: The source of answers.
        earlier_calls: The calls of an interrupted run over a bus.
        data: The name of the data.
        agent: The agent, or None for the shipped one of the data.
        ends_on_error: Whether an error of the agent ends the session.
        risk, economics: The limits of the configuration. Those of the agent hold too.
        inference_rate: The price of one US dollar in the quote currency. Empty for 1.
        zone: The time zone of the days of limits.
        resumes: The commands of operators that resume halted entries.
        grace: The wait for late bars of live feeds. None to wait for every feed.
        silence: The limit on the missing bars of a feed.

    """

    session_id: str
    config: PlatformConfig
    ports: Ports
    symbols: Sequence[str]
    feeds: Sequence[bar_feed.BarFeed]
    most_bars: int | None
    answers: trading.AnswerSource
    clock: MovableClock
    earlier_calls: EarlierCalls | None = None
    data: str = ""
    agent: Agent | None = None
    ends_on_error: bool = True
    risk: LossLimits = field(default_factory=LossLimits)
    economics: Economics = field(default_factory=Economics)
    inference_rate: str = ""
    zone: str = "UTC"
    resumes: ResumeSource = field(default_factory=NoResumes)
    grace: GracePeriod | None = None
    silence: SilenceLimit = field(default_factory=SilenceLimit)

    @property
    def question_limits(self) -> Economics:
        """The limits on the cost of questions, of the configuration and of the agent."""
        return self.economics if self.agent is None else self.agent.economics().narrowed_to(self.economics)

    @property
    def rate(self) -> InferenceRate:
        """The price of one US dollar in the quote currency."""
        text = self.inference_rate
        return InferenceRate.parse(text) if text else InferenceRate(DOLLARS[0], Decimal(1))


QUIET_BARS = 3
"""Minimum number of bars in a row without a trade that are reported as quiet."""


@dataclass(frozen=True, slots=True)
class QuietBars:
    """Bars in a row without a trade."""

    count: int
    start: datetime
    end: datetime


@dataclass(slots=True)
class BarCounts:
    """The bars of one symbol so far: their count, the first, the last, and the notes of the feed."""

    count: int = 0
    first: Bar | None = None
    last: Bar | None = None
    gaps: list[bar_feed.Gap] = field(default_factory=list)
    duplicates: int = 0
    unclosed: int = 0
    late: int = 0
    unread: list[str] = field(default_factory=list)
    _quiet: list[QuietBars] = field(default_factory=list)

    @property
    def quiet(self) -> list[QuietBars]:
        """The periods without a trade of at least `QUIET_BARS` bars, in order."""
        return [each for each in self._quiet if each.count >= QUIET_BARS]

    def add(self, bar: Bar) -> None:
        """Add the next bar."""
        if bar.volume == 0:
            self._add_quiet(bar)
        self.count += 1
        self.first = self.first or bar
        self.last = bar

    def note(self, note: bar_feed.Note) -> None:
        """Add a note of a feed."""
        match note:
            case bar_feed.Gap():
                self.gaps.append(note)
            case bar_feed.Duplicate():
                self.duplicates += 1
            case bar_feed.UnclosedBar():
                self.unclosed += 1
            case bar_feed.LateBar():
                self.late += 1
            case bar_feed.UnreadColumns():
                self.unread.extend(note.columns)
            case _:
                assert_never(note)

    def _add_quiet(self, bar: Bar) -> None:
        if self.last is not None and self.last.volume == 0:
            before = self._quiet.pop()
            self._quiet.append(QuietBars(before.count + 1, before.start, bar.close_time))
            return
        # A shorter period is dropped, so that the list does not grow with every bar without a trade.
        if self._quiet and self._quiet[-1].count < QUIET_BARS:
            self._quiet.pop()
        self._quiet.append(QuietBars(1, bar.open_time, bar.close_time))


@dataclass(slots=True)
class EquityCurve:
    """The value of the account at each close, its time, and the traded value in each bar.

    `year` is the year of the market, None before the first bar.
    """

    # Floats are exact enough, because only ratios are made of them. A year of bars takes two megabytes.

    equity: MutableSequence[float] = field(default_factory=lambda: array("d"))
    traded: MutableSequence[float] = field(default_factory=lambda: array("d"))
    times: MutableSequence[float] = field(default_factory=lambda: array("d"))
    year: TradingYear | None = None
    _fills: int = 0

    def net_of(self, costs: Mapping[datetime, Decimal], undated: Decimal) -> list[float]:
        """Return the equity at each close, less the costs up to it. `undated` counts from the start."""
        spent, left = (
            float(undated),
            deque(sorted((at.timestamp(), float(each)) for at, each in costs.items())),
        )
        net = []
        for at, equity in zip(self.times, self.equity, strict=True):
            while left and left[0][0] <= at:
                spent += left.popleft()[1]
            net.append(equity - spent)
        return net

    def add(self, at: datetime, bars: Sequence[Bar], equity: Decimal, fills: Sequence[Fill]) -> None:
        """Add the bars that close at a time. `fills` are all fills so far."""
        if bars:
            self.year = self.year or TradingYear(bars[0].timeframe)
            self.year.add(bars[0].open_time)
        self.times.append(at.timestamp())
        self.equity.append(float(equity))
        self.traded.append(float(sum(fill.notional for fill in fills[self._fills :])))
        self._fills = len(fills)


@dataclass(slots=True)
class SessionResult:
    """The result of a session so far: counts, intents, fills, the account, and open orders.

    Attributes:
        bars: The counts of the bars, by symbol.
        instruments: The instruments, on the price and quantity grids of all bars so far.
        companions: The shipped reference markets, by symbol.
        baselines: The baselines that run with the session, if it will be reported.

    """

    counters: SessionCounters = field(default_factory=SessionCounters)
    bars: defaultdict[str, BarCounts] = field(default_factory=lambda: defaultdict(BarCounts))
    instruments: Instruments = field(default_factory=lambda: Instruments(()))
    companions: Mapping[str, ReferenceMarketFeed] = field(default_factory=dict)
    intents: list[OrderIntent] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    curve: EquityCurve = field(default_factory=EquityCurve)
    baselines: Baselines | None = None
    account: Account | None = None
    open_orders: Sequence[OpenOrder] = ()

    @property
    def bars_done(self) -> int:
        """The number of bars of all symbols so far."""
        return sum(each.count for each in self.bars.values())

    @property
    def marks(self) -> dict[str, Decimal]:
        """The last close of each symbol."""
        return {symbol: each.last.close for symbol, each in self.bars.items() if each.last is not None}


async def _do_nothing(_slice: TimeSlice) -> None:
    """Do nothing before a time slice."""


@dataclass(frozen=True, slots=True)
class SessionObserver:
    """The callbacks of a session.

    Attributes:
        after_slice: Awaited after each time slice, with the slice's lines of the decision log.
        before_slice: Awaited before each time slice.
        wrap: Wraps the client. The agents use the result.
        on_start: Called with the session before it runs, so that the observer can stop it.

    """

    after_slice: Callable[[TimeSlice, Sequence[bytes]], Awaitable[None]]
    before_slice: Callable[[TimeSlice], Awaitable[None]] = _do_nothing
    wrap: Callable[[AskingGateway], AskingGateway] = lambda gateway: gateway
    on_start: Callable[[TradingSession], None] = lambda _session: None


async def play_session(setup: SessionSetup, result: SessionResult, observer: SessionObserver) -> None:
    """Run a session to its end, and update `result` during the run.

    All calls and records are in the store when this function returns or raises.

    Raises:
        TradingError: The first error that ends the session. `result` and the store have everything before it.

    """
    venue = trading.venue(setup.symbols, setup.data)
    exchange = trading.paper_exchange(venue)
    try:
        async with _gateway_of(setup) as gateway:
            await _trade(setup, result, observer, gateway, venue, exchange)
    except BaseExceptionGroup as group:  # because the agents of one time slice run concurrently
        raise first_useful(group) from group
    finally:
        result.account = await exchange.account()
        result.open_orders = await exchange.open_orders()


@asynccontextmanager
async def _gateway_of(setup: SessionSetup) -> AsyncGenerator[AskingGateway]:
    """Open the platform of a session, or its client if workers make the calls."""
    config = setup.config.model_copy(update={"fallback": dict(setup.answers.fallback)})
    if config.bus.url is None:
        async with _platform_of(setup, config) as platform:
            yield ClientChecks(platform) if setup.answers.of_bus else platform
        return
    if setup.ports.restore is not None and (url := config.ledger.url) is not None:
        async with AsyncExitStack() as stack:
            controls, statuses = await asyncio.to_thread(boards_of, url, None)
            ledger = await asyncio.to_thread(lambda: ledger_of(url, zone=ZoneInfo(config.zone)))
            for port in (controls, statuses, ledger):
                await stack.enter_async_context(aclosing(port))
            await setup.ports.restore(ledger, controls)
    store, earlier = setup.ports.store, setup.earlier_calls
    async with remote_gateway(config, name=setup.session_id, store=store, earlier=earlier) as client:
        yield client


def _platform_of(setup: SessionSetup, config: PlatformConfig) -> Platform:
    answers = setup.answers
    ports = replace(
        setup.ports,
        providers=answers.providers,
        clock=setup.clock,
        recorded=answers.recorded,
        lost=answers.lost,
        counts=answers.counts,
    )
    # A replay of a bus run has the checks of its workers, because otherwise it would ask again where the run did not.
    checks = trading.BUS_CHECKS if answers.of_bus else trading.CHECKS
    return Platform(config, ports, checks=checks, records_run=False)


class ClientChecks:
    """A gateway that checks typed answers after the call, as a client of a bus does."""

    def __init__(self, gateway: AskingGateway) -> None:
        self._gateway = gateway

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call."""
        return await self._gateway.ask(envelope, earlier=earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a typed call, and check its last answer."""
        outcome = await self._gateway.ask_structured(envelope)
        return outcome if check is None else checked_outcome(outcome, check)

    async def record(self, event: Event) -> None:
        """Record an event."""
        await self._gateway.record(event)


async def _trade(
    setup: SessionSetup,
    result: SessionResult,
    observer: SessionObserver,
    client: AskingGateway,
    venue: trading.PaperVenue,
    exchange: Exchange,
) -> None:
    zone = await asyncio.to_thread(ZoneInfo, setup.zone)
    cost = CostOfQuestions(setup.question_limits, setup.rate, zone, venue.cash)
    counted = CountingGateway(observer.wrap(client), result.counters)
    gateway = DecisionLoggingGateway(EconomicGateway(counted, cost))

    journal = TradeJournal(counted, setup.silence.clock or setup.clock, tenant_id=setup.config.tenant_ids[0])
    watch = FeedWatch(setup.session_id, setup.silence, journal)

    async def before_slice(time_slice: TimeSlice) -> None:
        await watch.before_slice()
        cost.begin(time_slice.at)
        await observer.before_slice(time_slice)

    async def after_slice(time_slice: TimeSlice) -> None:
        for bar in time_slice.bars:
            result.bars[bar.symbol].add(bar)
        for note in time_slice.notes:
            result.bars[note.symbol].note(note)
        await watch.after_slice(time_slice)
        equity = (await exchange.account()).equity(result.marks)
        cost.end(equity)
        result.curve.add(time_slice.at, time_slice.bars, equity, result.fills)
        if result.baselines is not None:
            await result.baselines.on_bars(time_slice.bars, result.intents)
        await observer.after_slice(time_slice, gateway.close())

    result.companions = await asyncio.to_thread(trading.companions, setup.symbols)
    session = trading.trading_session(
        venue,
        data=setup.data,
        timeframe=setup.feeds[0].timeframe,
        agent=setup.agent,
        ends_on_error=setup.ends_on_error,
        risk=setup.risk,
        zone=zone,
        resumes=setup.resumes,
        silence=setup.silence,
        session_id=setup.session_id,
        tenant=setup.config.tenant_ids[0],
        gateway=gateway,
        clock=setup.clock,
        exchange=exchange,
        answers=setup.answers,
        companions=result.companions,
        before_slice=before_slice,
        after_slice=after_slice,
    )
    result.instruments, result.intents, result.fills = venue.instruments, session.intents, session.fills
    observer.on_start(session)
    async with watch.watched():
        await session.run(setup.feeds, most_bars=setup.most_bars, grace=setup.grace)
