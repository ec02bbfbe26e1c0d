"""Make it happen again: without a network, and compared with what was recorded."""

from agentic_trading.replay.divergence import Difference
from agentic_trading.replay.divergence import first_difference
from agentic_trading.replay.divergence import request_changes
from agentic_trading.replay.divergence import NetworkBlockedError
from agentic_trading.replay.divergence import no_network

__all__ = ["Difference", "NetworkBlockedError", "first_difference", "no_network", "request_changes"]
