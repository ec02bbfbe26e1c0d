"""The message brokers, for applications that open one themselves."""

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSecurity, KafkaSettings
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.brokers.redis.redis import RedisBusSettings
from agentic_trading.bus.topic import Broker

__all__ = [
    "Broker",
    "KafkaBroker",
    "KafkaSecurity",
    "KafkaSettings",
    "MemoryBroker",
    "RedisBroker",
    "RedisBusSettings",
]
