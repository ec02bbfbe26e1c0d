"""An LLM gateway for trading platforms, and a trading desk that uses it.

Packages are listed along the path of a call. Imports go in one direction.

- `errors`, `clock`, `ids`, `files`, `logger`, `canonical`: root error, time, randomness, reading of named
  files, log, canonical JSON
- `llm`: the data of a call, its providers, and the log
- `bus`: message brokers
- `governance`: permissions, budgets and costs
- `structured`: validation of answers against a schema, without I/O
- `worker`: the loop that runs calls
- `audit`: traces, sums and verification of logs
- `replay`: comparison of a run with its record, without network
- `client`: the client of the gateway
- `desk`: the trading desk
- `platform`, `operate`, `cli`: setup, operations, and the command line
- `providers`, `brokers`, `recursion`, `testing`: public names for adapters, buses, split questions and tests

Applications use `import agentic_trading as at`. Names are imported on first use. `docs/reference/api.md`
lists all public modules.
"""

from agentic_trading.lazy import lazy_names

__version__ = "0.1.0"

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

NAMES_OF = {
    "bus.errors": ("BusError",),
    "client.answer": ("Answer",),
    "client.call_log": ("AnswerNotKeptError",),
    "client.fallback": (
        "Alternative",
        "FallbackGateway",
    ),
    "client.gateway": (
        "Gateway",
        "StructuredGateway",
    ),
    "client.outcome": (
        "Attempt",
        "StructuredOutcome",
        "TotalUsage",
    ),
    "client.sync_gateway": (
        "GatewayContext",
        "SyncGateway",
    ),
    "errors": ("TradingError",),
    "governance.errors": ("LedgerError",),
    "governance.limits": ("Window",),
    "llm.builder": ("EnvelopeBuilder",),
    "llm.envelope": (
        "DeterminismLevel",
        "EnvelopeWorkflow",
        "EvidenceItem",
        "LLMEnvelope",
        "LLMProvider",
    ),
    "llm.errors": (
        "EnvelopeValidationError",
        "FailureKind",
        "FailureReason",
        "LLMCallError",
        "LookAheadError",
        "NoDecision",
        "ProviderError",
        "RecordError",
        "StoreError",
    ),
    "llm.event": ("Event",),
    "llm.interaction": ("LLMInteraction",),
    "llm.limits": (
        "LLMBudget",
        "OutputPolicy",
        "RetryPolicy",
        "SafetyConstraints",
    ),
    "llm.provider": (
        "ModelRequest",
        "ModelResponse",
        "Provider",
        "ToolDefinition",
    ),
    "llm.providers.offline": (
        "RulesProvider",
        "ScriptedProvider",
        "ScriptedReply",
    ),
    "llm.result": (
        "Fix",
        "LLMResult",
        "Stage",
        "Usage",
        "Violation",
    ),
    "llm.store": ("InteractionStore",),
    "llm.stores.jsonl.store": ("JsonFileInteractionStore",),
    "llm.stores.jsonl.writer": ("Durability",),
    "llm.stores.memory": ("MemoryInteractionStore",),
    "platform.adapters": ("ProviderContext",),
    "platform.clients": ("remote_gateway",),
    "platform.config": (
        "BusConfig",
        "FallbackConfig",
        "LedgerConfig",
        "LogConfig",
        "ModelConfig",
        "PlatformConfig",
        "PriceConfig",
        "ProviderConfig",
        "TenantConfig",
    ),
    "platform.embedded": ("local_gateway",),
    "platform.errors": (
        "ConfigError",
        "ConfigProblem",
    ),
    "platform.platform": (
        "Platform",
        "Ports",
    ),
    "platform.settings": ("load_config",),
}
"""The public names by module. `__init__.pyi` lists them for type checkers. A test compares both."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
