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
from agentic_trading.platform import adapters


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """All that a session is played with.

    `most_bars` is for each feed, None for all of them; `workers` is how many calls run at once. Without `oversight` there
    are no controls, statuses or rates.
    """

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
    """A session so far: counts, bars and notes as they were fed, intents and fills, the account, and open orders."""

    counters: SessionCounters = field(default_factory=SessionCounters)
    bars: list[Bar] = field(default_factory=list)
    notes: list[Gap | Duplicate] = field(default_factory=list)
    intents: list[OrderIntent] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    account: Account | None = None
    open_orders: Sequence[OpenOrder] = ()


async def _do_nothing(_slice: TimeSlice) -> None:
    """Do nothing before a time slice."""


@dataclass(frozen=True, slots=True)
class SessionObserver:
    """What is called while a session is played.

    `before_slice` is awaited before anything of a time slice is done; `after_slice` when all is, with its lines of the
    decision log. `wrap` makes of the client the gateway that the agents see. `on_start` is called with the session before
    it runs, so that the observer can stop it.
    """

    after_slice: Callable[[TimeSlice, Sequence[bytes]], Awaitable[None]]
    before_slice: Callable[[TimeSlice], Awaitable[None]] = _do_nothing
    wrap: Callable[[Gateway], Gateway] = lambda gateway: gateway
    on_start: Callable[[TradingSession], None] = lambda _session: None


async def play_session(setup: SessionSetup, result: SessionResult, observer: SessionObserver) -> None:
    """Play a session to its end and fill `result` as it goes.

    Everything asked and recorded is in the store when this returns or raises. Raises the first `TradingError` that
    ends the session; what came before it is in `result` and in the store.
    """
    broker = adapters.memory_broker()
    venue = wire.venue(setup.symbols)
    exchange = wire.paper_exchange(venue)
    pool = wire.worker_pool(
        mode=setup.mode,
        broker=broker,
        store=setup.store,
        ledger=setup.ledger,
        answers=setup.answers,
        tables=setup.tables,
        clock=setup.clock,
        workers=setup.workers,
        oversight=setup.oversight,
    )
    try:
        async with running_workers(pool, broker) as client:
            await _trade(setup, result, observer, client, venue, exchange)
    except BaseExceptionGroup as group_of_errors:
        raise _first_useful(group_of_errors) from group_of_errors
    finally:
        result.account = await exchange.account()
        result.open_orders = await exchange.open_orders()


async def _trade(
    setup: SessionSetup,
    result: SessionResult,
    observer: SessionObserver,
    client: Gateway,
    venue: wire.PaperVenue,
    exchange: Exchange,
) -> None:
    gateway = DecisionLoggingGateway(CountingGateway(observer.wrap(client), result.counters))

    async def after_slice(time_slice: TimeSlice) -> None:
        result.bars.extend(time_slice.bars)
        result.notes.extend(time_slice.notes)
        await observer.after_slice(time_slice, gateway.close())

    session = wire.trading_session(
        venue,
        session_id=setup.session_id,
        gateway=gateway,
        clock=setup.clock,
        exchange=exchange,
        answers=setup.answers,
        companions=await asyncio.to_thread(wire.companions, setup.symbols),
        before_slice=observer.before_slice,
        after_slice=after_slice,
    )
    result.intents, result.fills = session.intents, session.fills
    observer.on_start(session)
    await session.run(setup.feeds, most_bars=setup.most_bars)


def _first_useful(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that a user can do something about, or else the first one."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, TradingError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
