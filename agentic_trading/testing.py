"""Providers, stores, a broker and clocks for your tests. They need no network, key or disk."""

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.clock import Clock, SimClock, SystemClock
from agentic_trading.llm.providers.fault_injection import FaultKind, Faults, FaultyProvider
from agentic_trading.llm.providers.offline import (
    RecordedAnswers,
    RulesProvider,
    ScriptedProvider,
    ScriptedReply,
)
from agentic_trading.llm.stores.memory import MemoryInteractionStore

__all__ = [
    "Clock",
    "FaultKind",
    "Faults",
    "FaultyProvider",
    "MemoryBroker",
    "MemoryInteractionStore",
    "RecordedAnswers",
    "RulesProvider",
    "ScriptedProvider",
    "ScriptedReply",
    "SimClock",
    "SystemClock",
]
