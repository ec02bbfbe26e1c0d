"""A reader on a real Kafka: what is committed, what a crash or a rebalance leaves, what does not stop it."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import TopicPartition

from agentic_trading.bus.brokers.kafka.admin import group_lags
from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.consumer import KafkaSubscription
from agentic_trading.bus.errors import BusUnavailableError, TopicSetupError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.ids import random_id
from agentic_trading.llm.event import Event
from tests import kafka_server
from tests.bus_readers import Fleet, neighbours_out_of_order

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
PATIENCE_S = 15.0


async def topic(servers: str, *, partitions: int = 1) -> Topic[Event]:
    """Return a topic of the test's own."""
    made = Topic(f"topic-{random_id()}", Event)
    await kafka_server.make_topics(servers, [made], partitions=partitions)
    return made


@pytest.fixture
async def broker(kafka_servers: str) -> AsyncIterator[KafkaBroker]:
    async with aclosing(kafka_server.broker(kafka_servers)) as made:
        yield made


async def publish(broker: KafkaBroker, where: Topic[Event], *messages: str) -> None:
    """Publish `key:value` each, as one batch."""
    pairs = [message.split(":") for message in messages]
    await broker.publish_all(where, [Message(key, value.encode(), {}) for key, value in pairs])


async def take(*readers: Subscription) -> Delivery:
    """Return what the first of these readers is handed."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.take()) for reader in readers]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
    return done.pop().result()


async def says(reader: Subscription, count: int) -> list[bytes]:
    """Take, acknowledge and name values."""
    said = []
    for _ in range(count):
        delivery = await take(reader)
        said.append(delivery.message.value)
        await reader.ack(delivery)
    return said


async def committed(servers: str, where: Topic[Event], group: str = "group") -> list[int]:
    """Return what the group has committed, a partition."""
    lags = await group_lags(kafka_server.settings(servers), [where.name], [group])
    return [lag.committed for lag in lags]


def key_in(partition: int, partitions: int) -> str:
    """Return a key of a partition."""
    choose, numbers = DefaultPartitioner(), list(range(partitions))
    return next(str(n) for n in range(1000) if choose(str(n).encode(), numbers, numbers) == partition)


@pytest.mark.parametrize("full", range(4))
async def test_full_partition_does_not_block_others(kafka_servers: str, full: int) -> None:
    settings = kafka_server.settings(kafka_servers, buffer=8)
    async with aclosing(KafkaBroker(settings)) as broker:
        where = await topic(kafka_servers, partitions=4)
        others = {key_in(partition, 4) for partition in range(4) if partition != full}
        await publish(
            broker, where, *(f"{key_in(full, 4)}:{n}" for n in range(64)), *(f"{key}:0" for key in others)
        )
        reader = await broker.subscribe([where], "group")

        held = [await take(reader) for _ in range(4)]

    assert {each.message.key for each in held} == {*others, key_in(full, 4)}


async def test_offset_commit_waits_for_earlier_messages(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic(kafka_servers)
    await publish(broker, where, "a:0", "b:1", "c:2")
    reader = await broker.subscribe([where], "group")
    deliveries = [await take(reader) for _ in range(3)]

    await reader.ack(deliveries[1])
    await reader.ack(deliveries[2])
    await reader.aclose()
    before = await committed(kafka_servers, where)
    following = await broker.subscribe([where], "group")
    said = await says(following, 3)
    await following.aclose()

    assert (before, said) == ([], [b"0", b"1", b"2"])
    assert await committed(kafka_servers, where) == [3]


async def test_acknowledged_message_is_committed_while_reading(
    kafka_servers: str, broker: KafkaBroker
) -> None:
    where = await topic(kafka_servers)
    await publish(broker, where, "a:0", "b:1")
    reader = await broker.subscribe([where], "group")
    assert isinstance(reader, KafkaSubscription)

    await says(reader, 1)
    async with asyncio.timeout(PATIENCE_S):
        while await committed(kafka_servers, where) != [1]:  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.05)

    assert await says(reader, 1) == [b"1"]


async def test_uncommitted_messages_are_redelivered_after_kill(
    kafka_servers: str, broker: KafkaBroker
) -> None:
    where = await topic(kafka_servers)
    await publish(broker, where, "a:0", "a:1", "a:2")
    source = f"""
