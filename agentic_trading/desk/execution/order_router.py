"""The router of orders: a last risk check before the exchange, and the journal."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, assert_never

from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk import exchange as exchange_api
from agentic_trading.desk.execution.events import IntentUndecided, OrderDenied, StrategyChosen
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.risk import Rejection, RiskFacts, RiskLimits, check_order_risk
from agentic_trading.desk.execution.strategy import FillStrategy, plan_orders, strategy_id
from agentic_trading.desk.instrument import EXACT, ZERO, Instrument
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import NoBarsError
from agentic_trading.ids import derived_id
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import EventBody

MINUTE = timedelta(minutes=1)
FEED_SILENT: Final = "feed_silent"
"""The rule that halts the entries of a symbol with a silent feed."""


class TradeJournal:
    """A recorder of intents, fill strategies, orders, fills and cancellations.

    Each of these events is the cause of the next. Ids are those of the objects or derived from them, so that
    a fact that is recorded twice is one event.
    """

    def __init__(self, gateway: Gateway, clock: Clock, *, tenant_id: str) -> None:
        self._gateway = gateway
        self._clock = clock
        self._tenant_id = tenant_id

    async def intent(self, intent: OrderIntent) -> None:
        """Record an intent under its own id. Its cause is the event that proposed it."""
        await self._record(intent, intent.intent_id, intent, intent.causation_id)

    async def strategy(
        self, intent: OrderIntent, strategy: FillStrategy, *, request_hash: str, cause: str
    ) -> None:
        """Record the fill strategy of an intent, caused by the interaction that gave it."""
        chosen = StrategyChosen(symbol=intent.symbol, request_hash=request_hash, **dict(strategy))
        await self._record(chosen, strategy_id(intent.intent_id), intent, cause)

    async def no_decision(
        self, intent: OrderIntent, decision: NoDecision, *, request_hash: str, cause: str
    ) -> None:
        """Record that an intent gets no order."""
        undecided = IntentUndecided(symbol=intent.symbol, request_hash=request_hash, **dict(decision))
        await self._record(undecided, derived_id("no_decision", intent.intent_id), intent, cause)

    async def denial(self, intent: OrderIntent, rejection: Rejection) -> None:
        """Record that a limit stopped the orders of a strategy before any was sent."""
        denied = OrderDenied(symbol=intent.symbol, **dict(rejection))
        event_id = derived_id("order.rejected", intent.intent_id)
        await self._record(denied, event_id, intent, strategy_id(intent.intent_id))

    async def refusal(self, intent: OrderIntent, order: exchange_api.Order, rejection: Rejection) -> None:
        """Record that the exchange refused an order. The cause is the order."""
        denied = OrderDenied(symbol=intent.symbol, order_id=order.order_id, **dict(rejection))
        event_id = derived_id("order.rejected", order.order_id)
        await self._record(denied, event_id, intent, order.order_id)

    async def order(self, intent: OrderIntent, order: exchange_api.Order) -> None:
        """Record an order under its own id. Its cause is the fill strategy."""
        await self._record(order, order.order_id, intent, order.causation_id)

    async def report(self, report: exchange_api.ExecutionReport) -> None:
        """Record a fill or cancellation, dated by the bar's close and caused by the order."""
        match report:
            case exchange_api.Fill():
                event_id = report.fill_id
            case exchange_api.Cancellation():
                event_id = derived_id("order.cancelled", report.order_id)
            case _:
                assert_never(report)
        await self.publish(report, event_id, report.trace_id, report.order_id, report.time)

    async def _record(self, body: EventBody, event_id: str, intent: OrderIntent, cause: str) -> None:
        await self.publish(body, event_id, intent.trace_id, cause, intent.as_of)

    async def publish(
        self, body: EventBody, event_id: str, trace_id: str, cause: str, as_of: datetime
    ) -> None:
        """Record an event of the desk under `event_id`.

        `cause` is the id of an event, an interaction or an order.
        """
        event = body.as_event(
            event_id=event_id,
            trace_id=trace_id,
            tenant_id=self._tenant_id,
            time=self._clock.now(),
            causation_id=cause,
            as_of=as_of,
        )
        await self._gateway.record(event)


