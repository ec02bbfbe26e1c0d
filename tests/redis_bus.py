"""A bus on a real Redis for tests: short waits, keys of the test's own."""

from collections.abc import Sequence
from typing import Any

from agentic_trading.bus.brokers.redis.admin import RedisTopics
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.brokers.redis.connection import RedisBusSettings
from agentic_trading.bus.topic import Topic
from agentic_trading.clock import Clock

LEASE_S = 1.0
"""Of a reader in tests: a handover takes a part of it, a crash is noticed after it."""


def settings(url: str, namespace: str, **changes: Any) -> RedisBusSettings:
    """Return settings with short waits."""
    return RedisBusSettings(
        url, namespace, **{"lease_s": LEASE_S, "drain_s": 2.0, "ack_every_s": 0.01, **changes}
    )


def broker(url: str, namespace: str, *, clock: Clock | None = None, **changes: Any) -> RedisBroker:
    """Return a broker with short waits; whoever opens it closes it."""
    return RedisBroker(settings(url, namespace, **changes), clock=clock)


async def make_topics(url: str, namespace: str, topics: Sequence[Topic[Any]], **changes: Any) -> None:
    """Make topics that are not there."""
    await RedisTopics(settings(url, namespace, **changes)).create(topics)
