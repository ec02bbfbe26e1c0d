"""The outbox on a real Kafka that is killed and comes back."""

import asyncio
from collections import defaultdict
from contextlib import aclosing

import pytest

from agentic_trading.bus.topic import RECORDS
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.services.local import KafkaService
from agentic_trading.worker.outbox import streaming
from tests import kafka_server
from tests.build import event

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


@pytest.mark.soak
async def test_lines_stay_ordered_through_kafka_restart(
    own_kafka: KafkaService,
) -> None:
    servers, store = await asyncio.to_thread(lambda: own_kafka.bootstrap_servers), MemoryInteractionStore()
    await kafka_server.make_topics(servers, [RECORDS])

    async def add(count: int) -> int:
        return [await store.record(event(trace_id=f"t{number % 7}")) for number in range(count)][-1]

    async with aclosing(kafka_server.broker(servers, publish_s=1.0, connect_s=2.0)) as broker:
        async with streaming(store, broker, None) as outbox, asyncio.timeout(30):
            await outbox.reached(await add(300))
            await asyncio.to_thread(own_kafka.kill)
            last = await add(300)
            while not (lag := await outbox.lag()).problem:  # noqa: ASYNC110 - the lag is asked for
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_kafka.start)
            await outbox.reached(last)
            caught_up = await outbox.lag()
        messages = [delivery.message async for delivery in broker.scan(RECORDS)]

    numbers: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        numbers[message.key].append(int(message.headers["at_seq"]))
    firsts = {key: list(dict.fromkeys(found)) for key, found in numbers.items()}
    assert all(found == sorted(found) for found in firsts.values())
    assert sorted(seq for found in firsts.values() for seq in found) == list(range(1, 601))
    assert (lag.lines, caught_up.lines, caught_up.problem) == (300, 0, "")
