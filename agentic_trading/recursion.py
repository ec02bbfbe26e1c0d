"""Questions that a model may split into parts, and the outcome of the resulting tree."""

from agentic_trading.client.frames import CausalFrame, RecursionLimits
from agentic_trading.client.recursion import (
    Concluded,
    Paused,
    Recursion,
    RecursionOutcome,
    ResumeError,
    Unfinished,
)
from agentic_trading.client.response import ANSWER_SCHEMA, StructuredResponse, parse_llm_response

__all__ = [
    "ANSWER_SCHEMA",
    "CausalFrame",
    "Concluded",
    "Paused",
    "Recursion",
    "RecursionLimits",
    "RecursionOutcome",
    "ResumeError",
    "StructuredResponse",
    "Unfinished",
    "parse_llm_response",
]
