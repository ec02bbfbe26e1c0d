"""Make it happen again: without a network, and compared with what was recorded."""

from agentic_trading.replay.divergence import (
    Difference,
    NetworkBlockedError,
    first_difference,
    no_network,
    request_changes,
)

__all__ = ["Difference", "NetworkBlockedError", "first_difference", "no_network", "request_changes"]