import asyncio
from agentic_trading.bus.topic import Topic
from agentic_trading.llm.event import Event
from tests import kafka_server

async def main():
    reader = await kafka_server.broker({kafka_servers!r}).subscribe([Topic({where.name!r}, Event)], "group")
    await reader.ack(await reader.take())
    await reader.take()
    print("holds", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    crashed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdout=subprocess.PIPE, cwd=kafka_server.ROOT
    )
    assert crashed.stdout is not None
    assert await crashed.stdout.readline() == b"holds\n"

    crashed.kill()
    await crashed.wait()
    reader = await broker.subscribe([where], "group")
    first = (await says(reader, 1))[0]

    assert first in {b"0", b"1"}
    rest = [b"1", b"2"] if first == b"0" else [b"2"]
    assert await says(reader, len(rest)) == rest


async def test_late_ack_after_revocation_is_ignored(kafka_servers: str) -> None:
    where = await topic(kafka_servers)
    async with (
        aclosing(kafka_server.broker(kafka_servers, drain_s=0.1)) as one,
        aclosing(kafka_server.broker(kafka_servers, drain_s=0.1)) as other,
    ):
        await publish(one, where, "a:0", "a:1")
        first = await one.subscribe([where], "group")
        held = await take(first)

        second = await other.subscribe([where], "group")
        again = await take(first, second)
        await first.ack(held)
        await first.give_back(held)
        await first.aclose()
        await second.aclose()

    assert (again.message, again.position) == (held.message, held.position)
    assert await committed(kafka_servers, where) == []


async def test_revoked_partition_drains_before_handover(kafka_servers: str) -> None:
    where = await topic(kafka_servers, partitions=2)
    async with (
        aclosing(kafka_server.broker(kafka_servers, drain_s=PATIENCE_S)) as one,
        aclosing(kafka_server.broker(kafka_servers, drain_s=PATIENCE_S)) as other,
    ):
        await publish(one, where, *(f"{key}:{key}" for key in "abcdef"))
        first = await one.subscribe([where], "group")
        held = await take(first)

        second = await other.subscribe([where], "group")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(second.take())
            assert isinstance(first, KafkaSubscription)
            async with asyncio.timeout(PATIENCE_S):
                while not any(each.is_revoked for each in first._partitions):  # noqa: ASYNC110 - nothing tells it
                    await asyncio.sleep(0.01)
            await first.ack(held)
            await waiting

    values = Counter(await drained(kafka_servers, where))
    assert held.message.value not in values


async def drained(servers: str, where: Topic[Event], group: str = "group") -> list[bytes]:
    """Return the values that the group has not finished, up to a last message that this adds for each partition."""
    async with aclosing(kafka_server.broker(servers)) as broker:
        reader = await broker.subscribe([where], group)
        marks = [f"{n}:end" for n in range(40)]  # keys enough for every partition
        await publish(broker, where, *marks)
        said: list[bytes] = []
        while said.count(b"end") < len(marks):
            said += await says(reader, 1)
        return [value for value in said if value != b"end"]


