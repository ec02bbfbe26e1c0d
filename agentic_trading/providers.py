"""The parts of a provider adapter, and the shipped adapters.

Register an adapter in the entry point group `agentic_trading.providers`.
"""

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, ToolDefinition
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.http import HttpSession
from agentic_trading.llm.providers.keys import Keys, OneKey
from agentic_trading.llm.providers.offline import (
    RecordedAnswers,
    RulesProvider,
    ScriptedProvider,
    ScriptedReply,
)
from agentic_trading.llm.result import Usage
from agentic_trading.platform.adapters import ProviderContext
from agentic_trading.platform.config import ModelConfig, PriceConfig, ProviderConfig

__all__ = [
    "AnthropicProvider",
    "FailureKind",
    "HttpSession",
    "Keys",
    "ModelConfig",
    "ModelRequest",
    "ModelResponse",
    "OneKey",
    "PriceConfig",
    "Provider",
    "ProviderConfig",
    "ProviderContext",
    "ProviderError",
    "RecordedAnswers",
    "RulesProvider",
    "ScriptedProvider",
    "ScriptedReply",
    "ToolDefinition",
    "Usage",
]
