"""`ack_after = stream`: nothing is answered, finished or acknowledged before its last line is on the bus."""

import asyncio
from contextlib import aclosing

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, event_message
from agentic_trading.bus.topic import ENVELOPES, EVENTS, REPLIES
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.active_claim import key_of
from agentic_trading.worker.claim import Finished
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.error_boundary import UnstreamedError
from tests.build import event
from tests.gateway import GOOD, MemoryGateway, asking, attempts, gateway
from tests.worker.running import running


class Stream:
    """A stream that is as far as a test says; `asked` is set once a line is waited for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.lines: list[int] = []
        self._opened = asyncio.Event()
        self._stopped = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    def stop(self) -> None:
        self._stopped.set()

    async def reached(self, seq: int) -> None:
        self.lines.append(seq)
        self.asked.set()
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(each.wait()) for each in (self._opened, self._stopped)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
        if not self._opened.is_set():
            raise UnstreamedError(seq, "no answer")


def waiting(desk: MemoryGateway) -> int:
    """Return how many deliveries of envelopes and events are not acknowledged."""
    return sum(each.waiting + each.in_flight for each in desk.broker.statistics().backlogs)


async def test_delivery_is_acknowledged_after_last_line() -> None:
    stream = Stream()
    desk = gateway(lambda _: GOOD, stream=stream)
    envelope = asking().build()

    async with running(desk) as client, asyncio.timeout(2), asyncio.TaskGroup() as group:
        answer = group.create_task(client.ask(envelope))
        await stream.asked.wait()
        lines, _ = await desk.store.head()
        before = (waiting(desk), desk.broker.statistics().published.get(REPLIES.name, 0), answer.done())
        stream.open()

    assert before == (1, 0, False)
    assert stream.lines == [lines]  # the dispatch before it was not waited for
    assert lines == 2
    assert isinstance(answer.result(), LLMInteraction)
    assert waiting(desk) == 0


async def test_event_is_acknowledged_after_streaming() -> None:
    stream = Stream()
    desk = gateway(stream=stream)

    async with running(desk):
        await desk.broker.publish(EVENTS, event_message(event()))
        async with asyncio.timeout(2):
            await stream.asked.wait()
        before = waiting(desk)
        stream.open()

    assert (before, waiting(desk)) == (1, 0)


async def test_stop_gives_up_unstreamed_event() -> None:
    stream = Stream()
    desk = gateway(stream=stream)

    async with asyncio.timeout(2), running(desk):
        await desk.broker.publish(EVENTS, event_message(event()))
        await stream.asked.wait()

    assert waiting(desk) == 1
    assert stream.lines == [1]  # it was not taken again


async def test_next_worker_answers_without_new_call() -> None:
    broker, store, claims, stream = MemoryBroker(), MemoryInteractionStore(), MemoryClaimStore(), Stream()
    desk = gateway([GOOD], broker=broker, store=store, claims=claims, stream=stream)
    envelope = asking().build()

    async with aclosing(await broker.replies("asker")) as replies, asyncio.timeout(2):
        async with running(desk):
            await broker.publish(ENVELOPES[envelope.workflow], envelope_message(envelope, reply_to="asker"))
            await stream.asked.wait()
        left = waiting(desk), broker.statistics().published.get(REPLIES.name, 0)
        stream.open()
        again = gateway([], broker=broker, store=store, claims=claims, stream=stream)
        async with running(again):
            await replies.take()

    assert left == (1, 0)
    assert waiting(again) == 0
    assert desk.pool.statistics().dead_letters == again.pool.statistics().dead_letters == 0
    assert len(await attempts(desk, envelope)) == 1
    assert isinstance(await claims.claim(key_of(envelope), envelope.envelope_hash), Finished)
    assert stream.lines == [2, 2]  # the line that was on record is the one that is waited for
