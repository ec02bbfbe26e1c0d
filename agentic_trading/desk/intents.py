"""From time slices to intents: ask analysts, size assessments, check limits."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Protocol

from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.plan import TradePlan
from agentic_trading.desk.analysis.portfolio_context import Holding, PortfolioContext
from agentic_trading.desk.exchange import Account, Exchange, OpenOrder, Position
from agentic_trading.desk.execution import risk
from agentic_trading.desk.execution.events import IntentDenied, IntentSkipped
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.instrument import EXACT, ZERO, Instruments
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.correlation import ReferenceMarket
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Skip
from agentic_trading.desk.time_slices import ReferenceMarketFeed, TimeSlice
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody

BARS_SHOWN = 48
"""The number of last bars in the execution agent's evidence: four hours of five minutes."""


class Analyst(Protocol):
    """An agent that analyses one symbol."""

    async def consider(
        self,
        snapshot: MarketSnapshot,
        *,
        position: Position | None = None,
        portfolio: PortfolioContext | None = None,
    ) -> Assessment | NoDecision | Skip:
        """Analyse a symbol at a close, and record the outcome.

        Returns:
            The assessment, a `NoDecision` if there is no usable answer, or a `Skip` if there was no reason to
            ask.

        """
        ...


@dataclass(slots=True)
class SymbolDesk:
    """The state of one symbol: market view, analyst, reference market and last bars.

    Attributes:
        reference_view: The view of the reference market, if that is another symbol of the session.
        reference_feed: The feed of the reference market otherwise, if there is one.
        is_due: Whether the last bar closed a bar of the decision timeframe, so that the analyst is due.

    """

    view: MarketView
    analyst: Analyst
    reference_view: MarketView | None = None
    reference_feed: ReferenceMarketFeed | None = None
    bars: list[Bar] = field(default_factory=list)
    is_due: bool = False

    def push(self, bar: Bar) -> None:
        """Add the next closed bar."""
        closed = self.view.push(bar, as_of=bar.close_time)
        self.is_due = any(each.bar.timeframe is self.view.decision for each in closed)
        if self.reference_feed is not None:
            self.reference_feed.push(bar)
        self.bars.append(bar)
        del self.bars[:-BARS_SHOWN]

    def snapshot(self) -> MarketSnapshot:
        """Return the market at the newest close, with its reference market if known."""
        moment = self.bars[-1].close_time
        source = self.reference_view or self.reference_feed
        return self.view.snapshot(
            moment, reference=None if source is None else source.reference_market(moment)
        )


@dataclass(frozen=True, slots=True)
class TradingRules:
    """Rules for intents: the percent of the equity at risk, and an intent's lifetime."""

    risk_pct: Decimal = Decimal(1)
    intent_lives: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class IntentSettings:
    """The router, exchange, instruments, journal and limits of a source of intents."""

    router: OrderRouter
    exchange: Exchange
    instruments: Instruments
    journal: TradeJournal
    limits: risk.RiskLimits


