"""Structured output without I/O: build requests, read answers, describe errors."""

from agentic_trading.structured.engine import (
    AskAgain,
    GiveUp,
    InstructorParser,
    NextStep,
    OutputParser,
    Prepared,
    RaiseCap,
    StructuredLogProbsParser,
    next_step,
    prepare,
    read,
    schema_problem,
    select,
)
from agentic_trading.structured.extract import read_json
from agentic_trading.structured.feedback import StructuredErrorFeedback, error_details
from agentic_trading.structured.outcome import Accepted, ParserException, Rejected
from agentic_trading.structured.pydantic_schema import SchemaLike, SemanticCheck, schema_of
from agentic_trading.structured.validation import validate

__all__ = [
    "Accepted",
    "AskAgain",
    "GiveUp",
    "InstructorParser",
    "NextStep",
    "OutputParser",
    "ParserException",
    "Prepared",
    "RaiseCap",
    "Rejected",
    "SchemaLike",
    "SemanticCheck",
    "StructuredErrorFeedback",
    "StructuredLogProbsParser",
    "error_details",
    "next_step",
    "prepare",
    "read",
    "read_json",
    "schema_of",
    "schema_problem",
    "select",
    "validate",
]
