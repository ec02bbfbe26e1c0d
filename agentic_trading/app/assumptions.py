"""What a result rests on that no bar tells: costs, shorts, latency, size, cash."""

from agentic_trading.app.wire import PaperVenue
from agentic_trading.desk.session import TradingRules


def assumptions(venue: PaperVenue, rules: TradingRules) -> list[str]:
    """Return what was assumed, a phrase each, with the values that a session was played with."""
    costs = venue.costs
    return [
        f"fees of {costs.maker_fee_bps} bps for a maker and {costs.taker_fee_bps} for a taker",
        f"{costs.half_spread_bps} bps of half a spread against a taker",
        "shorts without borrow cost",
        "no latency, but no fill before the bar after a decision",
        f"{rules.risk_pct} % of the equity at risk an entry",
        f"{venue.cash:,} to start with",
    ]
