"""How long a client waits: for a bus that is away, and for an answer."""

from contextlib import aclosing
from datetime import timedelta
from typing import Any

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import Topic
from agentic_trading.client.gateway import ON_ITS_WAY_S, GatewayClient
from agentic_trading.clock import SimClock
from agentic_trading.llm import LLMInteraction, NoDecision
from tests.gateway import GOOD, START, asking, gateway
from tests.worker.running import running


class Restarting(MemoryBroker):
    """A broker whose servers are away at first."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if self.refused < 2:
            self.refused += 1
            raise BusUnavailableError("127.0.0.1:1", "publishing failed")
        await super().publish(topic, message)


async def test_brief_bus_outage_does_not_end_call() -> None:
    broker = Restarting()
    desk = gateway(lambda _request: GOOD, broker=broker)

    async with running(desk) as client:
        answer = await client.ask(asking().build())

    assert isinstance(answer, LLMInteraction)
    assert broker.refused == 2


async def test_call_past_grace_period_ends_immediately() -> None:
    clock = SimClock(START)
    long_ago = asking().with_deadline(START - timedelta(seconds=ON_ITS_WAY_S)).build()

    async with aclosing(MemoryBroker()) as broker, GatewayClient(broker, clock=clock) as client:
        answer = await client.ask(long_ago)

    assert isinstance(answer, NoDecision)
    assert answer.reason.description == "no worker answered within 0 s"
