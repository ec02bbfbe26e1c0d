"""What a result rests on is told with the values that a session is played with."""

from agentic_trading.desk.agents.analyst import CmtAgent
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.report import assumptions


def test_assumptions_show_configured_values() -> None:
    told = "; ".join(assumptions(trading.venue([]), CmtAgent().sizing()))

    assert told == (
        "fees of 2 bps for a maker and 5 for a taker; 0.5 bps of half a spread against a taker; "
        "shorts without borrow cost; no latency, but no fill before the bar after a decision; "
        "1 % of the equity at risk per entry; 100,000 to start with"
    )
