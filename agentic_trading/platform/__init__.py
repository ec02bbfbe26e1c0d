"""Set up a gateway: its configuration, `Platform`, and the entry points for applications."""

from agentic_trading.llm.provider import ToolDefinition
from agentic_trading.platform.adapters import ProviderContext
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.config import (
    BusConfig,
    FallbackConfig,
    LedgerConfig,
    LogConfig,
    ModelConfig,
    PlatformConfig,
    PriceConfig,
    ProviderConfig,
    TenantConfig,
)
from agentic_trading.platform.embedded import local_gateway
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.settings import load_config
from agentic_trading.worker.active_claim import RecoveryReport

__all__ = [
    "BusConfig",
    "ConfigError",
    "ConfigProblem",
    "FallbackConfig",
    "LedgerConfig",
    "LogConfig",
    "ModelConfig",
    "Platform",
    "PlatformConfig",
    "Ports",
    "PriceConfig",
    "ProviderConfig",
    "ProviderContext",
    "RecoveryReport",
    "TenantConfig",
    "ToolDefinition",
    "load_config",
    "local_gateway",
    "remote_gateway",
]
