"""From a plan's weights to intents: purchases and sales that reach the weights."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from agentic_trading.desk.exchange import Account, Exchange
from agentic_trading.desk.execution.events import IntentDenied
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.risk import Rejection, RiskFacts, RiskLimits, check_intent
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Instruments, Side
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.planning.agent import TargetWeights
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.ids import derived_id

BARS_SHOWN = 48
"""The number of last bars in the execution agent's evidence: four hours of five minutes."""


@dataclass(frozen=True, slots=True)
class IntentSettings:
    """The router, exchange, instruments, journal and limits of a source of intents."""

    router: OrderRouter
    exchange: Exchange
    instruments: Instruments
    journal: TradeJournal
    limits: RiskLimits


@dataclass(slots=True)
class _Holding:
    """A symbol's last bars, its last target weight, and whether it was stopped.

    A stopped symbol stays out until its weight has been 0.
    """

    bars: deque[Bar] = field(default_factory=lambda: deque(maxlen=BARS_SHOWN))
    weight: float = 0.0
    is_stopped: bool = False


class PortfolioIntents:
    """Brings a portfolio to the weights that an agent requests.

    A weight is a share of the equity that the limits allow to invest, less the costs of a purchase. Stops are
    checked at each close, as in a backtest, and sell on the next bar. Sales come before purchases. If the
    limits have no room for all purchases, each gets the same share. An order that found no bar is sized again
    at each close until it finds one.
    """

    def __init__(
        self,
        settings: IntentSettings,
        *,
        cost_bps: Decimal,
        intent_lives: timedelta = timedelta(days=7),
    ) -> None:
        self._settings = settings
        self._router = settings.router
        self._exchange = settings.exchange
        self._instruments = settings.instruments
        self._limits = settings.limits
        self._invested = float(settings.limits.max_gross_pct / 100 / (1 + cost_bps / BPS))
        self._intent_lives = intent_lives
        self._holdings = {symbol: _Holding() for symbol in settings.instruments}

    def push(self, bar: Bar) -> None:
        """Add the next closed bar of a symbol."""
        self._holdings[bar.symbol].bars.append(bar)

    def bars(self, symbol: str) -> Sequence[Bar]:
        """Return the last closed bars of a symbol, oldest first."""
        return tuple(self._holdings[symbol].bars)

    async def intents(self, time_slice: TimeSlice, wanted: TargetWeights) -> list[OrderIntent]:
        """Return the intents approved at the close of a time slice. Denied intents are recorded."""
        at = time_slice.at
        account, orders = await self._exchange.account(), await self._exchange.open_orders()
        waiting = {
            entry.order.symbol: EXACT.multiply(entry.order.side.sign, entry.left)
            for entry in orders
            if entry.left > 0
        }
        closes = {bar.symbol: bar.close for bar in time_slice.bars}
        due = self._due(wanted, account, closes, waiting.keys())
        facts = self._router.facts_of(due, at, account, orders)
        changes = {symbol: self._change(symbol, aim, facts[symbol]) for symbol, aim in due.items()}
        changes = {
            symbol: change for symbol, change in changes.items() if change != waiting.get(symbol, ZERO)
        }
        # Orders that wait with the right quantity are kept. Others are cancelled before they are sized again,
        # because the limits would otherwise count both the old and the new order.
        withdrawn = [symbol for symbol in changes if symbol in waiting]
        for symbol in withdrawn:
            await self._router.withdraw(symbol)
        if withdrawn:
            facts = self._router.facts_of(changes, at, account, await self._exchange.open_orders())
        approved: list[OrderIntent] = []
        for symbol, change in changes.items():
            if change < 0:
                approved += await self._approved(symbol, change, wanted, at, _after(approved, facts[symbol]))
        purchases = {symbol: change for symbol, change in changes.items() if change > 0}
        share = self._share(purchases, {symbol: _after(approved, facts[symbol]) for symbol in purchases})
        for symbol, change in purchases.items():
            part = self._instruments[symbol].lots(EXACT.multiply(change, share)) or change
            approved += await self._approved(symbol, part, wanted, at, _after(approved, facts[symbol]), share)
        return approved

    def _due(
        self,
        wanted: TargetWeights,
        account: Account,
        closes: Mapping[str, Decimal],
        waiting: Collection[str],
    ) -> dict[str, float]:
        """Return the weights of the symbols to adjust now, in order of symbol."""
        due = {}
        entries = {held.symbol: held.average_price for held in account.positions if held.quantity > 0}
        for symbol, holding in sorted(self._holdings.items()):
            if not holding.bars:
                continue
            weight = wanted.weights.get(symbol, 0.0)
            hits = symbol in closes and _hits_stop(closes[symbol], entries.get(symbol), wanted.stop_loss)
            holding.is_stopped = (holding.is_stopped or hits) and weight > 0
            if wanted.rebalances or weight != holding.weight or symbol in waiting or hits:
                due[symbol] = 0.0 if holding.is_stopped else weight
            holding.weight = weight
        return due

    def _change(self, symbol: str, weight: float, facts: RiskFacts) -> Decimal:
        """Return the quantity to buy in whole lots, negative to sell."""
        if weight <= 0:
            return facts.position.copy_negate()
        aim = EXACT.multiply(Decimal(weight * self._invested), max(facts.equity, ZERO))
        change = EXACT.subtract(EXACT.divide(aim, facts.last_close), facts.position)
        return self._instruments[symbol].lots(change.copy_abs()).copy_sign(change)

    def _share(self, purchases: Mapping[str, Decimal], facts: Mapping[str, RiskFacts]) -> Decimal:
        """Return the share of all purchases that the limit on gross value has room for."""
        worth, room = ZERO, ZERO
        for symbol, each in facts.items():
            worth = EXACT.fma(purchases[symbol], each.last_close, worth)
            room = EXACT.subtract(self._limits.most_gross(each.equity), each.gross)
        # Without any room purchases keep their size, so that the limits deny them on record.
        return EXACT.divide(room, worth) if 0 < room < worth else Decimal(1)

    async def _approved(
        self,
        symbol: str,
        change: Decimal,
        wanted: TargetWeights,
        at: datetime,
        facts: RiskFacts,
        share: Decimal = Decimal(1),
    ) -> list[OrderIntent]:
        """Return the intent of a change, or an empty list if a recorded limit denies it."""
        instrument, quantity = self._instruments[symbol], change.copy_abs()
        side = Side.BUY if change > 0 else Side.SELL
        sizing = facts.sizing("weight")
        intent = OrderIntent(
            intent_id=derived_id("intent", wanted.plan_id, symbol, at.isoformat()),
            symbol=symbol,
            side=side,
            quantity=quantity,
            kind="entry" if side is Side.BUY else "exit",
            arrival_price=facts.last_close,
            sizing=sizing,
            reason=f"weight {self._holdings[symbol].weight:.4g} of the plan"
            + (", stopped" if self._holdings[symbol].is_stopped else "")
            + (f", cut to {100 * share:.3g} %" if share < 1 else ""),
            as_of=at,
            expires_at=at + self._intent_lives,
            trace_id=wanted.trace_id,
            causation_id=wanted.plan_id,
        )
        outcome = check_intent(intent, self._limits, instrument, facts)
        if isinstance(outcome, Rejection):
            await self._deny(intent, outcome.of(side, quantity, sizing))
            return []
        return [outcome.intent]

    async def _deny(self, intent: OrderIntent, rejection: Rejection) -> None:
        denied = IntentDenied(symbol=intent.symbol, **dict(rejection))
        event_id = derived_id(IntentDenied.KIND, intent.intent_id)
        await self._settings.journal.publish(
            denied, event_id, intent.trace_id, intent.causation_id, intent.as_of
        )


def _hits_stop(close: Decimal, entry: Decimal | None, stop_loss: float | None) -> bool:
    return entry is not None and stop_loss is not None and float(close) <= float(entry) * (1 - stop_loss)


def _after(approved: Iterable[OrderIntent], facts: RiskFacts) -> RiskFacts:
    """Return the facts after the orders of these intents have traded."""
    change = ZERO
    for intent in approved:
        sign = 1 if intent.kind == "entry" else -1
        change = EXACT.fma(EXACT.multiply(sign, intent.quantity), intent.arrival_price, change)
    return replace(facts, gross=EXACT.add(facts.gross, change))
