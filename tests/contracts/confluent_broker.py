"""The broker port on a second client of Kafka, librdkafka's: it blocks, calls back in its own thread and queues by itself.

It is for tests alone: it shows that the port, and what stands for a partition, are not made for one client.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from agentic_trading.bus.assignment import AssignedPartitions, Assignment
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.errors import BusClosedError, BusUnavailableError, TopicSetupError
from agentic_trading.bus.keyed_queues import ReplyQueue, Takers
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import (
    CREATE,
    MAX_HEAD_BYTES,
    BrokerStatistics,
    ConsumerLag,
    PartitionProgress,
    Subscription,
    Topic,
    summed,
)
from agentic_trading.cancellation import OwnedTasks, set_within
from tests.contracts.confluent_reading import (
    POLL_S,
    STEP_S,
    ConfluentReplyReader,
    bounds_of,
    consumer_of,
    message_of,
    scanned,
)

AT_ONCE: Final = 64


class ConfluentSubscription:
    """One reader of a group. The client is polled in a thread, which also calls back when partitions come and go."""

    def __init__(self, settings: KafkaSettings, topics: Sequence[str], group: str) -> None:
        self._settings = settings
        self._group = group
        self._partitions = AssignedPartitions[Assignment](topics, settings.buffer)
        self._consumer = consumer_of(settings, group)
        self._loop = asyncio.get_running_loop()
        self._takers = Takers()
        self._tasks = OwnedTasks()
        self._begun: list[Assignment] = []  # by the thread, until the loop has them
        self._fetched: list[Any] = []  # by the thread, of partitions that it still has
        self._paused: set[tuple[str, int]] = set()
        self._released, self._undone, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reading: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Join the group."""
        self._consumer.subscribe(
            list(self._partitions.topics), on_assign=self._on_assign, on_revoke=self._on_revoke
        )
        self._reading = [
            self._tasks.start(self._poll(), name=f"confluent-poll-{self._group}"),
            self._tasks.start(self._commit_again_and_again(), name=f"confluent-commit-{self._group}"),
        ]

    async def take(self) -> Delivery:
        while not self.is_closed:
            assignment = self._partitions.next_ready()
            if assignment is not None:
                return assignment.take()
            await self._takers.wait()
        raise BusClosedError(f"the subscription of {self._group}")

    async def ack(self, delivery: Delivery) -> None:
        assignment = self._partitions.holder(delivery)
        if assignment is not None:
            if assignment.finish(delivery):
                self._takers.wake_one()
            self._released.set()
            self._undone.set()

    async def give_back(self, delivery: Delivery) -> None:
        assignment = self._partitions.holder(delivery)
        if assignment is not None:
            assignment.give_back(delivery)
            if assignment.has_ready:
                self._takers.wake_one()
            self._released.set()
            await asyncio.sleep(0)

    async def progress(self) -> Sequence[PartitionProgress]:
        ends = await asyncio.to_thread(self._ends)
        done = {(each.topic, each.partition): each.position for each in self._partitions}
        return [PartitionProgress(*place, end, done.get(place)) for place, end in sorted(ends.items())]

    def _ends(self) -> dict[tuple[str, int], int]:
        """Return the end of each partition; for a thread."""
        found = {}
        for topic in self._partitions.topics:
            for number in self._consumer.list_topics(topic, 3).topics[topic].partitions:
                _, found[topic, number] = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, number), 3
                )
        return found

    async def aclose(self) -> None:
        if self.is_closed:
            return
        self._closing.set()
        self._undone.set()
        self._released.set()
        self._takers.wake_all()
        done = self._partitions.uncommitted()
        self._partitions.forget()
        await asyncio.wait(self._reading)  # nothing but the close may use the client then
        await asyncio.to_thread(self._commit, offsets_of(done))
        await asyncio.to_thread(self._consumer.close)
        await self._tasks.aclose()

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def lag(self) -> Iterator[ConsumerLag]:
        for each in self._partitions:
            _, end = self._consumer.get_watermark_offsets(
                TopicPartition(each.topic, each.partition), cached=True
            )
            yield ConsumerLag(self._group, each.topic, each.waiting(end), each.in_flight)

    # --- in the loop ----------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while not self.is_closed:
            room = {(each.topic, each.partition) for each in self._partitions.with_room()}
            full = {(each.topic, each.partition) for each in self._partitions} - room
            records = await asyncio.to_thread(self._fetch, full)
            if self.is_closed:
                return
            while self._begun:
                self._partitions.begin(self._begun.pop())
            for record in records:
                assignment = self._partitions.get(record.topic(), record.partition())
                if assignment is not None and assignment.add(record.offset(), message_of(record)):
                    self._takers.wake_one()

    async def _commit_again_and_again(self) -> None:
        while not self.is_closed:
            await self._undone.wait()
            self._undone.clear()
            done = self._partitions.uncommitted()
            if await asyncio.to_thread(self._commit, offsets_of(done)):
                for assignment, position in done.items():
                    assignment.committed = position
            await set_within(self._settings.commit_every_s, self._closing)

    async def _give_up(self) -> list[TopicPartition]:
        """Hand out nothing more, wait for what is held within a bound, forget the partitions; return what is to be committed."""
        given_up = list(self._partitions)
        for assignment in given_up:
            assignment.revoke()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                while not self.is_closed and any(each.in_flight for each in given_up):
                    self._released.clear()
                    await self._released.wait()
        done = self._partitions.uncommitted()
        self._partitions.forget()
        return offsets_of(done)

    # --- in the client's thread -----------------------------------------------------------------------------

    def _fetch(self, full: set[tuple[str, int]]) -> list[Any]:
        """Wait a little for records. A rebalance within this drops those of before, which are not committed."""
        self._pause(full)
        self._fetched = []
        record = self._consumer.poll(POLL_S)
        while record is not None and len(self._fetched) < AT_ONCE:
            if record.error() is None:
                self._fetched.append(record)
            record = self._consumer.poll(0) if len(self._fetched) < AT_ONCE else None
        return self._fetched

    def _pause(self, full: set[tuple[str, int]]) -> None:
        for step, changed in (
            (self._consumer.pause, full - self._paused),
            (self._consumer.resume, self._paused - full),
        ):
            if changed:
                with suppress(KafkaException):  # of a partition that is gone
                    step([TopicPartition(*each) for each in changed])
        self._paused = full

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Begin each partition where the group has committed it, else at its start."""
        if self.is_closed:
            consumer.unassign()  # its close waits until what is offered meanwhile was refused
            return
        self._fetched.clear()
        self._paused = set()
        for tp in consumer.committed(partitions, timeout=STEP_S):
            first, end = bounds_of(consumer, tp)
            tp.offset = tp.offset if first <= tp.offset <= end else first
            self._begun = [*self._begun, Assignment(tp.topic, tp.partition, tp.offset)]
            next(each for each in partitions if each == tp).offset = tp.offset
        consumer.assign(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Let the loop drain what is held, and commit before the partitions are somebody else's."""
        self._fetched.clear()
        self._begun = []
        if not self.is_closed:
            giving_up = asyncio.run_coroutine_threadsafe(self._give_up(), self._loop)
            self._commit(giving_up.result(self._settings.drain_s + STEP_S))
        consumer.unassign()

    def _commit(self, offsets: list[TopicPartition]) -> bool:
        """Commit; what cannot be committed now comes again, or is tried again later."""
        if not offsets:
            return False
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return False
        return True