class AnalysisIntents:
    """A source of intents that asks an analyst for each symbol.

    Analysts of several symbols are asked concurrently. Their assessments are processed in order of symbol, so
    the order of the answers does not matter. Intents approved earlier in a time slice count when the next
    symbol is sized.
    """

    def __init__(
        self, desks: Mapping[str, SymbolDesk], settings: IntentSettings, rules: TradingRules
    ) -> None:
        self._desks = desks
        self._settings = settings
        self._router = settings.router
        self._exchange = settings.exchange
        self._instruments = settings.instruments
        self._limits = settings.limits
        self._rules = rules

    def push(self, bar: Bar) -> None:
        """Add the next closed bar of a symbol."""
        self._desks[bar.symbol].push(bar)

    def bars(self, symbol: str) -> Sequence[Bar]:
        """Return the last closed bars of a symbol, oldest first."""
        return self._desks[symbol].bars

    async def intents(self, time_slice: TimeSlice) -> list[OrderIntent]:
        """Return the intents approved at the close of a time slice.

        The others are recorded as denied or skipped.
        """
        approved: list[OrderIntent] = []
        for assessment in await self._assess(time_slice):
            if (intent := await self._intent(assessment, approved)) is not None:
                approved.append(intent)
        return approved

    async def _assess(self, time_slice: TimeSlice) -> list[Assessment]:
        """Ask all due analysts concurrently. Return the assessments in order of symbol."""
        due = [bar.symbol for bar in time_slice.bars if self._desks[bar.symbol].is_due]
        if not due:
            return []
        calls = []
        account = await self._exchange.account()
        held = {position.symbol: position for position in account.positions}
        portfolio = await self._portfolio(time_slice, account)
        async with asyncio.TaskGroup() as group:
            for symbol in due:
                desk = self._desks[symbol]
                answer = desk.analyst.consider(
                    desk.snapshot(), position=held.get(symbol), portfolio=portfolio
                )
                calls.append(group.create_task(answer, name=f"analyst-{symbol}"))
        decided = [(symbol, task.result()) for symbol, task in zip(due, calls, strict=True)]
        return [
            assessment for symbol, each in decided if (assessment := _assessment(symbol, each)) is not None
        ]

    async def _portfolio(self, time_slice: TimeSlice, account: Account) -> PortfolioContext:
        """Return the account at the last closes, as evidence for the analysts."""
        facts, seen = await self._router.facts(time_slice.bars[0].symbol, time_slice.at), self._desks.items()
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
                markets={symbol: desk.view.reference_market(time_slice.at) for symbol, desk in seen},
            ),
        )

    async def _intent(self, assessment: Assessment, approved: Sequence[OrderIntent]) -> OrderIntent | None:
        """Return an assessment's intent, or None if it is denied, skipped, or has no plan."""
        plan = assessment.plan
        if plan is None:
            return None
        facts = await self._router.facts(assessment.symbol, assessment.as_of)
        held = facts.position * plan.side.sign
        if held > 0:
            skipped = IntentSkipped(symbol=assessment.symbol, reason="position_open", position=facts.position)
            await self._record(skipped, assessment, "intent.skipped")
            return None
        # Open entries of earlier intents are cancelled first. Otherwise they would count in the facts below.
        await self._router.withdraw(assessment.symbol)
        facts = (await self._router.facts(assessment.symbol, assessment.as_of)).with_approved(approved)
        proposed = self._exit(assessment, facts) if held else self._entry(assessment, plan, facts)
        match proposed:
            case risk.Approved(intent=intent):
                return intent
            case risk.Rejection():
                denied = IntentDenied(symbol=assessment.symbol, **dict(proposed))
                await self._record(denied, assessment, "intent.rejected")
                return None

    def _entry(
        self, assessment: Assessment, plan: TradePlan, facts: risk.RiskFacts
    ) -> risk.Approved | risk.Rejection:
        proposal = risk.EntryProposal(
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
        return risk.propose_entry(proposal, self._limits, self._instruments[assessment.symbol], facts)

    def _exit(self, assessment: Assessment, facts: risk.RiskFacts) -> risk.Approved | risk.Rejection:
        return risk.propose_exit(
            f"{assessment.verdict} against the open position",
            self._limits,
            self._instruments[assessment.symbol],
            facts,
            as_of=assessment.as_of,
            expires_at=assessment.as_of + self._rules.intent_lives,
            trace_id=assessment.trace_id,
            causation_id=assessment.assessment_id,
        )

    async def _record(self, body: EventBody, assessment: Assessment, part: str) -> None:
        cause = assessment.assessment_id
        event_id = derived_id(part, cause)
        await self._settings.journal.publish(body, event_id, assessment.trace_id, cause, assessment.as_of)


def _assessment(symbol: str, decided: Assessment | NoDecision | Skip) -> Assessment | None:
    """Return an analyst's assessment, or None if there is none."""
    match decided:
        case Assessment():
            return decided
        case NoDecision() | Skip():
            return None
        case other:
            allowed = "an Assessment, a NoDecision or a Skip"
            raise TypeError(f"the analyst of {symbol} returned {type(other).__name__}. Allowed: {allowed}")


def holdings(
    account: Account,
    orders: Iterable[OpenOrder],
    marks: Mapping[str, Decimal],
    markets: Mapping[str, ReferenceMarket],
) -> tuple[Holding, ...]:
    """Return the open positions at their marks, in order of symbol.

    Args:
        account: The account with the positions.
        orders: Orders that can still trade, or that guard their filled quantity.
        marks: The last price of each symbol.
        markets: The closes of each symbol.

    Raises:
        KeyError: If a position has no mark or no market.

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
    """Return the loss of a position between its mark and its stops.

    The loss is in the quote currency. A stop that the mark has already passed adds no loss. Returns None if
    part of `quantity` has no stop.
    """
    guarded, loss = ZERO, ZERO
    for each in orders:
        order = each.order
        if order.symbol == symbol and order.stop_loss is not None and each.guarded > 0:
            distance = EXACT.multiply(order.side.sign, EXACT.subtract(mark, order.stop_loss))
            guarded = EXACT.add(guarded, each.guarded)
            loss = EXACT.fma(each.guarded, max(distance, ZERO), loss)
    return loss if guarded >= quantity else None
