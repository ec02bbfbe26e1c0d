from typing import Final

from agentic_trading.bus.errors import BusError as BusError
from agentic_trading.client.answer import Answer as Answer
from agentic_trading.client.call_log import AnswerNotKeptError as AnswerNotKeptError
from agentic_trading.client.fallback import Alternative as Alternative
from agentic_trading.client.fallback import FallbackGateway as FallbackGateway
from agentic_trading.client.gateway import Gateway as Gateway
from agentic_trading.client.gateway import StructuredGateway as StructuredGateway
from agentic_trading.client.outcome import (
    Attempt as Attempt,
)
from agentic_trading.client.outcome import (
    StructuredOutcome as StructuredOutcome,
)
from agentic_trading.client.outcome import (
    TotalUsage as TotalUsage,
)
from agentic_trading.client.sync_gateway import GatewayContext as GatewayContext
from agentic_trading.client.sync_gateway import SyncGateway as SyncGateway
from agentic_trading.errors import TradingError as TradingError
from agentic_trading.governance.errors import LedgerError as LedgerError
from agentic_trading.governance.limits import Window as Window
from agentic_trading.llm.builder import EnvelopeBuilder as EnvelopeBuilder
from agentic_trading.llm.envelope import (
    DeterminismLevel as DeterminismLevel,
)
from agentic_trading.llm.envelope import (
    EnvelopeWorkflow as EnvelopeWorkflow,
)
from agentic_trading.llm.envelope import (
    EvidenceItem as EvidenceItem,
)
from agentic_trading.llm.envelope import (
    LLMEnvelope as LLMEnvelope,
)
from agentic_trading.llm.envelope import (
    LLMProvider as LLMProvider,
)
from agentic_trading.llm.errors import (
    EnvelopeValidationError as EnvelopeValidationError,
)
from agentic_trading.llm.errors import (
    FailureKind as FailureKind,
)
from agentic_trading.llm.errors import (
    FailureReason as FailureReason,
)
from agentic_trading.llm.errors import (
    LLMCallError as LLMCallError,
)
from agentic_trading.llm.errors import (
    LookAheadError as LookAheadError,
)
from agentic_trading.llm.errors import (
    NoDecision as NoDecision,
)
from agentic_trading.llm.errors import (
    ProviderError as ProviderError,
)
from agentic_trading.llm.errors import (
    RecordError as RecordError,
)
from agentic_trading.llm.errors import (
    StoreError as StoreError,
)
from agentic_trading.llm.event import Event as Event
from agentic_trading.llm.interaction import LLMInteraction as LLMInteraction
from agentic_trading.llm.limits import (
    LLMBudget as LLMBudget,
)
from agentic_trading.llm.limits import (
    OutputPolicy as OutputPolicy,
)
from agentic_trading.llm.limits import (
    RetryPolicy as RetryPolicy,
)
from agentic_trading.llm.limits import (
    SafetyConstraints as SafetyConstraints,
)
from agentic_trading.llm.provider import (
    ModelRequest as ModelRequest,
)
from agentic_trading.llm.provider import (
    ModelResponse as ModelResponse,
)
from agentic_trading.llm.provider import (
    Provider as Provider,
)
from agentic_trading.llm.provider import (
    ToolDefinition as ToolDefinition,
)
from agentic_trading.llm.providers.offline import (
    RulesProvider as RulesProvider,
)
from agentic_trading.llm.providers.offline import (
    ScriptedProvider as ScriptedProvider,
)
from agentic_trading.llm.providers.offline import (
    ScriptedReply as ScriptedReply,
)
from agentic_trading.llm.result import (
    Fix as Fix,
)
from agentic_trading.llm.result import (
    LLMResult as LLMResult,
)
from agentic_trading.llm.result import (
    Stage as Stage,
)
from agentic_trading.llm.result import (
    Usage as Usage,
)
from agentic_trading.llm.result import (
    Violation as Violation,
)
from agentic_trading.llm.store import InteractionStore as InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore as JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability as Durability
from agentic_trading.llm.stores.memory import MemoryInteractionStore as MemoryInteractionStore
from agentic_trading.platform.adapters import ProviderContext as ProviderContext
from agentic_trading.platform.clients import remote_gateway as remote_gateway
from agentic_trading.platform.config import (
    BusConfig as BusConfig,
)
from agentic_trading.platform.config import (
    FallbackConfig as FallbackConfig,
)
from agentic_trading.platform.config import (
    LedgerConfig as LedgerConfig,
)
from agentic_trading.platform.config import (
    LogConfig as LogConfig,
)
from agentic_trading.platform.config import (
    ModelConfig as ModelConfig,
)
from agentic_trading.platform.config import (
    PlatformConfig as PlatformConfig,
)
from agentic_trading.platform.config import (
    PriceConfig as PriceConfig,
)
from agentic_trading.platform.config import (
    ProviderConfig as ProviderConfig,
)
from agentic_trading.platform.config import (
    TenantConfig as TenantConfig,
)
from agentic_trading.platform.embedded import local_gateway as local_gateway
from agentic_trading.platform.errors import ConfigError as ConfigError
from agentic_trading.platform.errors import ConfigProblem as ConfigProblem
from agentic_trading.platform.platform import Platform as Platform
from agentic_trading.platform.platform import Ports as Ports
from agentic_trading.platform.settings import load_config as load_config

__version__: Final[str]

__all__ = [
    "Alternative",
    "Answer",
    "AnswerNotKeptError",
    "Attempt",
    "BusConfig",
    "BusError",
    "ConfigError",
    "ConfigProblem",
    "DeterminismLevel",
    "Durability",
    "EnvelopeBuilder",
    "EnvelopeValidationError",
    "EnvelopeWorkflow",
    "Event",
    "EvidenceItem",
    "FailureKind",
    "FailureReason",
    "FallbackConfig",
    "FallbackGateway",
    "Fix",
    "Gateway",
    "GatewayContext",
    "InteractionStore",
    "JsonFileInteractionStore",
    "LLMBudget",
    "LLMCallError",
    "LLMEnvelope",
    "LLMInteraction",
    "LLMProvider",
    "LLMResult",
    "LedgerConfig",
    "LedgerError",
    "LogConfig",
    "LookAheadError",
    "MemoryInteractionStore",
    "ModelConfig",
    "ModelRequest",
    "ModelResponse",
    "NoDecision",
    "OutputPolicy",
    "Platform",
    "PlatformConfig",
    "Ports",
    "PriceConfig",
    "Provider",
    "ProviderConfig",
    "ProviderContext",
    "ProviderError",
    "RecordError",
    "RetryPolicy",
    "RulesProvider",
    "SafetyConstraints",
    "ScriptedProvider",
    "ScriptedReply",
    "Stage",
    "StoreError",
    "StructuredGateway",
    "StructuredOutcome",
    "SyncGateway",
    "TenantConfig",
    "ToolDefinition",
    "TotalUsage",
    "TradingError",
    "Usage",
    "Violation",
    "Window",
    "__version__",
    "load_config",
    "local_gateway",
    "remote_gateway",
]
