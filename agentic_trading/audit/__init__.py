"""Read logs: trees of causes, sums of costs, verification, and the archive of many logs."""

from agentic_trading.audit.archive import Archiver, opened_archive
from agentic_trading.audit.spend import SpendReport, spend_report
from agentic_trading.audit.trace import AmbiguousIdError, CausalPath, TraceTree, UnknownRecordError, why
from agentic_trading.audit.verify import ArchiveCheck, LogReport, check_archive, verify_log

__all__ = [
    "AmbiguousIdError",
    "ArchiveCheck",
    "Archiver",
    "CausalPath",
    "LogReport",
    "SpendReport",
    "TraceTree",
    "UnknownRecordError",
    "check_archive",
    "opened_archive",
    "spend_report",
    "verify_log",
    "why",
]
