"""Readers of a bus on any broker: those that come and go while messages are published, and clients that wait for replies."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.errors import BusClosedError
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm.interaction import LLMInteraction
from tests.gateway import asking, gateway
from tests.worker.running import running

MakeBroker = Callable[[], KafkaBroker | RedisBroker]
"""Make a broker that the caller closes."""


class Fleet:
    """Readers of one group, each on a broker of its own with a few tasks; what is done, in order.

    `has_done` waits at most `patience_s`.
    """

    def __init__(self, make_broker: MakeBroker, where: Topic[Any], *, patience_s: float) -> None:
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


async def two_clients_of_one_name_ask(
    make_broker: MakeBroker, *, reply_timeout_s: float
) -> tuple[list[Any], Mapping[str, int]]:
    """Have two clients ask for ten sizes in turn. Return the answers, and the replies that the clients ignored."""
    async with (
        aclosing(make_broker()) as workers,
        aclosing(make_broker()) as mine,
        aclosing(make_broker()) as other,
    ):
        desk = gateway(
            lambda request: f'{{"action":"buy","size":{request.envelope.context["n"]}}}', broker=workers
        )
        async with (
            running(desk),
            GatewayClient(mine, name="desk", reply_timeout_s=reply_timeout_s) as one,
            GatewayClient(other, name="desk", reply_timeout_s=reply_timeout_s) as two,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task((one, two)[n % 2].ask(asking(n=n).build())) for n in range(10)]

    answers = [task.result() for task in tasks]
    sizes = [isinstance(each, LLMInteraction) and each.result.parsed_output["size"] for each in answers]
    return sizes, {**one.ignored_replies, **two.ignored_replies}
