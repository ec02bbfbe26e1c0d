"""Read logs: records by facts, trees of causes, sums of costs, verification, and the archive of many logs."""

from agentic_trading.audit.archive import Archiver, opened_archive
from agentic_trading.audit.records import (
    FrameLibraryError,
    LoggedFact,
    QueryError,
    RecordFilters,
    RecordReader,
    open_records,
)
from agentic_trading.audit.spend import SpendReport, spend_report
from agentic_trading.audit.trace import AmbiguousIdError, CausalPath, TraceTree, UnknownRecordError, why
from agentic_trading.audit.verify import ArchiveCheck, LogReport, check_archive, verify_log
from agentic_trading.llm.facts import ANY, Fact, FactSums, Latency, RecordQuery

__all__ = [
    "ANY",
    "AmbiguousIdError",
    "ArchiveCheck",
    "Archiver",
    "CausalPath",
    "Fact",
    "FactSums",
    "FrameLibraryError",
    "Latency",
    "LogReport",
    "LoggedFact",
    "QueryError",
    "RecordFilters",
    "RecordQuery",
    "RecordReader",
    "SpendReport",
    "TraceTree",
    "UnknownRecordError",
    "check_archive",
    "open_records",
    "opened_archive",
    "spend_report",
    "verify_log",
    "why",
]