class OrderRouter:
    """A router of orders to the exchange, which records everything.

    Its calls must not overlap, because they read open orders before they add to them.

    Attributes:
        entries_halted: The rule that halts all entries. Empty without a halt.
        silent_symbols: The symbols with a silent feed. Their entries are halted.

    """

    def __init__(
        self,
        exchange: exchange_api.Exchange,
        journal: TradeJournal,
        instruments: Mapping[str, Instrument],
        fill_limits: FillLimits,
        risk_limits: RiskLimits,
    ) -> None:
        self._exchange = exchange
        self._journal = journal
        self._instruments = instruments
        self._fill_limits = fill_limits
        self._risk_limits = risk_limits
        self._last: dict[str, Bar] = {}
        self._submitted: deque[datetime] = deque()
        self.entries_halted = ""
        self.silent_symbols: set[str] = set()

    async def place(
        self, intent: OrderIntent, strategy: FillStrategy, *, known_at: datetime
    ) -> Sequence[exchange_api.Order] | Rejection:
        """Submit and record the orders of a strategy.

        If a limit stops one order, no order is sent. If the exchange refuses an order, this is recorded, and
        the orders after it are not sent.

        Args:
            intent: The intent.
            strategy: Its fill strategy.
            known_at: The time at which the strategy was known. Bars that opened earlier do not fill its
                orders.

        Returns:
            The orders that the exchange accepted, or the rejection if it accepted no order.

        """
        instrument = self._instruments[intent.symbol]
        limits = self._fill_limits.narrowed_to(intent, instrument)
        orders = plan_orders(intent, strategy, limits, known_at=known_at)
        facts = await self.facts(intent.symbol, intent.as_of)
        # All orders are checked before the first is sent, so that a limit stops all of them.
        for order in orders:
            broken = check_order_risk(order, self._risk_limits, instrument, facts)
            if broken is not None:
                rejection = broken.of(intent.side, intent.quantity, intent.sizing)
                await self._journal.denial(intent, rejection)
                return rejection
            facts = _with_pending(facts, order)
        for count, order in enumerate(orders):
            if (refused := await self._submit(intent, order)) is not None:
                # Accepted slices stay, because each has its own stop and deadline.
                return orders[:count] or refused
        return orders

    async def _submit(self, intent: OrderIntent, order: exchange_api.Order) -> Rejection | None:
        """Record and submit an order. Return the recorded rejection if it was refused."""
        await self._journal.order(intent, order)
        self._submitted.append(intent.as_of)  # a refused order counts, because the exchange had to answer it
        try:
            await self._exchange.submit(order)
        except exchange_api.OrderRefusedError as e:
            broken = Rejection(rule=e.rule, was=str(e.was), allowed=e.allowed)
            rejection = broken.of(order.side, order.quantity, intent.sizing)
            await self._journal.refusal(intent, order, rejection)
            return rejection
        return None

    async def fill_order(self, bars: Sequence[Bar]) -> Sequence[Bar]:
        """Return the bars of one moment in the order in which they fill orders: see `exits_first`."""
        return await exchange_api.exits_first(self._exchange, bars)

    async def on_bar(self, bar: Bar) -> list[exchange_api.ExecutionReport]:
        """Process a closed bar. Return and record fills and cancellations, in order."""
        reports = await self._exchange.on_bar(bar)
        self._last[bar.symbol] = bar
        for report in reports:
            await self._journal.report(report)
        return reports

    async def withdraw(self, symbol: str) -> list[exchange_api.Cancellation]:
        """Cancel the unfilled orders of a symbol, and record the cancellations."""
        return await self._withdraw(lambda order: order.symbol == symbol)

    async def withdraw_entries(self, symbol: str = "") -> list[exchange_api.Cancellation]:
        """Cancel the unfilled entries of a symbol, or of all symbols, and record the cancellations.

        Exits stay, and filled quantities stay guarded by their stops and targets.
        """
        return await self._withdraw(lambda order: not order.reduce_only and symbol in {"", order.symbol})

    async def equity(self) -> Decimal:
        """Return cash and positions at the last closes."""
        account = await self._exchange.account()
        return account.equity({symbol: bar.close for symbol, bar in self._last.items()})

    async def _withdraw(
        self, is_wanted: Callable[[exchange_api.Order], bool]
    ) -> list[exchange_api.Cancellation]:
        unfilled = [
            entry.order.order_id
            for entry in await self._exchange.open_orders()
            if is_wanted(entry.order) and entry.left > 0
        ]
        ended = [await self._exchange.cancel(order_id) for order_id in unfilled]
        cancelled = [cancellation for cancellation in ended if cancellation is not None]
        for cancellation in cancelled:
            await self._journal.report(cancellation)
        return cancelled

    async def facts(self, symbol: str, at: datetime) -> RiskFacts:
        """Return the facts about a symbol that its limits need, as of `at`.

        Raises:
            NoBarsError: If `symbol` has no bar yet.

        """
        if symbol not in self._last:
            raise NoBarsError(symbol)
        account, orders = await self._exchange.account(), await self._exchange.open_orders()
        return self.facts_of((symbol,), at, account, orders)[symbol]

    def facts_of(
        self,
        symbols: Iterable[str],
        at: datetime,
        account: exchange_api.Account,
        orders: Iterable[exchange_api.OpenOrder],
    ) -> Mapping[str, RiskFacts]:
        """Return the facts about symbols with bars, for an account and its open orders."""
        while self._submitted and self._submitted[0] <= at - MINUTE:
            self._submitted.popleft()
        marks = {each: bar.close for each, bar in self._last.items()}
        working = [entry for entry in orders if entry.left > 0]
        pending: dict[str, Decimal] = {}
        for entry in working:
            if not entry.order.reduce_only:
                added = EXACT.multiply(entry.order.side.sign, entry.left)
                pending[entry.order.symbol] = EXACT.add(pending.get(entry.order.symbol, ZERO), added)
        whole = RiskFacts(
            last_close=ZERO,
            equity=account.equity(marks),
            gross=_gross(account, working, marks, nets_exits=self._risk_limits.nets_exits),
            open_orders=len(working),
            orders_last_minute=len(self._submitted),
        )
        return {
            symbol: replace(
                whole,
                last_close=marks[symbol],
                entries_halted=self._halted_by(symbol),
                position=account.quantity(symbol),
                pending=pending.get(symbol, ZERO),
                halted=self._last[symbol].volume == 0,
            )
            for symbol in symbols
        }

    def _halted_by(self, symbol: str) -> str:
        """Return the rule that halts the entries of a symbol. Empty without a halt."""
        return self.entries_halted or (FEED_SILENT if symbol in self.silent_symbols else "")


