"""A trade as it follows from a judgement: side, exact prices, reward for risk."""

from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from pydantic import BaseModel

from agentic_trading.desk.analysis.plan_prices import PlanPrices
from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.instrument import Side

SIDES: Final = {Direction.BULLISH: Side.BUY, Direction.BEARISH: Side.SELL}


class TradePlan(BaseModel, frozen=True):
    """What to trade and where to leave; how much is for the limits between plan and order to say.

    `entry` is the limit price, or the last close for an entry at the market. The whole position is closed at
    `target` or at `stop`. `risk_reward` is that of `risk_reward(entry, stop, target)`.
    """

    symbol: str
    side: Side
    entry_type: Literal["market", "limit"]
    entry: Decimal
    stop: Decimal
    target: Decimal
    risk_reward: Decimal
    invalidation: str


def trade_plan(
    symbol: str,
    direction: Direction,
    prices: PlanPrices,
    last_close: Decimal,
    invalidation: str | None = None,
) -> TradePlan | None:
    """Return the plan that checked prices make in `direction`; None where that is neutral.

    `invalidation` is by default a trade at the stop.
    """
    side = SIDES.get(direction)
    if side is None:
        return None
    entry = last_close if prices.entry == "market" else prices.entry
    return TradePlan(
        symbol=symbol,
        side=side,
        entry_type="market" if prices.entry == "market" else "limit",
        entry=entry,
        stop=prices.stop,
        target=prices.target,
        risk_reward=risk_reward(entry, prices.stop, prices.target),
        invalidation=invalidation or f"a trade at {prices.stop:f}",
    )


def risk_reward(entry: Decimal, stop: Decimal, target: Decimal) -> Decimal:
    """Return |target - entry| / |entry - stop|, the reward for one unit of risk, rounded down to hundredths.

    Exact until the one rounding, and before costs. Raises `ZeroDivisionError` if the stop is at the entry,
    which the check of an answer does not let through.
    """
    ratio = abs(Fraction(target) - Fraction(entry)) / abs(Fraction(entry) - Fraction(stop))
    return Decimal(f"{int(ratio * 100)}e-2")  # from text: arithmetic would round to 28 digits
