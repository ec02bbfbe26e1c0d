"""One session played within this process, live or from its recording."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agentic_trading.app import wire, wire_budgets
from agentic_trading.app.local import running_workers
from agentic_trading.app.options import RunMode
from agentic_trading.client.gateway import Gateway
from agentic_trading.desk.decisions import CountingGateway, DecisionLoggingGateway, SessionCounters
from agentic_trading.desk.exchange import Account, Exchange, Fill, OpenOrder
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.feed import BarFeed, Duplicate, Gap
from agentic_trading.desk.session import MovableClock, TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.governance.ledger import Ledger
from agentic_trading.llm.store import InteractionStore


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """All that a session is played with."""

    session_id: str
    mode: RunMode
    symbols: Sequence[str]
    feeds: Sequence[BarFeed]
    most_bars: int | None
    answers: wire.AnswerSource
    tables: wire.Tables
    store: InteractionStore
    ledger: Ledger
    clock: MovableClock
    workers: int
    oversight: wire_budgets.BudgetControls | None = None


@dataclass(slots=True)
class SessionResult:
    """What a session came to so far: counts, bars and notes as they were fed, intents and fills, the account, and what is still open."""

    tally: SessionCounters = field(default_factory=SessionCounters)
    bars: list[Bar] = field(default_factory=list)
    notes: list[Gap | Duplicate] = field(default_factory=list)
    intents: list[OrderIntent] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    account: Account | None = None
    open_orders: Sequence[OpenOrder] = ()


AfterMoment = Callable[[TimeSlice, Sequence[bytes]], Awaitable[None]]


async def _nothing_to_do(_moment: TimeSlice) -> None:
    """Let a moment begin."""


@dataclass(frozen=True, slots=True)
class SessionObserver:
    """Who looks on while a session is played.

    `after_moment` is told each moment when it is over, with its lines of the decision log; `before_moment` before
    anything is done at it. `around` wraps the gateway that the agents see, `hold` is handed the session before it
    starts, to stop it.
    """

    after_moment: AfterMoment
    before_moment: Callable[[TimeSlice], Awaitable[None]] = _nothing_to_do
    around: Callable[[Gateway], Gateway] = lambda gateway: gateway
    hold: Callable[[TradingSession], None] = lambda _session: None


async def run_play(stage: SessionSetup, played: SessionResult, watch: SessionObserver) -> None:
    """Play a session to its end and fill `played` as it goes.

    Everything asked and recorded is in the store when this returns or raises. Raises the first `TradingError` that
    ends the session; what came before it is in `played` and in the store.
    """
    broker = wire.memory_broker()
    venue = wire.venue(stage.symbols)
    exchange = wire.paper_exchange(venue)
    pool = wire.worker_pool(
        mode=stage.mode,
        broker=broker,
        store=stage.store,
        ledger=stage.ledger,
        answers=stage.answers,
        tables=stage.tables,
        clock=stage.clock,
        workers=stage.workers,
        oversight=stage.oversight,
    )
    try:
        async with running_workers(pool, broker) as client:
            await _trade(stage, played, watch, client, venue, exchange)
    except BaseExceptionGroup as group_of_errors:
        raise _first(group_of_errors) from group_of_errors
    finally:
        played.account = await exchange.account()
        played.open_orders = await exchange.open_orders()


async def _trade(
    stage: SessionSetup,
    played: SessionResult,
    watch: SessionObserver,
    client: Gateway,
    venue: wire.PaperVenue,
    exchange: Exchange,
) -> None:
    blotter = DecisionLoggingGateway(CountingGateway(watch.around(client), played.tally))

    async def over(moment: TimeSlice) -> None:
        played.bars.extend(moment.bars)
        played.notes.extend(moment.notes)
        await watch.after_moment(moment, blotter.close())

    beside = await asyncio.to_thread(wire.companions, stage.symbols)
    session = wire.trading_session(
        venue,
        session_id=stage.session_id,
        gateway=blotter,
        clock=stage.clock,
        exchange=exchange,
        answers=stage.answers,
        beside=beside,
        before_moment=watch.before_moment,
        after_moment=over,
    )
    played.intents, played.fills = session.intents, session.fills
    watch.hold(session)
    await session.run(stage.feeds, most_bars=stage.most_bars)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that a user can do something about, or else the first one."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, TradingError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
