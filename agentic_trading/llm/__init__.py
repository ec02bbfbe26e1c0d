"""What an LLM call is, who answers it and where it is kept: the front door of the contract."""

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import (
    DeterminismLevel,
    EnvelopeWorkflow,
    EvidenceItem,
    LLMEnvelope,
    LLMProvider,
    ResponseFormat,
)
from agentic_trading.llm.errors import EnvelopeValidationError
from agentic_trading.llm.errors import LLMBudgetExhaustedError
from agentic_trading.llm.errors import LLMCallError
from agentic_trading.llm.errors import LLMError
from agentic_trading.llm.errors import LLMResponseValidationError
from agentic_trading.llm.errors import LookAheadError
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.errors import RecordConflictError
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.errors import StoreLockedError
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.event import Event
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.errors import FailureReason
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints
from agentic_trading.llm.result import AttemptTrace
from agentic_trading.llm.result import Fix
from agentic_trading.llm.result import Stage
from agentic_trading.llm.result import Violation
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.result import Usage
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.memory import MemoryInteractionStore

__all__ = [
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
    "UnknownModelError",
    "Usage",
    "Violation",
]