async def test_rebalance_keeps_messages_and_key_order(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic(kafka_servers, partitions=6)
    fleet = Fleet(lambda: kafka_server.broker(kafka_servers, buffer=16), where, patience_s=30)
    leaves = [asyncio.Event() for _ in range(3)]
    total = 40 * 30

    async def publish_from(first: int, until: int) -> None:
        await publish(broker, where, *(f"k{key}:{n}" for n in range(first, until) for key in range(40)))

    async with asyncio.TaskGroup() as group:
        await publish_from(0, 10)
        group.create_task(fleet.reads(leaves[0]))
        group.create_task(fleet.reads(leaves[1]))
        await fleet.has_done(200)
        await publish_from(10, 20)
        group.create_task(fleet.reads(leaves[2]))
        await fleet.has_done(600)
        leaves[0].set()
        await publish_from(20, 30)
        await fleet.has_done(total)
        leaves[1].set()
        leaves[2].set()

    assert len(set(fleet.done)) == total
    assert neighbours_out_of_order(fleet.done) == []
    assert len(fleet.done) - total <= 3 * len(leaves)  # what a reader that left held may come again


async def test_full_topic_pauses_while_another_is_read(kafka_servers: str) -> None:
    full, other = await topic(kafka_servers), await topic(kafka_servers)
    async with aclosing(kafka_server.broker(kafka_servers, buffer=8)) as broker:
        await publish(broker, full, *(f"k{n}:{n}" for n in range(60)))
        reader = await broker.subscribe([full, other], "group")
        assert isinstance(reader, KafkaSubscription)
        held = [await take(reader) for _ in range(8)]

        await publish(broker, other, "x:here")
        while held[-1].topic != other.name:
            held.append(await take(reader))
        most = max(sum(each.unfinished for each in reader._partitions.of(full.name)), 8)
        waiting = {lag.topic: lag.waiting + lag.in_flight for lag in reader.lag()}
        for delivery in held:
            await reader.ack(delivery)
        rest = await says(reader, 61 - len(held))

    assert most <= 16  # what there was room for, and one more fetch
    assert waiting == {full.name: 60, other.name: 1}
    assert len(rest) + len(held) == 61


async def test_offset_gap_does_not_stop_reader(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic(kafka_servers)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_servers, transactional_id=random_id())
    await producer.start()
    for value in (b"0", b"1"):
        async with producer.transaction():  # leaves a marker with an offset of its own
            await producer.send_and_wait(where.name, value, key=b"a")
    await producer.stop()

    reader = await broker.subscribe([where], "group")
    said = await says(reader, 2)
    await reader.aclose()

    assert said == [b"0", b"1"]
    assert await committed(kafka_servers, where) == [3]


async def test_foreign_messages_are_delivered(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic(kafka_servers)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_servers)
    await producer.start()
    await producer.send_and_wait(where.name, None, key=b"\xff", headers=[("h", b"\xff"), ("n", b"")])
    await producer.send_and_wait(where.name, b"2", key=None)
    await producer.stop()

    reader = await broker.subscribe([where], "group")
    first, second = await take(reader), await take(reader)

    assert first.message == Message("\udcff", b"", {"h": "\ufffd", "n": ""})
    assert second.message == Message("", b"2", {})


async def test_deleted_offset_falls_back_to_oldest(kafka_servers: str, broker: KafkaBroker) -> None:
    where = await topic(kafka_servers)
    await publish(broker, where, *(f"a:{n}" for n in range(5)))
    reader = await broker.subscribe([where], "group")
    await says(reader, 1)
    await reader.aclose()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await admin.start()
    await admin.delete_records({TopicPartition(where.name, 0): RecordsToDelete(before_offset=3)})
    await admin.close()

    following = await broker.subscribe([where], "group")

    assert await says(following, 2) == [b"3", b"4"]


async def test_subscribe_to_missing_topic_names_remedy(broker: KafkaBroker) -> None:
    with pytest.raises(
        TopicSetupError, match=r"Topic acme does not exist. Run agentic-trading topics create"
    ):
        await broker.subscribe([Topic("acme", Event)], "group")


async def test_subscribe_names_unreachable_servers() -> None:
    async with aclosing(kafka_server.broker("127.0.0.1:1", connect_s=2.0)) as broker:
        with pytest.raises(
            BusUnavailableError, match=r"joining the group group failed: .*\. Servers: 127\.0\.0\.1:1\. Check"
        ):
            await broker.subscribe([Topic("acme", Event)], "group")
