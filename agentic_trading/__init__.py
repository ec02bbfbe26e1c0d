"""An LLM gateway for trading, and the trading desk that is its first user.

The packages are laid along the path of a call. Data goes through them in one direction.

- `errors`, `clock`, `ids`, `files`, `logger`, `canonical`: the root error, the only time, the only chance, the reader of named files, the log, one spelling of JSON
- `llm`: what a call is, the providers that answer it, the log that keeps it
- `bus`: how messages move
- `governance`: may it run, and what did it cost
- `structured`: from schema to valid object, without I/O
- `worker`: the one loop
- `audit`: what happened
- `replay`: compare a run with its record, off the network
- `client`: the gateway's client, for any application
- `desk`: the trading desk
- `platform`, `operate`, `cli`: the wiring, the work of operators, the command line
- `providers`, `brokers`, `recursion`, `testing`: public names for adapters, buses, split questions and tests

Applications use `import agentic_trading as at`: every name below is loaded when it is first used. `docs/reference/api.md` lists all public modules.
"""

from agentic_trading.lazy import lazy_names

__version__ = "0.1.0a1"

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
"""The public names by module. `__init__.pyi` has them for type checkers; a test compares both."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
