"""Providers, stores, a broker and clocks for your tests, and suites that test your own adapters.

Everything runs without a network and without a key. Names are imported on first use, because a test of a provider needs no desk.
"""

from agentic_trading.lazy import lazy_names

__all__ = [
    "AgentSuite",
    "BarFeedSuite",
    "BrokenContractError",
    "Clock",
    "ExchangeSuite",
    "FaultKind",
    "Faults",
    "FaultyProvider",
    "LiveBarFeedSuite",
    "MemoryBroker",
    "MemoryInteractionStore",
    "ModelServer",
    "ProviderSuite",
    "RecordedAnswers",
    "RemoteProviderSuite",
    "RulesProvider",
    "ScriptedProvider",
    "ScriptedReply",
    "ServerReply",
    "SimClock",
    "SystemClock",
]

NAMES_OF = {
    "bus.brokers.memory": ("MemoryBroker",),
    "clock": ("Clock", "SimClock", "SystemClock"),
    "llm.providers.fault_injection": ("FaultKind", "Faults", "FaultyProvider"),
    "llm.providers.offline": ("RecordedAnswers", "RulesProvider", "ScriptedProvider", "ScriptedReply"),
    "llm.stores.memory": ("MemoryInteractionStore",),
    "testing.agent_suite": ("AgentSuite",),
    "testing.exchange_suite": ("ExchangeSuite",),
    "testing.feed_suite": ("BarFeedSuite", "LiveBarFeedSuite"),
    "testing.model_server": ("ModelServer", "ServerReply"),
    "testing.provider_suite": ("ProviderSuite", "RemoteProviderSuite"),
    "testing.suite": ("BrokenContractError",),
}
"""The public names by module."""

__getattr__, __dir__ = lazy_names(__name__, NAMES_OF)
