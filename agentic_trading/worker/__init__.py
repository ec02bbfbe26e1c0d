"""Workers: take envelopes from the bus, run them, record, publish and acknowledge."""

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
