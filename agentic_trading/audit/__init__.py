"""What happened: a log as trees of causes, as sums, and as a whole that can be verified."""

from agentic_trading.audit.spend import SpendReport, spend_report
from agentic_trading.audit.trace import CausalPath, TraceTree, UnknownRecordError, why
from agentic_trading.audit.verify import LogReport, verify_log

__all__ = [
    "CausalPath",
    "LogReport",
    "SpendReport",
    "TraceTree",
    "UnknownRecordError",
    "spend_report",
    "verify_log",
    "why",
]
