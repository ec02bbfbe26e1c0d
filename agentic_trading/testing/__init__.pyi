from agentic_trading.bus.brokers.memory import MemoryBroker as MemoryBroker
from agentic_trading.clock import Clock as Clock
from agentic_trading.clock import SimClock as SimClock
from agentic_trading.clock import SystemClock as SystemClock
from agentic_trading.llm.providers.fault_injection import FaultKind as FaultKind
from agentic_trading.llm.providers.fault_injection import Faults as Faults
from agentic_trading.llm.providers.fault_injection import FaultyProvider as FaultyProvider
from agentic_trading.llm.providers.offline import RecordedAnswers as RecordedAnswers
from agentic_trading.llm.providers.offline import RulesProvider as RulesProvider
from agentic_trading.llm.providers.offline import ScriptedProvider as ScriptedProvider
from agentic_trading.llm.providers.offline import ScriptedReply as ScriptedReply
from agentic_trading.llm.stores.memory import MemoryInteractionStore as MemoryInteractionStore
from agentic_trading.testing.agent_suite import AgentSuite as AgentSuite
from agentic_trading.testing.exchange_suite import ExchangeSuite as ExchangeSuite
from agentic_trading.testing.feed_suite import BarFeedSuite as BarFeedSuite
from agentic_trading.testing.feed_suite import LiveBarFeedSuite as LiveBarFeedSuite
from agentic_trading.testing.model_server import ModelServer as ModelServer
from agentic_trading.testing.model_server import ServerReply as ServerReply
from agentic_trading.testing.provider_suite import ProviderSuite as ProviderSuite
from agentic_trading.testing.provider_suite import RemoteProviderSuite as RemoteProviderSuite
from agentic_trading.testing.suite import BrokenContractError as BrokenContractError

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
