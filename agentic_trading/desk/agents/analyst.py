"""The shipped analyst: asks about each market after a trigger, and trades its assessments."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from agentic_trading.desk.agents.agent import Agent, Fills
from agentic_trading.desk.agents.desk import Desk
from agentic_trading.desk.analysis.analyst import CmtAnalyst
from agentic_trading.desk.analysis.assessment import Assessment
from agentic_trading.desk.analysis.plan import TradePlan
from agentic_trading.desk.analysis.portfolio_context import Holding, PortfolioContext
from agentic_trading.desk.exchange import Account, OpenOrder, Position
from agentic_trading.desk.execution.events import IntentSkipped
from agentic_trading.desk.execution.order import FillLimits
from agentic_trading.desk.execution.risk import EntryProposal, RiskLimits
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.correlation import ReferenceMarket
from agentic_trading.desk.market.snapshot import MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Skip
from agentic_trading.desk.time_slices import ReferenceMarketFeed
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import NoDecision

DECISION = Timeframe.H1
"""The timeframe of the analyst's decisions."""


class Analyst(Protocol):
    """Analyses one symbol."""

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
    """The state of one symbol: market view, analyst, reference market and last bar.

    Attributes:
        reference_view: The view of the reference market, if that is another symbol of the session.
        reference_feed: The feed of the reference market otherwise, if there is one.
        is_due: Whether the last bar closed a bar of the decision timeframe, so that the analyst is due.

    """

    view: MarketView
    analyst: Analyst
    reference_view: MarketView | None = None
    reference_feed: ReferenceMarketFeed | None = None
    last: Bar | None = None
    is_due: bool = False

    def push(self, bar: Bar) -> None:
        """Add the next closed bar."""
        closed = self.view.push(bar, as_of=bar.close_time)
        self.is_due = any(each.bar.timeframe is self.view.decision for each in closed)
        if self.reference_feed is not None:
            self.reference_feed.push(bar)
        self.last = bar

    def snapshot(self, desk: Desk) -> MarketSnapshot:
        """Return the market at the close, with its reference market if known."""
        source = self.reference_view or self.reference_feed
        return self.view.snapshot(
            desk.now, reference=None if source is None else source.reference_market(desk.now)
        )


class CmtAgent(Agent):
    """An agent that asks a `CmtAnalyst` for each symbol.

    Analysts of several symbols are asked concurrently. Their assessments are processed in order of symbol, so
    the order of the answers has no effect.

    Attributes:
        risk_pct: The percentage of the equity at risk in a trade.

    """

    workflows: ClassVar[tuple[EnvelopeWorkflow, ...]] = (EnvelopeWorkflow.ANALYSIS,)
    fills: ClassVar[Fills] = "model"
    risk_pct = Decimal(1)

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._desks: dict[str, SymbolDesk] = {}
        self._closed: list[str] = []

    @property
    @override
    def name(self) -> str:
        return "cmt"

    @override
    def risk_limits(self, symbols: Sequence[str]) -> RiskLimits:
        return RiskLimits()

    @override
    def fill_limits(self, timeframe: Timeframe) -> FillLimits:
        return FillLimits()

    def sizing(self) -> str:
        """Return how its orders are sized, as a phrase of the report."""
        return f"{self.risk_pct} % of the equity at risk per entry"

    def analyst(self, desk: Desk) -> Analyst:
        """Return the analyst of a symbol."""
        asked = desk.model_of(EnvelopeWorkflow.ANALYSIS)
        return CmtAnalyst(
            desk.gateway,
            desk.clock,
            session_id=desk.session.session_id,
            tenant_id=desk.session.tenant,
            provider=asked.llm,
            model=asked.model,
            retry_policy=asked.patience,
        )

    @override
    async def on_start(self, desk: Desk) -> None:
        """Make an analyst for each symbol, with the first other symbol as its reference market."""
        views = {symbol: MarketView(symbol, decision=DECISION) for symbol in desk.symbols}
        for symbol, view in views.items():
            other = next((each for name, each in views.items() if name != symbol), None)
            feed = desk.session.companions.get(symbol)
            self._desks[symbol] = SymbolDesk(view, self.analyst(desk), other, feed)

    @override
    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Add a bar to its market."""
        self._desks[bar.symbol].push(bar)
        self._closed.append(bar.symbol)

    @override
    async def on_close(self, desk: Desk) -> None:
        """Ask all due analysts concurrently, and trade their assessments in order of symbol."""
        due = [symbol for symbol in self._closed if self._desks[symbol].is_due]
        self._closed.clear()
        if not due:
            return
        held = {position.symbol: position for position in desk.account.positions}
        portfolio, calls = self._portfolio(desk, due[0]), []
        async with asyncio.TaskGroup() as group:
            for symbol in due:
                each = self._desks[symbol]
                answer = each.analyst.consider(
                    each.snapshot(desk), position=held.get(symbol), portfolio=portfolio
                )
                calls.append(group.create_task(answer, name=f"analyst-{symbol}"))
        for symbol, task in zip(due, calls, strict=True):
            assessment = _assessment(symbol, task.result())
            if assessment is not None and assessment.plan is not None:
                await self._trade(desk, assessment, assessment.plan)

    def _portfolio(self, desk: Desk, symbol: str) -> PortfolioContext:
        """Return the account at the last closes, as evidence for the analysts."""
        facts, limits, seen = desk.facts(symbol), desk.session.limits, self._desks.items()
        by_equity = facts.equity * limits.max_exposure_pct / 100
        return PortfolioContext(
            equity=facts.equity,
            gross=facts.gross,
            risk_pct=self.risk_pct,
            largest=min(limits.max_order_notional, limits.max_position_notional, by_equity),
            holdings=holdings(
                desk.account,
                desk.orders,
                marks={name: each.last.close for name, each in seen if each.last is not None},
                markets={name: each.view.reference_market(desk.now) for name, each in seen},
            ),
        )

    async def _trade(self, desk: Desk, assessment: Assessment, plan: TradePlan) -> None:
        """Request the entry or the exit of an assessment, or record the open position."""
        symbol, trace_id, cause = assessment.symbol, assessment.trace_id, assessment.assessment_id
        position = desk.position(symbol)
        held = position * plan.side.sign
        if held > 0:
            skipped = IntentSkipped(symbol=symbol, reason="position_open", position=position)
            event_id = derived_id("intent.skipped", cause)
            await desk.record(skipped, event_id, trace_id=trace_id, cause=cause)
            return
        # Open entries of earlier intents are cancelled first. Otherwise they would count in the limits.
        await desk.cancel(symbol)
        lives = self.order_lives(DECISION)
        if held:
            reason = f"{assessment.verdict} against the open position"
            await desk.propose_exit(symbol, reason, lives=lives, trace_id=trace_id, cause=cause)
            return
        proposal = EntryProposal(
            side=plan.side,
            entry=plan.entry if plan.entry_type == "limit" else None,
            stop=plan.stop,
            target=plan.target,
            risk_pct=self.risk_pct,
            reason=f"{assessment.verdict}: total {assessment.total}, reward for risk {plan.risk_reward}",
            as_of=assessment.as_of,
            expires_at=assessment.as_of + lives,
            trace_id=trace_id,
            causation_id=cause,
        )
        await desk.propose(symbol, proposal)

    @override
    def order_lives(self, timeframe: Timeframe) -> timedelta:
        return timedelta(hours=1)


def _assessment(symbol: str, decided: Assessment | NoDecision | Skip) -> Assessment | None:
    """Return an analyst's assessment, or None without one."""
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
