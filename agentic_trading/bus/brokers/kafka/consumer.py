"""A reader of a Kafka consumer group: fetches ahead, delivers by key, and commits finished messages."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import ConsumerStoppedError, IllegalOperation, KafkaError
from typing_extensions import override

from agentic_trading.bus.assignment import AssignedPartitions, Assignment
from agentic_trading.bus.brokers.kafka.connection import (
    CLOSE_S,
    KafkaSettings,
    bus_error,
    close_within,
    ended_within,
    start_within,
)
from agentic_trading.bus.errors import BusClosedError, TopicSetupError
from agentic_trading.bus.keyed_queues import Takers
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import CREATE, ConsumerLag, PartitionProgress
from agentic_trading.cancellation import set_within
from agentic_trading.logger import get_logger

log = get_logger()

POLL_MS: Final = 200
FETCH_WAIT_MS: Final = 100
"""How long a server waits for records. A partition that has room again waits as long for its next fetch."""

NOTHING: Final = TopicPartition("", 0)
"""A partition that does not exist."""

STEP_S: Final = 3.0
"""How long a commit or a query of offsets may take."""

RETRY_S: Final = 1.0


class KafkaSubscription:
    """One reader of `group`, with its own consumer. Start it once.

    Only finished messages are committed, every `commit_every_s` and when the reader closes or gives up
    partitions. After a crash, the messages acknowledged since the last commit are delivered again. `ack` has
    no effect on a delivery of a partition that was given up.
    """

    def __init__(
        self, settings: KafkaSettings, topics: Sequence[str], group: str, *, member: str = ""
    ) -> None:
        self._settings = settings
        self._group = group
        self._consumer = _consumer_of(settings, settings.full_name(group), member)
        self._partitions = AssignedPartitions[Assignment](topics, settings.buffer)
        self._takers = Takers()
        self._tasks = AsyncExitStack()
        self._beginning = asyncio.Lock()
        self._committing = asyncio.Lock()
        self._undone = asyncio.Event()  # set if there may be positions to commit
        self._released = asyncio.Event()  # set when a delivery of a revoked partition is released
        self._changed = asyncio.Event()  # set if there is more room, or a partition has begun
        self._closing = asyncio.Event()
        self._revocations = 0

    async def start(self) -> None:
        """Join the group.

        Raises `BusUnavailableError`, or `TopicSetupError` if a topic does not exist.
        """
        await start_within(self._consumer, self._settings, doing=f"joining the group {self._group}")
        try:
            await self._check_topics()
            names = list(map(self._settings.full_name, self._partitions.topics))
            self._consumer.subscribe(names, listener=_Rebalance(self))
            group = await self._tasks.enter_async_context(asyncio.TaskGroup())
        except (KafkaError, TimeoutError, OSError) as e:
            await close_within(self._consumer)
            raise bus_error(e, self._settings, "asking for topics") from e
        except BaseException:
            await close_within(self._consumer)
            raise
        group.create_task(self._poll(), name=f"kafka-poll-{self._group}")
        group.create_task(self._commit_again_and_again(), name=f"kafka-commit-{self._group}")

    async def _check_topics(self) -> None:
        async with asyncio.timeout(self._settings.connect_s):
            missing = {
                *map(self._settings.full_name, self._partitions.topics)
            } - await self._consumer.topics()
        if missing:
            raise TopicSetupError(min(missing), "does not exist", CREATE)

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it.

        Raises `BusClosedError` after the subscription or its broker is closed.
        """
        while not self._closing.is_set():
            assignment = self._partitions.next_ready()
            if assignment is not None:
                return assignment.take()
            await self._takers.wait()
        raise BusClosedError(f"the subscription of {self._group}")

    async def ack(self, delivery: Delivery) -> None:
        """Finish a delivery.

        It is committed after all earlier messages of its partition are finished.
        """
        assignment = self._partitions.holder(delivery)
        if assignment is None:
            return
        if assignment.finish(delivery):
            self._takers.wake_one()
        self._after_release(assignment)
        self._undone.set()

    async def give_back(self, delivery: Delivery) -> None:
        """Return a delivery, so that this reader or the partition's next reader gets it again."""
        assignment = self._partitions.holder(delivery)
        if assignment is None:
            return
        assignment.give_back(delivery)
        if assignment.has_ready:
            self._takers.wake_one()
        self._after_release(assignment)
        # Otherwise a reader that gives back immediately would block all other tasks of the loop.
        await asyncio.sleep(0)

    async def progress(self) -> Sequence[PartitionProgress]:
        """Query the end offsets of all partitions.

        A partition is this reader's once it has begun.
        """
        try:
            async with asyncio.timeout(STEP_S):
                ends = await self._consumer.end_offsets([
                    TopicPartition(name, number)
                    for name in map(self._settings.full_name, self._partitions.topics)
                    for number in self._consumer.partitions_for_topic(name) or ()
                ])
        except (KafkaError, TimeoutError, OSError) as e:
            raise bus_error(e, self._settings, "asking for the ends of partitions") from e
        return [
            PartitionProgress(self._settings.plain_name(tp.topic), tp.partition, end, self._done(tp))
            for tp, end in sorted(ends.items())
        ]

    def _done(self, tp: TopicPartition) -> int | None:
        assignment = self._assignment_of(tp)
        is_ours = assignment is not None and tp in self._consumer.assignment()
        return assignment.position if assignment is not None and is_ours else None

    async def aclose(self) -> None:
        """Commit the finished messages and leave the group. Repeated calls have no effect.

        It ends within a few seconds, even if the servers do not answer.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._undone.set()
        self._released.set()
        self._changed.set()
        self._takers.wake_all()
        done = self._partitions.uncommitted()
        self._forget()  # deliveries in flight stay uncommitted, so that the next reader gets them
        try:
            async with self._committing:
                await self._commit(done)
        finally:
            await close_within(self._consumer)
            await ended_within(self._tasks.aclose(), CLOSE_S)

    @property
    def is_closed(self) -> bool:
        """Whether this reader is closed."""
        return self._closing.is_set()

    def lag(self) -> Iterator[ConsumerLag]:
        """Yield the unfinished messages of this reader's partitions, by topic."""
        ours = self._consumer.assignment()
        for topic in filter(self._partitions.of, self._partitions.topics):
            waiting, in_flight = 0, 0
            for each in self._partitions.of(topic):
                tp = self._partition_of(each)
                waiting += each.waiting(self._consumer.highwater(tp) if tp in ours else None)
                in_flight += each.in_flight
            yield ConsumerLag(self._group, topic, waiting, in_flight)

    # --- fetching -------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Fetch until closed."""
        # Never cancel `getmany`, because the client would then treat this reader as dead.
        while not self._closing.is_set():
            try:
                if self._unbegun():
                    await self.begin()
                self._keep(await self._fetched())
            except ConsumerStoppedError:
                return
            except Exception as e:  # noqa: BLE001 - a reader continues, because the next fetch may succeed
                log.warning("kafka_poll_failed", group=self._group, error=f"{type(e).__name__}: {e}")
                await set_within(RETRY_S, self._closing)

    async def _fetched(self) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Wait a little for records of partitions that have begun and have room.

        The client keeps the records of other partitions, and fetches no more of them. If those partitions
        were paused, it would discard their records and fetch them again.
        """
        self._changed.clear()
        wanted = [self._partition_of(each) for each in self._partitions.with_room()]
        may_wait = bool(wanted) and not self._partitions.is_any_full
        fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]
        fetched = await self._consumer.getmany(
            *(wanted or [NOTHING]),  # keep polling, otherwise the group takes away this reader's partitions
            timeout_ms=POLL_MS if may_wait else 0,
            max_records=self._partitions.most,
        )
        if not fetched and not may_wait:
            # Wait here, because the client's own wait would not end when there is room again.
            await set_within(POLL_MS / (10_000 if wanted else 1000), self._changed)
        return fetched

    def _keep(self, fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Queue the records of partitions that this reader still has."""
        for tp, records in fetched.items():
            assignment = self._assignment_of(tp)
            if assignment is None:
                continue
            for record in records:
                if assignment.add(record.offset, message_of(record)):
                    self._takers.wake_one()

    def _after_release(self, assignment: Assignment) -> None:
        if assignment.is_revoked:
            self._released.set()
        elif self._partitions.is_any_full:
            self._changed.set()

    # --- committing -----------------------------------------------------------------------------------------

    async def _commit_again_and_again(self) -> None:
        while not self._closing.is_set():
            await self._undone.wait()
            self._undone.clear()
            async with self._committing:
                await self._commit(self._partitions.uncommitted())
            await set_within(self._settings.commit_every_s, self._closing)

    async def _commit(self, positions: Mapping[Assignment, int]) -> None:
        """Commit positions.

        A failed commit is repeated later, or its messages are delivered again. The caller must hold the lock.
        """
        if not positions:
            return
        offsets = {self._partition_of(each): at for each, at in positions.items()}
        try:
            async with asyncio.timeout(STEP_S if not self._closing.is_set() else CLOSE_S):
                await self._consumer.commit(offsets)
        except (KafkaError, IllegalOperation, TimeoutError, OSError) as e:
            log.warning("kafka_commit_failed", group=self._group, error=f"{type(e).__name__}: {e}")
            self._undone.set()
            return
        for assignment, position in positions.items():
            assignment.committed = position

    # --- rebalances -----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin each new partition at its committed offset.

        If that offset no longer exists, the partition begins at its start.
        """
        # Before it reports an assignment, the client may have fetched records from an offset of its own choice.
        # They are not used. `seek` starts at the committed offset, so that no message is skipped.
        async with self._beginning:
            revocations, fresh = self._revocations, self._unbegun()
            if not fresh:
                return
            async with asyncio.timeout(STEP_S):
                firsts = await self._consumer.beginning_offsets(fresh)
                ends = await self._consumer.end_offsets(fresh)
                known = {tp: await self._consumer.committed(tp) for tp in fresh}
            if self._revocations != revocations or self._closing.is_set():
                return
            for tp in fresh:
                start = firsts[tp] if known[tp] is None else known[tp]
                if not firsts[tp] <= start <= ends[tp]:
                    log.warning(
                        "kafka_committed_offset_is_gone", topic=tp.topic, partition=tp.partition, offset=start
                    )
                    start = firsts[tp]
                self._consumer.seek(tp, start)
                name = self._settings.plain_name(tp.topic)
                self._partitions.begin(Assignment(name, tp.partition, start, ends[tp]))
            self._changed.set()

    async def give_up(self) -> None:
        """Stop delivering, wait up to `drain_s` for deliveries in flight, commit, and remove the partitions.

        A delivery that takes longer continues, and the partition's next reader gets the message again.
        """
        given_up = list(self._partitions)
        for assignment in given_up:
            assignment.revoke()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                while not self._closing.is_set() and any(each.in_flight for each in given_up):
                    self._released.clear()
                    await self._released.wait()
        async with self._committing:
            await self._commit(self._partitions.uncommitted())
            self._forget()

    def _unbegun(self) -> list[TopicPartition]:
        return [tp for tp in self._consumer.assignment() if self._assignment_of(tp) is None]

    def _partition_of(self, assignment: Assignment) -> TopicPartition:
        return TopicPartition(self._settings.full_name(assignment.topic), assignment.partition)

    def _assignment_of(self, tp: TopicPartition) -> Assignment | None:
        return self._partitions.get(self._settings.plain_name(tp.topic), tp.partition)

    def _forget(self) -> None:
        self._revocations += 1
        self._partitions.forget()


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    """Callbacks of the client around each rebalance. The client waits for both."""

    def __init__(self, subscription: KafkaSubscription) -> None:
        self._subscription = subscription

    @override
    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self._subscription.give_up()

    @override
    async def on_partitions_assigned(self, assigned: Any) -> None:
        try:
            await self._subscription.begin()
        except (KafkaError, TimeoutError, OSError) as e:  # `_poll` will begin them later
            log.warning("kafka_begin_failed", error=f"{type(e).__name__}: {e}")


def _consumer_of(settings: KafkaSettings, group: str, member: str) -> Any:
    # A class for each consumer, because the assignor stores its assignment in the class. Two consumers of one
    # process would otherwise overwrite each other's.
    sticky = type("OwnStickyAssignor", (StickyPartitionAssignor,), {})
    session_ms = round(1000 * settings.session_s)
    return AIOKafkaConsumer(
        **settings.client_options(),
        group_id=group,
        group_instance_id=member or None,
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        auto_offset_reset="earliest",
        partition_assignment_strategy=(sticky,),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=max(100, session_ms // 10),
        rebalance_timeout_ms=round(1000 * (settings.drain_s + 5)),
    )


def message_of(record: ConsumerRecord) -> Message:
    """Return a record as a message. Invalid UTF-8 of other programs is replaced."""
    key = record.key.decode("utf-8", "surrogateescape") if record.key else ""
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    return Message(key, record.value or b"", headers)
