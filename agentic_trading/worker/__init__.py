"""The one loop: envelopes taken from the bus, run under the gate, recorded, published, acknowledged."""

from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.pool import WorkerPool
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies

__all__ = [
    "CallRunner",
    "ClaimStore",
    "Recorder",
    "RunnerDependencies",
    "WorkerPool",
]
