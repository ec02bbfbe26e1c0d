"""The client side of the gateway: envelopes, answers, outcomes and question trees."""

from agentic_trading.client.call_log import AnswerNotKeptError, EarlierCalls
from agentic_trading.client.fallback import FALLBACK_KINDS, FALLS_BACK_ON, Alternative, FallbackGateway
from agentic_trading.client.frames import CausalFrame, RecursionLimits
from agentic_trading.client.gateway import Gateway, GatewayClient
from agentic_trading.client.outcome import Attempt, StructuredOutcome, TotalUsage, outcome_of
from agentic_trading.client.recursion import (
    Concluded,
    Paused,
    Recursion,
    RecursionOutcome,
    ResumeError,
    Savings,
    Unfinished,
    measure_savings,
)
from agentic_trading.client.response import (
    ANSWER_SCHEMA,
    StructuredResponse,
    extract_conclusion,
    extract_sub_tasks,
    parse_llm_response,
)

__all__ = [
    "ANSWER_SCHEMA",
    "FALLBACK_KINDS",
    "FALLS_BACK_ON",
    "Alternative",
    "AnswerNotKeptError",
    "Attempt",
    "CausalFrame",
    "Concluded",
    "EarlierCalls",
    "FallbackGateway",
    "Gateway",
    "GatewayClient",
    "Paused",
    "Recursion",
    "RecursionLimits",
    "RecursionOutcome",
    "ResumeError",
    "Savings",
    "StructuredOutcome",
    "StructuredResponse",
    "TotalUsage",
    "Unfinished",
    "extract_conclusion",
    "extract_sub_tasks",
    "measure_savings",
    "outcome_of",
    "parse_llm_response",
]
