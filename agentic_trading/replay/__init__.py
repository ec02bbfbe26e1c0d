"""Make it happen again: without a network, and compared with what was recorded."""

from agentic_trading.replay.divergence import Difference, first_difference, request_changes
from agentic_trading.replay.network import NetworkBlockedError, no_network

__all__ = ["Difference", "NetworkBlockedError", "first_difference", "no_network", "request_changes"]
