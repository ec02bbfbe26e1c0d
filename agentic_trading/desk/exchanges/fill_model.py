"""Where the prices of one bar reach an order: pure functions of one order and one bar."""

from dataclasses import dataclass
from decimal import Decimal

from agentic_trading.desk.exchange import Liquidity
from agentic_trading.desk.exchanges.costs import TradingCosts
from agentic_trading.desk.instrument import Instrument, Side
from agentic_trading.desk.market.bar import Bar


@dataclass(frozen=True, slots=True)
class FillPrice:
    """The price at which a bar fills an order, and on which side of the trade the order stands."""

    price: Decimal
    liquidity: Liquidity


def reach_at_market(side: Side, bar: Bar, costs: TradingCosts, instrument: Instrument) -> FillPrice:
    """Take at the open of the bar, half a spread worse."""
    return FillPrice(costs.taken_at(bar.open, side, instrument), "taker")


def reach_on_arrival(
    side: Side, limit: Decimal, bar: Bar, costs: TradingCosts, instrument: Instrument
) -> FillPrice | None:
    """Fill a limit order that is new to the market and finds it open beyond the limit.

    It takes half a spread worse than the open, and never worse than its limit.
    """
    if not _is_beyond(side, bar.open, limit):
        return None
    taken = costs.taken_at(bar.open, side, instrument)
    return FillPrice(limit if _is_beyond(side, limit, taken) else taken, "taker")


def reach_at_rest(side: Side, limit: Decimal, bar: Bar) -> FillPrice | None:
    """Fill a resting limit order if the bar traded beyond it, at the limit.

    A bar that only touches the limit fills nothing: how much stood before us in the queue is not known.
    """
    return FillPrice(limit, "maker") if _is_beyond(side, _farthest(side, bar), limit) else None


def reach_of_stop(
    side: Side, stop: Decimal, bar: Bar, costs: TradingCosts, instrument: Instrument, *, at_open: bool
) -> FillPrice | None:
    """Trigger a stop that leaves a position by `side`: to touch it is enough, and it takes like a market order.

    It trades at the stop, or at the open where that is worse.
    """
    touched = bar.open if at_open else _farthest(side.opposite, bar)
    if _is_beyond(side, touched, stop):
        return None
    worse = bar.open if _is_beyond(side, stop, bar.open) else stop
    return FillPrice(costs.taken_at(worse, side, instrument), "taker")


def _is_beyond(side: Side, price: Decimal, limit: Decimal) -> bool:
    """Tell whether `price` is strictly better for `side` than `limit`: lower to buy, higher to sell."""
    return price < limit if side is Side.BUY else price > limit


def _farthest(side: Side, bar: Bar) -> Decimal:
    """Return the price of the bar that is best for `side`."""
    return bar.low if side is Side.BUY else bar.high
