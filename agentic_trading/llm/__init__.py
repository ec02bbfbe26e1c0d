"""The types of an LLM call: envelope, result, errors and stores."""

from agentic_trading.errors import TradingError
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import (
    DeterminismLevel,
    EnvelopeWorkflow,
    EvidenceItem,
    LLMEnvelope,
    LLMProvider,
    ResponseFormat,
)
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.errors import (
    EnvelopeValidationError,
    FailureKind,
    FailureReason,
    LLMBudgetExhaustedError,
    LLMCallError,
    LLMError,
    LLMResponseValidationError,
    LookAheadError,
    NoDecision,
    ProviderError,
    RecordConflictError,
    RecordError,
    StoreError,
    StoreLockedError,
    UnknownModelError,
)
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO, LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints
from agentic_trading.llm.result import AttemptTrace, Fix, LLMResult, Stage, Usage, Violation
from agentic_trading.llm.store import IInteractionStore, InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.memory import MemoryInteractionStore

__all__ = [
    "NANO",
    "AttemptTrace",
    "DeterminismLevel",
    "Durability",
    "EnvelopeBuilder",
    "EnvelopeValidationError",
    "EnvelopeWorkflow",
    "Event",
    "EvidenceItem",
    "FailureKind",
    "FailureReason",
    "Fix",
    "IInteractionStore",
    "InteractionStore",
    "JsonFileInteractionStore",
    "LLMBudget",
    "LLMBudgetExhaustedError",
    "LLMCallError",
    "LLMEnvelope",
    "LLMError",
    "LLMInteraction",
    "LLMProvider",
    "LLMResponseValidationError",
    "LLMResult",
    "LookAheadError",
    "MemoryInteractionStore",
    "NoDecision",
    "OutputPolicy",
    "ProviderError",
    "RecordConflictError",
    "RecordError",
    "ResponseFormat",
    "RetryPolicy",
    "SafetyConstraints",
    "Stage",
    "StoreError",
    "StoreLockedError",
    "TradingError",
    "UnknownModelError",
    "Usage",
    "Violation",
    "output_policy",
]
