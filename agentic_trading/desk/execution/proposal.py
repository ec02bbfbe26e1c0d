"""From what an agent proposes to an approved intent: sized by code, held against the limits."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.execution.risk import (
    Approved,
    Rejection,
    RiskFacts,
    RiskLimits,
    check_intent,
    size_position,
)
from agentic_trading.desk.instrument import Instrument, Side
from agentic_trading.ids import derived_id


@dataclass(frozen=True, slots=True)
class EntryProposal:
    """An entry without a size. `entry` is a limit price, or None to enter at the market.

    `risk_pct` is the part of the equity, in percent, that may be lost between entry and stop.
    `causation_id` is the event that proposes it; the same cause and trace give the same intent id.
    """

    side: Side
    entry: Decimal | None
    stop: Decimal
    target: Decimal | None
    risk_pct: Decimal
    reason: str
    as_of: datetime
    expires_at: datetime
    trace_id: str
    causation_id: str


def propose_entry(
    proposal: EntryProposal, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Approved | Rejection:
    """Size a proposal and check it.

    Prices go to the grid first: the entry to its passive side, stop and target against the trader, so that the
    stop is as far and the target as near as the grid makes them.
    """
    side = proposal.side
    limit = None if proposal.entry is None else instrument.adverse_price(proposal.entry, side.opposite)
    stop = instrument.adverse_price(proposal.stop, side.opposite)
    entry = facts.last_close if limit is None else limit
    size = size_position(facts.equity, entry, stop, proposal.risk_pct, limits, instrument)
    sizing = facts.sizing(size.by, proposal.risk_pct)
    if size.quantity < instrument.min_quantity:
        allowed = f"at least {instrument.min_quantity}; a nearer stop or more equity gives more"
        small = Rejection(rule="min_quantity", was=str(size.quantity), allowed=allowed)
        return small.of(side, size.quantity, sizing)
    intent = OrderIntent(
        intent_id=derived_id("intent", proposal.trace_id, proposal.causation_id, "entry"),
        symbol=instrument.symbol,
        side=side,
        quantity=size.quantity,
        kind="entry",
        arrival_price=facts.last_close,
        limit_price=limit,
        stop_loss=stop,
        take_profit=None
        if proposal.target is None
        else instrument.adverse_price(proposal.target, side.opposite),
        sizing=sizing,
        reason=proposal.reason,
        as_of=proposal.as_of,
        expires_at=proposal.expires_at,
        trace_id=proposal.trace_id,
        causation_id=proposal.causation_id,
    )
    return _checked(intent, limits, instrument, facts)


def propose_exit(
    reason: str,
    limits: RiskLimits,
    instrument: Instrument,
    facts: RiskFacts,
    *,
    as_of: datetime,
    expires_at: datetime,
    trace_id: str,
    causation_id: str,
) -> Approved | Rejection:
    """Propose to close the whole position; a flat one is a `Rejection`."""
    if facts.position == 0:
        return Rejection(rule="reduce_only", was="flat", allowed="an exit where there is a position")
    intent = OrderIntent(
        intent_id=derived_id("intent", trace_id, causation_id, "exit"),
        symbol=instrument.symbol,
        side=Side.SELL if facts.position > 0 else Side.BUY,
        quantity=facts.position.copy_abs(),
        kind="exit",
        arrival_price=facts.last_close,
        sizing=facts.sizing("position"),
        reason=reason,
        as_of=as_of,
        expires_at=expires_at,
        trace_id=trace_id,
        causation_id=causation_id,
    )
    return _checked(intent, limits, instrument, facts)


def _checked(
    intent: OrderIntent, limits: RiskLimits, instrument: Instrument, facts: RiskFacts
) -> Approved | Rejection:
    outcome = check_intent(intent, limits, instrument, facts)
    if isinstance(outcome, Rejection):
        return outcome.of(intent.side, intent.quantity, intent.sizing)
    return outcome
