"""The broker port on a second client of Kafka, librdkafka's: it blocks, calls back in its own thread and queues by itself.

It is for tests alone: it shows that the port, and what stands for a partition, are not made for one client.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from agentic_trading.bus.assignment import AssignedPartitions, Assignment
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.errors import BusClosedError, BusUnavailableError
from agentic_trading.bus.keyed_queues import Takers
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import REPLIES, BrokerStatistics, ConsumerLag, Subscription, Topic, summed
from agentic_trading.cancellation import OwnedTasks, set_within

POLL_S: Final = 0.1
STEP_S: Final = 5.0
AT_ONCE: Final = 64
TRIES: Final = 50

_PARTITION_OF: Final = DefaultPartitioner()
"""The same as the producer's `murmur2_random`, for messages with a key."""


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


class ConfluentReplyReader:
    """Read the messages of one key from now on, without a group."""

    def __init__(self, settings: KafkaSettings, key: bytes) -> None:
        self._key = key
        self._consumer = consumer_of(settings, "none")
        self._waiting: deque[Delivery] = deque()
        self._takers = Takers()
        self._tasks = OwnedTasks()
        self._reading: asyncio.Task[None] | None = None
        self.is_closed = False

    async def start(self) -> None:
        await asyncio.to_thread(self._assign)
        self._reading = self._tasks.start(self._poll(), name="confluent-replies")

    def _assign(self) -> None:
        numbers = partitions_of(self._consumer, REPLIES.name)
        tp = TopicPartition(REPLIES.name, _PARTITION_OF(self._key, numbers, numbers))
        _, tp.offset = bounds_of(self._consumer, tp)
        self._consumer.assign([tp])

    async def take(self) -> Delivery:
        while not self.is_closed:
            if self._waiting:
                return self._waiting.popleft()
            await self._takers.wait()
        raise BusClosedError("the reader of replies")

    async def ack(self, delivery: Delivery) -> None:
        """Change nothing."""

    async def give_back(self, delivery: Delivery) -> None:
        """Change nothing."""

    async def aclose(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._takers.wake_all()
        assert self._reading is not None
        await asyncio.wait([self._reading])
        await asyncio.to_thread(self._consumer.close)
        await self._tasks.aclose()

    async def _poll(self) -> None:
        while not self.is_closed:
            record = await asyncio.to_thread(self._consumer.poll, POLL_S)
            if record is not None and record.error() is None and record.key() == self._key:
                self._waiting.append(delivery_of(record))
                self._takers.wake_one()


class ConfluentBroker:
    """Keep the promise of `Broker` on a cluster whose topics are there."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._readers: list[ConfluentSubscription | ConfluentReplyReader] = []
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
            topic.check_size(message, self._settings.max_message_bytes)
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
            raise ValueError("a subscription needs at least one topic")
        subscription = ConfluentSubscription(self._settings, [topic.name for topic in topics], group)
        subscription.start()
        self._readers.append(subscription)
        return subscription

    async def replies(self, address: str) -> Subscription:
        self._check_open()
        reader = ConfluentReplyReader(self._settings, Message(address, b"", {}).key_bytes)
        await reader.start()
        self._readers.append(reader)
        return reader

    async def scan(self, topic: Topic[Any]) -> AsyncGenerator[Delivery]:
        self._check_open()
        consumer = consumer_of(self._settings, "none")
        try:
            ends = await asyncio.to_thread(_begun, consumer, topic.name)
            while ends:
                record = await asyncio.to_thread(consumer.poll, POLL_S)
                is_whole = record is not None and record.error() is None
                if is_whole and record.offset() < ends.get(record.partition(), 0):
                    yield delivery_of(record)
                positions = consumer.position([TopicPartition(topic.name, number) for number in ends])
                ends = {
                    tp.partition: ends[tp.partition] for tp in positions if tp.offset < ends[tp.partition]
                }
        finally:
            await asyncio.to_thread(consumer.close)

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


def consumer_of(settings: KafkaSettings, group: str) -> Any:
    """Return a consumer that commits nothing by itself."""
    session_ms = round(1000 * settings.session_s)
    return Consumer({
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "roundrobin",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(100, session_ms // 10),
        "fetch.wait.max.ms": 50,
        "log_level": 2,
    })


def partitions_of(consumer: Any, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions, in order."""
    return sorted(consumer.list_topics(topic, timeout=STEP_S).topics[topic].partitions)


def bounds_of(consumer: Any, tp: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and its end; one that was just made may be without a leader for a moment."""
    for _ in range(TRIES):
        with suppress(KafkaException):
            first, end = consumer.get_watermark_offsets(tp, timeout=STEP_S)
            return first, end
        consumer.list_topics(tp.topic, timeout=STEP_S)
    raise BusUnavailableError(str(tp.topic), "asking for the ends of partitions failed")


def _begun(consumer: Any, topic: str) -> dict[int, int]:
    """Go to the start of each partition that has something; return the ends of these."""
    partitions = [TopicPartition(topic, number) for number in partitions_of(consumer, topic)]
    ends = {}
    for tp in partitions:
        tp.offset, end = bounds_of(consumer, tp)
        if tp.offset < end:
            ends[tp.partition] = end
    consumer.assign([tp for tp in partitions if tp.partition in ends])
    return ends


def offsets_of(positions: dict[Assignment, int]) -> list[TopicPartition]:
    """Return positions as the client takes them."""
    return [TopicPartition(each.topic, each.partition, at) for each, at in positions.items()]


def message_of(record: Any) -> Message:
    """Return a record as a message."""
    key = (record.key() or b"").decode("utf-8", "surrogateescape")
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers() or ()}
    return Message(key, record.value() or b"", headers)


def delivery_of(record: Any) -> Delivery:
    """Return a record as a delivery that nobody holds."""
    return Delivery(record.topic(), record.offset(), message_of(record), 1, record.partition())
