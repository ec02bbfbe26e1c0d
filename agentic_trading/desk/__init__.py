"""The trading desk: agents, market data, analysis, planning and execution.

It is the gateway's first user. Names are imported on first use.
"""

from agentic_trading.lazy import lazy_names

__all__ = [
    "Account",
    "Agent",
    "AgentCheck",
    "AgentFailedError",
    "Approved",
    "Bar",
    "BarFeed",
    "BarFormatError",
    "BarSequenceError",
    "CancelReason",
    "Cancellation",
    "Continuity",
    "Desk",
    "DeskError",
    "Duplicate",
    "Economics",
    "Exchange",
    "Fill",
    "FillLimits",
    "Gap",
    "Instrument",
    "MarketError",
    "OpenOrder",
    "Order",
    "OrderRefusedError",
    "Position",
    "Question",
    "Rejection",
    "RiskLimits",
    "RunReport",
    "Timeframe",
    "UnclosedBar",
    "check_agent",
    "known",
    "run_backtest",
]

NAMES_OF = {
    "desk.agents.agent": ("Agent",),
    "desk.agents.desk": ("Desk",),
    "desk.agents.errors": ("AgentFailedError", "DeskError"),
    "desk.agents.questions": ("Question", "known"),
    "desk.exchange": (
        "Account",
        "CancelReason",
        "Cancellation",
        "Exchange",
        "Fill",
        "OpenOrder",
        "Order",
        "OrderRefusedError",
        "Position",
    ),
    "desk.execution.order": ("FillLimits",),
    "desk.execution.risk": ("Approved", "Rejection", "RiskLimits"),
    "desk.instrument": ("Instrument",),
    "desk.market.bar": ("Bar", "Timeframe"),
    "desk.market.errors": ("BarFormatError", "BarSequenceError", "MarketError"),
    "desk.market.feed": ("BarFeed", "Continuity", "Duplicate", "Gap", "UnclosedBar"),
    "desk.session.agent_check": ("AgentCheck", "check_agent"),
    "desk.session.backtest": ("run_backtest",),
    "desk.session.report": ("RunReport",),
    "trading_limits": ("Economics",),
}
"""The public names by module."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
