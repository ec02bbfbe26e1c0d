"""Readers of a bus that come and go while messages are published, on any broker, and whether each key kept its order."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.topic import Subscription, Topic


class Fleet:
    """Readers of one group, each on a broker of its own with a few tasks; what is done, in order.

    `has_done` waits at most `patience_s`.
    """

    def __init__(
        self, make_broker: Callable[[], KafkaBroker | RedisBroker], where: Topic[Any], *, patience_s: float
    ) -> None:
        self._make_broker = make_broker
        self._where = where
        self._patience_s = patience_s
        self.done: list[tuple[str, int]] = []
        self._grown = asyncio.Condition()

    async def reads(self, leaves: asyncio.Event) -> None:
        """Read with three tasks until this reader is to leave."""
        async with aclosing(self._make_broker()) as broker:
            reader = await broker.subscribe([self._where], "group")
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(self._work(reader))
                await leaves.wait()
                await reader.aclose()

    async def _work(self, reader: Subscription) -> None:
        while True:
            try:
                delivery = await reader.take()
            except BusClosedError:
                return
            await asyncio.sleep(0)
            self.done.append((delivery.message.key, int(delivery.message.value)))
            await reader.ack(delivery)
            async with self._grown:
                self._grown.notify_all()

    async def has_done(self, count: int) -> None:
        """Wait until so many distinct messages are done."""
        async with asyncio.timeout(self._patience_s), self._grown:
            await self._grown.wait_for(lambda: len(set(self.done)) >= count)


def neighbours_out_of_order(done: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return what was done before what comes before it in its key was done once."""
    seen: Counter[str] = Counter()
    wrong = []
    for key, number in done:
        if number > seen[key]:
            wrong.append((key, number))
        seen[key] = max(seen[key], number + 1)
    return wrong