class ConfluentBroker:
    """Keep the promise of `Broker` on a cluster whose topics are there."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._readers: list[ConfluentSubscription | ReplyQueue] = []
        self._published: Counter[str] = Counter()
        self._is_closed = False

    @property
    def max_message_bytes(self) -> int:
        return self._settings.max_message_bytes

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: Topic[Any], messages: Sequence[Message]) -> None:
        self._check_open()
        for message in messages:
            message.check_size(
                topic.name,
                most=self._settings.max_message_bytes * topic.room,
                most_in_head=MAX_HEAD_BYTES * topic.room,
            )
        failed = await asyncio.to_thread(self._send, topic.name, messages)
        if failed:
            raise BusUnavailableError(self._settings.bootstrap_servers, failed)
        self._published[topic.name] += len(messages)

    def _send(self, topic: str, messages: Sequence[Message]) -> str:
        """Send in order and wait for all; return what went wrong."""
        if self._producer is None:
            self._producer = Producer({
                "bootstrap.servers": self._settings.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.max.bytes": 10 * self._settings.max_message_bytes + (1 << 20),
                "message.timeout.ms": round(1000 * self._settings.publish_s),
            })
        failed: list[str] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for each in messages:
            headers = [(name, value.encode()) for name, value in each.headers.items()]
            self._producer.produce(topic, each.value, each.key_bytes, headers=headers, on_delivery=delivered)
        if self._producer.flush(self._settings.publish_s):
            failed.append("publishing took too long")
        return "; ".join(failed[:1])

    async def subscribe(self, topics: Sequence[Topic[Any]], group: str) -> Subscription:
        self._check_open()
        if not topics:
            raise ValueError("A subscription needs at least one topic.")
        subscription = ConfluentSubscription(self._settings, [topic.name for topic in topics], group)
        subscription.start()
        self._readers.append(subscription)
        return subscription

    async def replies(self, address: str) -> Subscription:
        self._check_open()
        reader = ConfluentReplyReader(self._settings, Message(address, b"", {}).key_bytes)
        await reader.start()
        self._readers.append(reader.replies)
        return reader.replies

    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        self._check_open()
        async with aclosing(scanned(self._settings, topic.name)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def check(self, topics: Sequence[Topic[Any]]) -> None:
        self._check_open()
        admin = AdminClient({"bootstrap.servers": self._settings.bootstrap_servers})
        there = (await asyncio.to_thread(admin.list_topics, timeout=STEP_S)).topics
        for topic in topics:
            if topic.name not in there:
                raise TopicSetupError(topic.name, "does not exist", CREATE)

    async def delete_before(self, topic: Topic[Any], positions: Mapping[int, int]) -> None:
        self._check_open()

        def delete() -> None:
            consumer = consumer_of(self._settings, "deletes")
            ends = {each: bounds_of(consumer, TopicPartition(topic.name, each))[1] for each in positions}
            consumer.close()
            admin = AdminClient({"bootstrap.servers": self._settings.bootstrap_servers})
            wanted = [TopicPartition(topic.name, each, min(at, ends[each])) for each, at in positions.items()]
            for done in admin.delete_records(wanted).values():
                done.result(STEP_S)

        await asyncio.to_thread(delete)

    async def aclose(self) -> None:
        self._is_closed = True
        while self._readers:
            await self._readers.pop().aclose()

    def statistics(self) -> BrokerStatistics:
        groups = [each for each in self._readers if isinstance(each, ConfluentSubscription)]
        lags = [lag for each in groups if not each.is_closed for lag in each.lag()]
        return BrokerStatistics(published=dict(self._published), kept={}, backlogs=summed(lags))

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Kafka broker")


def offsets_of(positions: dict[Assignment, int]) -> list[TopicPartition]:
    """Return positions as the client takes them."""
    return [TopicPartition(each.topic, each.partition, at) for each, at in positions.items()]
