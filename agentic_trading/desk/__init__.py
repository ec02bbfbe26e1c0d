"""The trading desk: agents, market data, analysis, planning and execution.

It is the gateway's first user. Names are imported on first use.
"""

from agentic_trading.lazy import lazy_names

__all__ = [
    "Agent",
    "AgentCheck",
    "AgentFailedError",
    "Approved",
    "Bar",
    "Cancellation",
    "Desk",
    "DeskError",
    "Fill",
    "FillLimits",
    "Question",
    "Rejection",
    "RiskLimits",
    "check_agent",
    "known",
]

NAMES_OF = {
    "desk.agents.agent": ("Agent",),
    "desk.agents.desk": ("Desk",),
    "desk.agents.errors": ("AgentFailedError", "DeskError"),
    "desk.agents.questions": ("Question", "known"),
    "desk.exchange": ("Cancellation", "Fill"),
    "desk.execution.order": ("FillLimits",),
    "desk.execution.risk": ("Approved", "Rejection", "RiskLimits"),
    "desk.market.bar": ("Bar",),
    "desk.session.agent_check": ("AgentCheck", "check_agent"),
}
"""The public names by module."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
