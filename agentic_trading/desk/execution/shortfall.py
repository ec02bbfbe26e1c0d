"""What filling intents has cost against the prices at which they were decided."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from pydantic import BaseModel

from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Side

BPS_STEP = Decimal("0.0001")


class Shortfall(BaseModel, frozen=True):
    """The implementation shortfall of what was filled of an intent, in the quote currency; positive is a cost.

    `price_cost` is what worse prices than the arrival price have cost (delay, spread and impact together),
    exactly; `fees` come on top. `arrival_value` is the filled quantity at the arrival price. `unfilled` is the
    quantity that was never traded: what it would have earned is not known from fills. `total_bps` is price and fees
    by the arrival value, rounded to 1e-4; None if nothing was filled.
    """

    intent_id: str
    symbol: str
    side: Side
    filled: Decimal
    unfilled: Decimal
    arrival_value: Decimal
    price_cost: Decimal
    fees: Decimal
    total_bps: Decimal | None


class TotalShortfall(BaseModel, frozen=True):
    """The shortfall of several intents: `total_bps` is weighted by value, and None if nothing was filled.

    `whole`, `in_part` and `not_at_all` count the intents by how much of them was filled.
    """

    arrival_value: Decimal = ZERO
    price_cost: Decimal = ZERO
    fees: Decimal = ZERO
    total_bps: Decimal | None = None
    whole: int = 0
    in_part: int = 0
    not_at_all: int = 0


def shortfalls(intents: Iterable[OrderIntent], fills: Iterable[Fill]) -> list[Shortfall]:
    """Return the shortfall of each intent, in order; fills of a stop or target, and of other intents, are left out.

    After A. F. Perold, "The Implementation Shortfall: Paper versus Reality", Journal of Portfolio Management
    14(3), 1988: the executed part, side x (fill price - decision price) x quantity + fees.
    """
    own: defaultdict[str, list[Fill]] = defaultdict(list)
    for fill in fills:
        if fill.cause in {"order", "deadline"}:
            own[fill.intent_id].append(fill)
    return [_shortfall(intent, own[intent.intent_id]) for intent in intents]


def total_shortfall(parts: Sequence[Shortfall]) -> TotalShortfall:
    """Add the shortfalls of intents in one quote currency."""
    price_cost = _sum(part.price_cost for part in parts)
    fees = _sum(part.fees for part in parts)
    arrival_value = _sum(part.arrival_value for part in parts)
    not_at_all = sum(part.filled == 0 for part in parts)
    whole = sum(part.unfilled == 0 for part in parts)
    return TotalShortfall(
        arrival_value=arrival_value,
        price_cost=price_cost,
        fees=fees,
        total_bps=_in_bps(EXACT.add(price_cost, fees), arrival_value),
        whole=whole,
        in_part=len(parts) - whole - not_at_all,
        not_at_all=not_at_all,
    )


def _shortfall(intent: OrderIntent, fills: Sequence[Fill]) -> Shortfall:
    filled = _sum(fill.quantity for fill in fills)
    arrival_value = EXACT.multiply(filled, intent.arrival_price)
    paid_more = EXACT.subtract(_sum(fill.notional for fill in fills), arrival_value)
    price_cost = EXACT.multiply(intent.side.sign, paid_more)
    fees = _sum(fill.fee for fill in fills)
    return Shortfall(
        intent_id=intent.intent_id,
        symbol=intent.symbol,
        side=intent.side,
        filled=filled,
        unfilled=EXACT.subtract(intent.quantity, filled),
        arrival_value=arrival_value,
        price_cost=price_cost,
        fees=fees,
        total_bps=_in_bps(EXACT.add(price_cost, fees), arrival_value),
    )


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    total = ZERO
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


def _in_bps(part: Decimal, whole: Decimal) -> Decimal | None:
    if whole == 0:
        return None
    return EXACT.divide(EXACT.multiply(part, BPS), whole).quantize(BPS_STEP, ROUND_HALF_EVEN, EXACT)
