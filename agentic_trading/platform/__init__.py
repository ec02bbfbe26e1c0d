"""Where a gateway is put together: its configuration, and the adapters that it names."""

from agentic_trading.platform.config import FallbackConfig, LedgerConfig, PlatformConfig, TenantConfig
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.platform.provider_config import ModelConfig, PriceConfig, ProviderConfig
from agentic_trading.platform.settings import load_config

__all__ = [
    "ConfigError",
    "ConfigProblem",
    "FallbackConfig",
    "LedgerConfig",
    "ModelConfig",
    "PlatformConfig",
    "PriceConfig",
    "ProviderConfig",
    "TenantConfig",
    "load_config",
]
