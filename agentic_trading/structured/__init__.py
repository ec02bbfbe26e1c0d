"""From a schema to a valid object, without I/O: ask for it, read it, say what is wrong with it."""

from agentic_trading.structured.validation import validate
from agentic_trading.structured.extract import read_json
from agentic_trading.structured.engine import AskAgain
from agentic_trading.structured.engine import GiveUp
from agentic_trading.structured.engine import NextStep
from agentic_trading.structured.engine import RaiseCap
from agentic_trading.structured.engine import next_step
from agentic_trading.structured.engine import read
from agentic_trading.structured.engine import schema_problem
from agentic_trading.structured.outcome import ParserException
from agentic_trading.structured.pydantic_schema import SchemaLike
from agentic_trading.structured.pydantic_schema import schema_of
from agentic_trading.structured.parser import StructuredLogProbsParser
from agentic_trading.structured.outcome import Accepted
from agentic_trading.structured.outcome import Rejected
from agentic_trading.structured.parser import OutputParser
from agentic_trading.structured.parser import select
from agentic_trading.structured.parser import InstructorParser
from agentic_trading.structured.pydantic_schema import SemanticCheck

__all__ = [
    "Accepted",
    "AskAgain",
    "GiveUp",
    "InstructorParser",
    "NextStep",
    "OutputParser",
    "ParserException",
    "RaiseCap",
    "Rejected",
    "SchemaLike",
    "SemanticCheck",
    "StructuredLogProbsParser",
    "next_step",
    "read",
    "read_json",
    "schema_of",
    "schema_problem",
    "select",
    "validate",
]
