"""The main job: a trading session from bars to fills."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Protocol

from agentic_trading.cancellation import end_wait
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.analysis.analyst import CmtAnalyst
from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.plan import TradePlan
from agentic_trading.desk.analysis.portfolio_context import Holding, PortfolioContext
from agentic_trading.desk.exchange import Account, Exchange, Fill, OpenOrder
from agentic_trading.desk.execution.agent import ExecutionAgent, TimedFillStrategy
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter
from agentic_trading.desk.execution.risk import (
    Approved,
    EntryProposal,
    Rejection,
    RiskFacts,
    RiskLimits,
    propose_entry,
    propose_exit,
)
from agentic_trading.desk.instrument import EXACT, ZERO, Instruments
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.correlation import ReferenceMarket
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.time_slices import ReferenceMarketFeed, TimeSlice, merge_feeds
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event


def holdings(
    account: Account,
    orders: Iterable[OpenOrder],
    marks: Mapping[str, Decimal],
    markets: Mapping[str, ReferenceMarket],
) -> tuple[Holding, ...]:
    """Return the open positions in order of symbol, at their marks.

    `orders` are those that can still trade or guard what they filled; `markets` hold the closes of each symbol.
    Raises `KeyError` for a position without a mark or a market.
    """
    guards = list(orders)
    return tuple(
        Holding(
            symbol=held.symbol,
            value=EXACT.multiply(held.quantity, marks[held.symbol]),
            to_stop=loss_to_stops(held.symbol, held.quantity.copy_abs(), guards, marks[held.symbol]),
            market=markets[held.symbol],
        )
        for held in account.positions
    )


def loss_to_stops(
    symbol: str, quantity: Decimal, orders: Iterable[OpenOrder], mark: Decimal
) -> Decimal | None:
    """Return what `quantity` of a symbol loses between its mark and its stops, in the quote currency.

    None where less than all of it has a stop. A stop that the mark has passed costs nothing more.
    """
    guarded, loss = ZERO, ZERO
    for each in orders:
        order = each.order
        if order.symbol == symbol and order.stop_loss is not None and each.guarded > 0:
            distance = EXACT.multiply(order.side.sign, EXACT.subtract(mark, order.stop_loss))
            guarded = EXACT.add(guarded, each.guarded)
            loss = EXACT.fma(each.guarded, max(distance, ZERO), loss)
    return loss if guarded >= quantity else None


BARS_SHOWN = 48
"""How many of the last bars the execution agent is told about: four hours of five minutes."""


class MovableClock(Clock, Protocol):
    """A clock that is told the market's time."""

    def advance_to(self, moment: datetime) -> None:
        """Be at `moment`, or later."""
        ...


@dataclass(slots=True)
class SymbolDesk:
    """What one symbol needs: its view of the market, its analyst, a market to compare with, and the last bars.

    `neighbour` is the view of another symbol of the session; where there is none, `companion` may know one.
    `is_due` says that a bar of the decision timeframe has closed with the last bar, so that the analyst shall look.
    """

    view: MarketView
    analyst: CmtAnalyst
    neighbour: MarketView | None = None
    companion: ReferenceMarketFeed | None = None
    bars: list[Bar] = field(default_factory=list)
    is_due: bool = False

    def push(self, bar: Bar) -> None:
        """Take the next closed bar."""
        closed = self.view.push(bar, as_of=bar.close_time)
        self.is_due = any(each.bar.timeframe is self.view.decision for each in closed)
        if self.companion is not None:
            self.companion.push(bar)
        self.bars.append(bar)
        del self.bars[:-BARS_SHOWN]

    def snapshot(self) -> MarketSnapshot:
        """Return the market at the close of the newest bar, beside the second one if there is one."""
        moment = self.bars[-1].close_time
        second = self.neighbour or self.companion
        return self.view.snapshot(moment, beside=None if second is None else second.second_market(moment))


@dataclass(frozen=True, slots=True)
class TradingRules:
    """How an assessment becomes an intent: percent of the equity at risk, and how long the intent lives."""

    risk_pct: Decimal = Decimal(1)
    intent_lives: timedelta = timedelta(hours=1)


