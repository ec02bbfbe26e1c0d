"""A bus on a real Redis for tests: short waits, keys of the test's own, and what tests do with it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from agentic_trading.bus.brokers.redis.broker import RedisBroker, RedisSubscription
from agentic_trading.bus.brokers.redis.redis import RedisBusSettings, RedisTopics
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.clock import Clock
from agentic_trading.llm.event import Event
from agentic_trading.redis import pool_of
from tests import redis_server

ROOT = Path(__file__).parents[1]

LEASE_S = 1.0
"""Of a reader in tests: a handover takes a part of it, a crash is noticed after it."""


def settings(url: str, namespace: str, **changes: Any) -> RedisBusSettings:
    """Return settings with short waits."""
    return RedisBusSettings(
        url, namespace, **{"lease_s": LEASE_S, "drain_s": 2.0, "ack_every_s": 0.01, **changes}
    )


def client(url: str) -> "Redis":
    """Return a client of the test's own; one made by `from_url` loses cancellations (see `agentic_trading/redis.py`)."""
    return Redis.from_pool(pool_of(url))


def broker(url: str, namespace: str, *, clock: Clock | None = None, **changes: Any) -> RedisBroker:
    """Return a broker with short waits; whoever opens it closes it."""
    return RedisBroker(settings(url, namespace, **changes), clock=clock)


async def make_topics(url: str, namespace: str, topics: Sequence[Topic[Any]], **changes: Any) -> None:
    """Make topics that are not there."""
    await RedisTopics(settings(url, namespace, **changes)).create(topics)


PATIENCE_S = 8.0
TOPIC = Topic("events", Event)


@dataclass
class Place:
    """A namespace of the test's own on a server, with a topic of `partitions`."""

    url: str
    namespace: str
    redis: Any
    partitions: int = 1

    def broker(self, **changes: Any) -> RedisBroker:
        return broker(self.url, self.namespace, **{"partitions": self.partitions, **changes})

    async def kept(self, partition: int = 0) -> list[bytes]:
        """Return the values that a partition keeps."""
        return [fields[b"value"] for _, fields in await self.redis.xrange(self.stream(partition))]

    async def pending(self, group: str = "group") -> int:
        """Return how many messages the group was handed and has not finished."""
        streams = [self.stream(partition) for partition in range(self.partitions)]
        return sum([(await self.redis.xpending(stream, group))["pending"] for stream in streams])

    def stream(self, partition: int) -> str:
        return f"{{{self.namespace}:bus}}:{TOPIC.name}:{partition}"


@asynccontextmanager
async def place(url: str, partitions: int = 1) -> AsyncIterator[Place]:
    """Give a topic of the test's own."""
    namespace = redis_server.namespace()
    await make_topics(url, namespace, [TOPIC], partitions=partitions)
    async with client(url) as redis:
        yield Place(url, namespace, redis, partitions)


async def publish(broker: RedisBroker, *messages: str) -> None:
    """Publish `key:value` each, as one batch."""
    pairs = [message.split(":") for message in messages]
    await broker.publish_all(TOPIC, [Message(key, value.encode(), {}) for key, value in pairs])


async def opened(broker: RedisBroker, group: str = "group") -> RedisSubscription:
    made = await broker.subscribe([TOPIC], group)
    assert isinstance(made, RedisSubscription)
    return made


async def take(reader: Subscription) -> Delivery:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.take()


async def says(reader: Subscription, count: int) -> list[bytes]:
    """Take, acknowledge and name values."""
    said = []
    for _ in range(count):
        delivery = await take(reader)
        said.append(delivery.message.value)
        await reader.ack(delivery)
    return said


async def is_so(condition: Any) -> None:
    """Wait until an awaitable condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)


async def equals(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)
