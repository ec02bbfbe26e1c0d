"""A bus under test: a broker of any kind, with topics and readers of the test's own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import Broker, Subscription, Topic
from agentic_trading.ids import random_id
from agentic_trading.llm.event import Event

ALLOWED_BYTES = 1000


@dataclass
class Reader:
    """A subscription that waits no longer than it has to; `says` takes, acknowledges and names the values."""

    subscription: Subscription
    patience_s: float

    async def take(self) -> Delivery:
        async with asyncio.timeout(self.patience_s):
            return await self.subscription.take()

    async def says(self, count: int) -> list[bytes]:
        said = []
        for _ in range(count):
            delivery = await self.take()
            said.append(delivery.message.value)
            await self.subscription.ack(delivery)
        return said


@dataclass
class Bus:
    """A broker under test, with two topics that no other test uses."""

    broker: Broker
    patience_s: float
    make: Callable[[Sequence[Topic[Any]]], Awaitable[None]] | None = None
    """Makes topics, where a broker does not by itself."""
    first: Topic[Event] = field(default_factory=lambda: Topic(f"first-{random_id()}", Event))
    second: Topic[Event] = field(default_factory=lambda: Topic(f"second-{random_id()}", Event))

    async def publish(self, *messages: str, topic: Topic[Any] | None = None) -> None:
        """Publish `key:value` each."""
        for message in messages:
            key, _, value = message.partition(":")
            await self.broker.publish(topic or self.first, Message(key, value.encode(), {}))

    async def ready(self, *more: Topic[Any]) -> Self:
        """Return it with its topics, and `more`, there to be used."""
        if self.make is not None:
            await self.make([self.first, self.second, *more])
        return self

    async def reader(self, group: str = "group", *topics: Topic[Any]) -> Reader:
        subscription = await self.broker.subscribe(topics or [self.first], group)
        return Reader(subscription, self.patience_s)

    async def reader_of_replies(self, address: str) -> Reader:
        return Reader(await self.broker.replies(address), self.patience_s)

    async def scanned(self) -> list[Delivery]:
        """Return what a scan of the first topic gives."""
        async with asyncio.timeout(self.patience_s), aclosing(self.broker.scan(self.first)) as deliveries:
            return [delivery async for delivery in deliveries]