def _gross(
    account: exchange_api.Account,
    working: Sequence[exchange_api.OpenOrder],
    marks: Mapping[str, Decimal],
    *,
    nets_exits: bool,
) -> Decimal:
    """Return the value of all positions and open entries, long and short added."""
    worth = ZERO
    for held in account.positions:
        worth = EXACT.fma(held.quantity.copy_abs(), marks[held.symbol], worth)
    for entry in working:
        if not entry.order.reduce_only:
            worth = EXACT.fma(entry.left, marks[entry.order.symbol], worth)
        # A market exit counts as sold, because its sale pays for purchases at the same open.
        elif nets_exits and entry.order.order_type == "market":
            worth = EXACT.fma(entry.left.copy_negate(), marks[entry.order.symbol], worth)
    return worth


def _with_pending(facts: RiskFacts, order: exchange_api.Order) -> RiskFacts:
    """Return the facts after `order` is open."""
    added = ZERO if order.reduce_only else EXACT.multiply(order.side.sign, order.quantity)
    return replace(
        facts,
        pending=EXACT.add(facts.pending, added),
        gross=EXACT.fma(added.copy_abs(), facts.last_close, facts.gross),
        open_orders=facts.open_orders + 1,
        orders_last_minute=facts.orders_last_minute + 1,
    )
