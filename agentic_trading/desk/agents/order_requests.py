"""The order requests of an agent: sized and checked against the limits at once, sent after its handlers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from agentic_trading.client.answer import Answer
from agentic_trading.desk.agents.errors import DeskError
from agentic_trading.desk.agents.handler_call import HandlerCall
from agentic_trading.desk.exchange import Account, OpenOrder
from agentic_trading.desk.execution import risk
from agentic_trading.desk.execution.events import IntentDenied
from agentic_trading.desk.execution.order import OrderIntent, SizedBy
from agentic_trading.desk.execution.risk import Approved, EntryProposal, Rejection, RiskFacts
from agentic_trading.desk.instrument import EXACT, ZERO, Side
from agentic_trading.desk.planning.agent import TargetWeights
from agentic_trading.desk.portfolio_intents import IntentSettings
from agentic_trading.ids import derived_id

Number = Decimal | float | int | str
_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTerms:
    """The terms of an order request: see `Desk.buy`."""

    quantity: Number | None = None
    notional: Number | None = None
    weight: Number | None = None
    risk_pct: Number | None = None
    limit: Number | None = None
    stop: Number | None = None
    target: Number | None = None
    reason: str = ""
    because: Answer[Any] | None = None

    def only_size(self) -> None:
        """Raise `DeskError` unless there is one size, and a stop if the size needs one."""
        sizes = {name: getattr(self, name) for name in ("quantity", "notional", "weight", "risk_pct")}
        given = [name for name, value in sizes.items() if value is not None]
        if len(given) != 1:
            was = ", ".join(given) or "no size"
            raise DeskError(f"{was} was given. Give one of quantity, notional, weight, risk_pct")
        if self.risk_pct is not None and self.stop is None:
            raise DeskError("risk_pct needs stop=, because the loss at the stop sets the size")


class OrderRequests:
    """The order requests of one agent.

    Requests of one close see each other: what was approved counts when the next request is checked.

    Args:
        settings: The router, exchange, instruments, journal and limits.
        call: Returns the current call of a handler, or raises `DeskError`.
        lives: How long a request may wait for its fill.

    Attributes:
        account: The account after the fills of this close.
        orders: The open orders.
        weights: The weights to hold, or None without such a request.

    """

    def __init__(
        self, settings: IntentSettings, call: Callable[[], HandlerCall], lives: Callable[[str], timedelta]
    ) -> None:
        self._settings = settings
        self._call = call
        self._lives = lives
        self.account = Account(currency="", cash=ZERO)
        self.orders: Sequence[OpenOrder] = ()
        self.weights: TargetWeights | None = None
        self._approved: list[OrderIntent] = []
        self._denied: list[tuple[IntentDenied, str, str]] = []

    async def begin(self) -> None:
        """Start a close: read the account and the open orders."""
        self.account = await self._settings.exchange.account()
        self.orders = await self._settings.exchange.open_orders()

    def take_approved(self) -> list[OrderIntent]:
        """Return the approved intents, and forget them."""
        approved, self._approved = self._approved, []
        return approved

    def mark(self) -> int:
        """Return a mark of the requests so far, for `drop_after`."""
        return len(self._approved)

    def drop_after(self, mark: int) -> None:
        """Drop the requests after a mark."""
        del self._approved[mark:]
        self._denied.clear()
        self.weights = None

    async def record_denied(self, call: HandlerCall) -> None:
        """Record the denied requests of a call."""
        denied, self._denied = self._denied, []
        for body, event_id, cause in denied:
            await call.record(body, event_id, cause)

    def facts(self, symbol: str) -> RiskFacts:
        """Return the facts that limits are checked against, with the approved requests of this close."""
        at = self._call().as_of
        facts = self._settings.router.facts_of((symbol,), at, self.account, self.orders)[symbol]
        return facts.with_approved(self._approved)

    async def withdraw(self, symbol: str) -> None:
        """Cancel the unfilled orders of a symbol."""
        await self._settings.router.withdraw(symbol)
        self.orders = await self._settings.exchange.open_orders()

    def enter(self, symbol: str, side: Side, terms: OrderTerms) -> Approved | Rejection:
        """Request a position of a size."""
        terms.only_size()
        facts = self.facts(symbol)
        if terms.risk_pct is not None:
            return self._enter_at_risk(symbol, side, terms, facts)
        sized_by: SizedBy = "notional" if terms.weight is None else "weight"
        if terms.quantity is not None:
            quantity = decimal_of(terms.quantity)
        elif terms.notional is not None:
            quantity = EXACT.divide(decimal_of(terms.notional), facts.last_close)
        else:
            worth = EXACT.multiply(decimal_of(terms.weight or 0), facts.equity)
            quantity = EXACT.divide(worth, facts.last_close)
        if quantity <= 0:
            raise DeskError(f"the size of {side} {symbol} is {quantity}. Allowed: a size above 0")
        return self._request(symbol, side, quantity, "entry", sized_by, terms)

    def leave(self, symbol: str, terms: OrderTerms) -> Approved | Rejection | None:
        """Request an exit from the whole position. None without a position."""
        held = self.account.quantity(symbol)
        if held == 0:
            return None
        side = Side.SELL if held > 0 else Side.BUY
        return self._request(symbol, side, held.copy_abs(), "exit", "position", terms)

    def aim_at(
        self, symbol: str, weight: Decimal, band: Decimal, terms: OrderTerms
    ) -> Approved | Rejection | None:
        """Request the position with a weight. None if the position is near enough.

        A position on the other side is closed first. The opposite one is for a later close.
        """
        facts = self.facts(symbol)
        aim = EXACT.divide(EXACT.multiply(weight, facts.equity), facts.last_close)
        change = EXACT.subtract(aim, EXACT.add(facts.position, facts.pending))
        slack = EXACT.divide(EXACT.multiply(band, facts.equity), facts.last_close)
        if change.copy_abs() <= slack or not self._settings.instruments[symbol].lots(change.copy_abs()):
            return None
        side = Side.BUY if change > 0 else Side.SELL
        to_close = EXACT.multiply(-side.sign, facts.position)
        if to_close > 0:
            return self._request(symbol, side, min(change.copy_abs(), to_close), "exit", "weight", terms)
        return self._request(symbol, side, change.copy_abs(), "entry", "weight", terms)

    def hold(
        self, weights: Mapping[str, Number], because: Answer[Any] | None, stop_loss: float | None
    ) -> None:
        """Request the weights of all symbols together."""
        if self._approved:
            raise DeskError("weights and other order requests at one close. Use only one of them")
        call = self._call()
        unknown = [symbol for symbol in weights if symbol not in self._settings.instruments]
        if unknown:
            allowed = ", ".join(self._settings.instruments)
            raise DeskError(f"there is no symbol {unknown[0]!r} in this session. Allowed: {allowed}")
        call.next_id("request")
        self.weights = TargetWeights(
            weights={symbol: float(weight) for symbol, weight in weights.items()},
            rebalances=True,
            stop_loss=stop_loss,
            plan_id=call.cause_of(because),
            trace_id=call.trace_id,
        )

    async def propose(self, symbol: str, proposal: EntryProposal) -> Approved | Rejection:
        """Request an entry of another trace, and record a denial at once."""
        instrument = self._settings.instruments[symbol]
        outcome = risk.propose_entry(proposal, self._settings.limits, instrument, self.facts(symbol))
        return await self._proposed(symbol, outcome, proposal.trace_id, proposal.causation_id)

    async def propose_exit(
        self, symbol: str, reason: str, *, lives: timedelta, trace_id: str, cause: str
    ) -> Approved | Rejection:
        """Request an exit of another trace, and record a denial at once."""
        at = self._call().as_of
        outcome = risk.propose_exit(
            reason,
            self._settings.limits,
            self._settings.instruments[symbol],
            self.facts(symbol),
            as_of=at,
            expires_at=at + lives,
            trace_id=trace_id,
            causation_id=cause,
        )
        return await self._proposed(symbol, outcome, trace_id, cause)

    async def _proposed(
        self, symbol: str, outcome: Approved | Rejection, trace_id: str, cause: str
    ) -> Approved | Rejection:
        if isinstance(outcome, Approved):
            self._approved.append(outcome.intent)
            return outcome
        denied, event_id = IntentDenied(symbol=symbol, **dict(outcome)), derived_id("intent.rejected", cause)
        await self._settings.journal.publish(denied, event_id, trace_id, cause, self._call().as_of)
        return outcome

    def _enter_at_risk(
        self, symbol: str, side: Side, terms: OrderTerms, facts: RiskFacts
    ) -> Approved | Rejection:
        call, instrument = self._call(), self._settings.instruments[symbol]
        # Numbered, because a call may request several entries with the same cause.
        event_id, cause = call.next_id("request"), call.cause_of(terms.because)
        proposal = EntryProposal(
            side=side,
            entry=None if terms.limit is None else decimal_of(terms.limit),
            stop=decimal_of(terms.stop or 0),
            target=None if terms.target is None else decimal_of(terms.target),
            risk_pct=decimal_of(terms.risk_pct or 0),
            reason=terms.reason[:_REASON_CHARS],
            as_of=call.as_of,
            expires_at=call.as_of + self._lives(symbol),
            trace_id=call.trace_id,
            causation_id=cause,
        )
        outcome = risk.propose_entry(proposal, self._settings.limits, instrument, facts)
        if isinstance(outcome, Approved):
            own_id = {"intent_id": derived_id("intent", event_id)}
            outcome = Approved(intent=outcome.intent.model_copy(update=own_id))
        return self._decided(symbol, outcome, event_id, cause)

    def _request(
        self,
        symbol: str,
        side: Side,
        quantity: Decimal,
        kind: Literal["entry", "exit"],
        sized_by: SizedBy,
        terms: OrderTerms,
    ) -> Approved | Rejection:
        call, instrument = self._call(), self._settings.instruments[symbol]
        event_id, cause, facts = call.next_id("request"), call.cause_of(terms.because), self.facts(symbol)
        lots, sizing = instrument.lots(quantity), facts.sizing(sized_by)
        least = instrument.min_quantity if kind == "entry" else instrument.lot_size
        if lots < least:
            small = Rejection(rule="min_quantity", was=str(lots), allowed=f"at least {least}")
            return self._decided(symbol, small.of(side, lots, sizing), event_id, cause)

        def price(value: Number | None) -> Decimal | None:
            return None if value is None else instrument.adverse_price(decimal_of(value), side.opposite)

        is_entry = kind == "entry"
        intent = OrderIntent(
            intent_id=derived_id("intent", event_id),
            symbol=symbol,
            side=side,
            quantity=lots,
            kind=kind,
            arrival_price=facts.last_close,
            limit_price=price(terms.limit) if is_entry else None,
            stop_loss=price(terms.stop) if is_entry else None,
            take_profit=price(terms.target) if is_entry else None,
            sizing=sizing,
            reason=terms.reason[:_REASON_CHARS],
            as_of=call.as_of,
            expires_at=call.as_of + self._lives(symbol),
            trace_id=call.trace_id,
            causation_id=cause,
        )
        outcome = risk.check_intent(intent, self._settings.limits, instrument, facts)
        if isinstance(outcome, Rejection):
            outcome = outcome.of(side, lots, sizing)
        return self._decided(symbol, outcome, event_id, cause)

    def _decided(
        self, symbol: str, outcome: Approved | Rejection, event_id: str, cause: str
    ) -> Approved | Rejection:
        if self.weights is not None:
            raise DeskError("weights and other order requests at one close. Use only one of them")
        if isinstance(outcome, Approved):
            self._approved.append(outcome.intent)
        else:
            denied = IntentDenied(symbol=symbol, **dict(outcome))
            self._denied.append((denied, derived_id("denied", event_id), cause))
        return outcome


def decimal_of(value: Number) -> Decimal:
    """Return a number as a Decimal. A float has the digits that Python shows."""
    try:
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except (ArithmeticError, TypeError, ValueError) as e:
        raise DeskError(f"{value!r} is not a number") from e
    if not number.is_finite():
        raise DeskError(f"{value!r} is not a finite number")
    return number
