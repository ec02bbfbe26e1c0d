"""From a fill strategy to orders: code decides sizes, prices and times, within what was chosen."""

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from agentic_trading.desk.exchange import Order
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.strategy import FillStrategy, strategy_id
from agentic_trading.desk.instrument import EXACT, limit_from, round_down
from agentic_trading.ids import derived_id


def plan_orders(
    intent: OrderIntent, strategy: FillStrategy, limits: FillLimits, *, known_at: datetime
) -> list[Order]:
    """Return the orders of a checked strategy: one a slice, quantities adding up to the intent's exactly.

    The first may be filled by the first bar that opens at or after both `intent.as_of` and `known_at`, when the
    strategy was there; each next one an interval of whole bars later. All end at the same deadline, counted from the
    first, and those of an entry at the end of the intent at the latest. Equal arguments give equal orders, ids
    included.
    """
    start = _first_open(intent.as_of, known_at, timedelta(seconds=limits.bar_seconds))
    deadline = start + timedelta(seconds=strategy.deadline_seconds)
    interval = limits.interval(strategy.interval_seconds)
    quantities = slice_quantities(intent.quantity, strategy.slices, limits.lot_size)
    return [
        _order(intent, strategy, limits, number, quantity, start + number * interval, deadline)
        for number, quantity in enumerate(quantities)
    ]


def slice_quantities(quantity: Decimal, slices: int, lot_size: Decimal) -> list[Decimal]:
    """Return `slices` equal quantities in whole lots; what does not divide goes with the last one."""
    each = round_down(EXACT.divide(quantity, slices), lot_size)
    return [each] * (slices - 1) + [EXACT.fma(each, -(slices - 1), quantity)]


def _order(
    intent: OrderIntent,
    strategy: FillStrategy,
    limits: FillLimits,
    number: int,
    quantity: Decimal,
    start: datetime,
    deadline: datetime,
) -> Order:
    ends_with_day = strategy.time_in_force == "day" and _midnight_after(start) < deadline
    is_priced = strategy.order_type != "market"
    by_arrival = is_priced and strategy.price_reference == "arrival"
    return Order(
        order_id=derived_id("order", intent.intent_id, number),
        intent_id=intent.intent_id,
        symbol=intent.symbol,
        side=intent.side,
        quantity=quantity,
        order_type=strategy.order_type,
        limit_price=_arrival_limit(intent, strategy, limits) if by_arrival else None,
        peg_bps=strategy.limit_offset_bps if is_priced and not by_arrival else None,
        time_in_force=strategy.time_in_force,
        active_from=start,
        expires_at=_midnight_after(start) if ends_with_day else deadline,
        on_expiry="cancel" if ends_with_day else strategy.on_deadline,
        void_from=intent.expires_at if intent.kind == "entry" else None,
        max_participation=strategy.max_participation,
        reduce_only=intent.kind == "exit",
        stop_loss=intent.stop_loss,
        take_profit=intent.take_profit,
        trace_id=intent.trace_id,
        causation_id=strategy_id(intent.intent_id),
    )


def _first_open(as_of: datetime, known_at: datetime, bar: timedelta) -> datetime:
    """Return when the first bar opens that does so neither before `as_of` nor before `known_at`."""
    return as_of + max(0, -((as_of - known_at) // bar)) * bar


def _arrival_limit(intent: OrderIntent, strategy: FillStrategy, limits: FillLimits) -> Decimal:
    return limit_from(intent.reference_price, strategy.limit_offset_bps, intent.side, limits.tick_size)


def _midnight_after(moment: datetime) -> datetime:
    """Return the end of the UTC day of `moment`."""
    day = moment.astimezone(UTC)
    return datetime.combine(day.date(), time(), UTC) + timedelta(days=1)
