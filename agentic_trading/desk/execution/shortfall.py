"""What filling an intent has cost against the price at which it was decided."""

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal

from pydantic import BaseModel

from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.execution.order import OrderIntent
from agentic_trading.desk.instrument import BPS, EXACT, ZERO

BPS_STEP = Decimal("0.0001")


class Shortfall(BaseModel, frozen=True):
    """The implementation shortfall of what was filled, in the quote currency; positive is a cost.

    `price_cost` is what worse prices than the arrival price have cost (delay, spread and impact together),
    exactly; `fees` come on top. `unfilled` is the quantity that was never traded: what it would have earned is
    not known from fills. `total_bps` is price and fees by the arrival value of the filled quantity, rounded to
    1e-4; None if nothing was filled.
    """

    intent_id: str
    filled: Decimal
    unfilled: Decimal
    price_cost: Decimal
    fees: Decimal
    total_bps: Decimal | None


def implementation_shortfall(intent: OrderIntent, fills: Iterable[Fill]) -> Shortfall:
    """Judge the fills of one intent; those of its stop and target, and of other intents, are left out.

    After A. F. Perold, "The Implementation Shortfall: Paper versus Reality", Journal of Portfolio Management
    14(3), 1988: the executed part, side x (fill price - decision price) x quantity + fees.
    """
    filled = price_cost = fees = ZERO
    for fill in fills:
        if fill.intent_id == intent.intent_id and fill.cause in {"order", "deadline"}:
            worse_by = EXACT.multiply(intent.side.sign, EXACT.subtract(fill.price, intent.arrival_price))
            filled = EXACT.add(filled, fill.quantity)
            price_cost = EXACT.fma(worse_by, fill.quantity, price_cost)
            fees = EXACT.add(fees, fill.fee)
    return Shortfall(
        intent_id=intent.intent_id,
        filled=filled,
        unfilled=EXACT.subtract(intent.quantity, filled),
        price_cost=price_cost,
        fees=fees,
        total_bps=_in_bps(EXACT.add(price_cost, fees), EXACT.multiply(filled, intent.arrival_price)),
    )


def _in_bps(part: Decimal, whole: Decimal) -> Decimal | None:
    if whole == 0:
        return None
    return EXACT.divide(EXACT.multiply(part, BPS), whole).quantize(BPS_STEP, ROUND_HALF_EVEN, EXACT)