class TradingSession:
    """Carry bars to the exchange and the analysts, assessments to intents, strategies to orders.

    Everything at one moment is done before time moves on. Calls of several symbols run at once; what changes the
    book is done one symbol after the other, in order of symbol, so that the answers' order decides nothing, and what
    was approved for one symbol counts when the next one is sized. `instruments` learn from every bar. `spread_bps`
    is the whole spread that the exchange charges.
    A decision taken at a bar's close can be filled by the next bar at the earliest. `before_moment` is awaited before
    anything is done at a moment, `after_moment` when all is. `intents` are those whose orders were placed, `fills` what
    came of them, each in order.
    """

    def __init__(
        self,
        *,
        desks: Mapping[str, SymbolDesk],
        execution: ExecutionAgent,
        trader: OrderRouter,
        exchange: Exchange,
        instruments: Instruments,
        spread_bps: Decimal,
        gateway: Gateway,
        clock: MovableClock,
        limits: RiskLimits,
        rules: TradingRules,
        before_moment: Callable[[TimeSlice], Awaitable[None]],
        after_moment: Callable[[TimeSlice], Awaitable[None]],
    ) -> None:
        self._desks = desks
        self._execution = execution
        self._trader = trader
        self._exchange = exchange
        self._instruments = instruments
        self._spread_bps = spread_bps
        self._gateway = gateway
        self._clock = clock
        self._limits = limits
        self._rules = rules
        self._before_moment = before_moment
        self._after_moment = after_moment
        self.intents: list[OrderIntent] = []
        self.fills: list[Fill] = []
        self._stopping = False
        self._waiting: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End after the moment under way; a wait for the next bar ends at once. Harmless twice."""
        self._stopping = True
        if self._waiting is not None:
            end_wait(self._waiting)

    async def run(self, feeds: Sequence[BarFeed], *, most_bars: int | None = None) -> None:
        """Trade until the feeds end or `stop` is called.

        Raises what a feed raises for a bar that is none, `StoreError` and `BusError`; what came before is on record.
        """
        async with aclosing(merge_feeds(feeds, most_bars=most_bars)) as sequence:
            while not self._stopping and (moment := await self._next(sequence)) is not None:
                await self._before_moment(moment)
                await self._live_through(moment)
                await self._after_moment(moment)

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

    async def _live_through(self, moment: TimeSlice) -> None:
        self._clock.advance_to(moment.at)
        for bar in moment.bars:
            self._desks[bar.symbol].push(bar)
            self._instruments.see(bar.symbol, (bar.open, bar.high, bar.low, bar.close), bar.volume)
            reports = await self._trader.on_bar(bar)
            self.fills.extend(report for report in reports if isinstance(report, Fill))
        approved: list[OrderIntent] = []
        for assessment in await self._assess(moment):
            approved.extend(await self._intents(assessment, approved))
        for intent, chosen in await self._strategies(approved):
            placed = await self._trader.place(intent, chosen.strategy, known_at=chosen.known_at)
            if not isinstance(placed, Rejection):
                self.intents.append(intent)

    async def _assess(self, moment: TimeSlice) -> list[Assessment]:
        """Let every analyst who is due look at the moment, all at once; return what they decided, in order of symbol."""
        due = [bar.symbol for bar in moment.bars if self._desks[bar.symbol].is_due]
        if not due:
            return []
        asked = []
        account = await self._exchange.account()
        held = {position.symbol: position for position in account.positions}
        book = await self._book(moment, account)
        async with asyncio.TaskGroup() as group:
            for symbol in due:
                desk = self._desks[symbol]
                looking = desk.analyst.consider(desk.snapshot(), position=held.get(symbol), book=book)
                asked.append(group.create_task(looking, name=f"analyst-{symbol}"))
        return [each for task in asked if isinstance(each := task.result(), Assessment)]

    async def _book(self, moment: TimeSlice, account: Account) -> PortfolioContext:
        """Return the account as the analysts are told it, at the last closes."""
        facts, seen = await self._trader.facts(moment.bars[0].symbol, moment.at), self._desks.items()
        limits, by_equity = self._limits, facts.equity * self._limits.max_exposure_pct / 100
        return PortfolioContext(
            equity=facts.equity,
            gross=facts.gross,
            risk_pct=self._rules.risk_pct,
            largest=min(limits.max_order_notional, limits.max_position_notional, by_equity),
            holdings=holdings(
                account,
                await self._exchange.open_orders(),
                marks={symbol: desk.bars[-1].close for symbol, desk in seen if desk.bars},
                markets={symbol: desk.view.second_market(moment.at) for symbol, desk in seen},
            ),
        )

    async def _intents(self, assessment: Assessment, approved: Sequence[OrderIntent]) -> list[OrderIntent]:
        """Turn an assessment into at most one intent, beside those approved at this moment; what hinders is on record."""
        plan = assessment.plan
        if plan is None:
            return []
        facts = await self._trader.facts(assessment.symbol, assessment.as_of)
        held = facts.position * plan.side.sign
        if held > 0:
            await self._note(
                assessment, "intent.skipped", {"reason": "position_open", "position": facts.position}
            )
            return []
        await self._trader.withdraw(assessment.symbol)
        facts = (await self._trader.facts(assessment.symbol, assessment.as_of)).with_approved(approved)
        proposed = self._exit(assessment, facts) if held else self._entry(assessment, plan, facts)
        match proposed:
            case Approved(intent=intent):
                return [intent]
            case Rejection():
                await self._note(assessment, "intent.rejected", proposed.model_dump(mode="json"))
                return []

    def _entry(self, assessment: Assessment, plan: TradePlan, facts: RiskFacts) -> Approved | Rejection:
        proposal = EntryProposal(
            side=plan.side,
            entry=plan.entry if plan.entry_type == "limit" else None,
            stop=plan.stop,
            target=plan.target,
            risk_pct=self._rules.risk_pct,
            reason=f"{assessment.verdict}: total {assessment.total}, reward for risk {plan.risk_reward}",
            as_of=assessment.as_of,
            expires_at=assessment.as_of + self._rules.intent_lives,
            trace_id=assessment.trace_id,
            causation_id=assessment.assessment_id,
        )
        return propose_entry(proposal, self._limits, self._instruments[assessment.symbol], facts)

    def _exit(self, assessment: Assessment, facts: RiskFacts) -> Approved | Rejection:
        return propose_exit(
            f"{assessment.verdict} against the open position",
            self._limits,
            self._instruments[assessment.symbol],
            facts,
            as_of=assessment.as_of,
            expires_at=assessment.as_of + self._rules.intent_lives,
            trace_id=assessment.trace_id,
            causation_id=assessment.assessment_id,
        )

    async def _strategies(
        self, intents: Sequence[OrderIntent]
    ) -> list[tuple[OrderIntent, TimedFillStrategy]]:
        """Ask how each intent shall be filled, all at once; an intent without a decision gets no order."""
        asked = []
        async with asyncio.TaskGroup() as group:
            for intent in intents:
                instrument, bars = self._instruments[intent.symbol], self._desks[intent.symbol].bars
                deciding = self._execution.decide(intent, instrument, bars, self._spread_bps)
                asked.append((intent, group.create_task(deciding, name=f"execution-{intent.symbol}")))
        decided = [(intent, task.result()) for intent, task in asked]
        return [(intent, chosen) for intent, chosen in decided if isinstance(chosen, TimedFillStrategy)]

    async def _note(self, assessment: Assessment, kind: str, body: Mapping[str, object]) -> None:
        event = Event(
            kind=kind,
            id=derived_id(kind, assessment.assessment_id),
            trace_id=assessment.trace_id,
            causation_id=assessment.assessment_id,
            as_of=assessment.as_of,
            time=self._clock.now(),
            body={"symbol": assessment.symbol, **body},
        )
        await self._gateway.record(event)
