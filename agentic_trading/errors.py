"""The one root of every error that this package raises on purpose."""


class TradingError(Exception):
    """Catch this to catch everything that `agentic_trading` raises on purpose."""
