"""The broker on Redis Streams. Readers of a group own the streams of a topic under leases."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import groupby
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.brokers.redis.lease import OwnedPartition, PartitionLease
from agentic_trading.bus.brokers.redis.redis import (
    RedisBusSettings,
    StreamServer,
    done_or_raise,
    made_or_raise,
)
from agentic_trading.bus.errors import BacklogFullError, BusClosedError, BusError, TopicSetupError
from agentic_trading.bus.keyed_queues import ReplyQueue, Takers
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.cancellation import OwnedTasks, set_within
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.logger import get_logger

log = get_logger()

WAIT_S: Final = 0.1
"""How long a reader waits for messages before it checks its partitions again."""

RETRY_S: Final = 0.5
CLOSE_S: Final = 2.0

REPLY_WAIT_S: Final = 1.0
PAGE: Final = 64

REPLIES_KEPT: Final = 10_000
"""The approximate number of unread replies that an address keeps."""

REPLIES_STAY_S: Final = 3600
"""How long replies are kept after the last reply, and after the last sign of the reader."""

_KEPT_EVERY: Final = 60
"""The number of waits after which a reader extends the life of its stream."""

_HEADERS: Final = TypeAdapter(dict[str, str])


class RedisReplyReader:
    """Read the replies to `address` that are published from now on into `replies`.

    Start it once.
    """

    def __init__(self, server: StreamServer, settings: RedisBusSettings, address: str) -> None:
        self._server = server
        self._settings = settings
        self._keys = settings.keys_of(topic_api.REPLIES.name)
        self._stream = self._keys.reply_stream(Message(address, b"", {}).key_bytes)
        self._last = "0-0"
        self.replies = ReplyQueue(self._stop)
        self._tasks = OwnedTasks()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the end of the stream and start reading.

        Raises `BusUnavailableError`, or `TopicSetupError` if the topic does not exist.
        """
        (made,) = await self._server.partitions([self._keys])
        made_or_raise(topic_api.REPLIES.name, made, made or 0)
        (self._last,) = await self._server.last_ids([self._stream])
        self._reading = self._tasks.start(self._read(), name="redis-replies")

    async def _stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._tasks.aclose()

    async def _read(self) -> None:
        """Read until closed, at most `buffer` replies ahead."""
        waits = 0
        while True:
            await self.replies.room(self._settings.buffer)
            try:
                if waits % _KEPT_EVERY == 0:
                    await self._server.keep(self._stream, REPLIES_STAY_S)
                found = await self._server.read({self._stream: self._last}, most=PAGE, wait_s=REPLY_WAIT_S)
            except BusError as e:
                log.warning("redis_replies_failed", error=str(e))
                await asyncio.sleep(RETRY_S)
                continue
            waits += 1
            for id_, fields in found.get(self._stream, ()):
                self._last = id_.decode()
                self.replies.add(Delivery(topic_api.REPLIES.name, _place_of(id_), message_in(fields), 1))


async def scanned_streams(
    server: StreamServer, settings: RedisBusSettings, topic: topic_api.Topic[Any]
) -> AsyncGenerator[Delivery]:
    """Yield all stored messages of `topic`, partition by partition.

    Raises `BusUnavailableError`, or `TopicSetupError` for an invalid topic.
    """
    keys = settings.keys_of(topic.name)
    (made,) = await server.partitions([keys])
    made_or_raise(topic.name, made, keys.partitions)
    streams = [keys.stream(partition) for partition in range(keys.partitions)]
    for partition, (stream, last) in enumerate(zip(streams, await server.last_ids(streams), strict=True)):
        after = "0-0"
        while entries := await server.page(stream, after, last, most=PAGE):
            for id_, fields in entries:
                yield Delivery(topic.name, position_of(id_), message_in(fields), 1, partition)
            after = entries[-1][0].decode()


def fields_of(message: Message) -> tuple[bytes, bytes, bytes]:
    """Return key, headers and value as stored in a stream."""
    return message.key_bytes, _HEADERS.dump_json(dict(message.headers)), message.value


def message_in(fields: Mapping[bytes, bytes]) -> Message:
    """Return a stream entry as a message. Invalid headers of other programs are ignored."""
    headers: dict[str, str] = {}
    with suppress(ValidationError):
        headers = _HEADERS.validate_json(fields.get(b"headers", b""))
    key = fields.get(b"key", b"").decode("utf-8", "surrogateescape")
    return Message(key, fields.get(b"value", b""), headers)


def position_of(id_: bytes) -> int:
    """Return the position of a message in its partition."""
    return int(id_.partition(b"-")[2])


def _place_of(id_: bytes) -> int:
    """Return a number that grows with the time of a reply, and with its order within a millisecond."""
    milliseconds, _, place = id_.partition(b"-")
    return (int(milliseconds) << 20) + int(place)


class RedisSubscription:
    """One reader of a group. Start it once.

    Acknowledged messages are finished on the server every `ack_every_s`, and when the reader closes or gives
    up partitions. After a crash, the messages acknowledged since then are delivered again. While the lease
    may have expired, no message is delivered. `ack` has no effect on a delivery whose partition another
    reader has taken.
    """

    def __init__(self, server: StreamServer, settings: RedisBusSettings, lease: PartitionLease) -> None:
        self._server = server
        self._settings = settings
        self._group = lease.group
        self._partitions = lease.partitions
        self._lease = lease
        self._takers = Takers()
        self._tasks = OwnedTasks()
        self._running: list[asyncio.Task[None]] = []
        self._finishing = asyncio.Lock()
        self._owning = asyncio.Lock()
        self._undone = asyncio.Event()  # set if a message is finished here, but not on the server
        self._is_closed = False

    async def start(self) -> None:
        """Join the group. Raises `BusUnavailableError`, or `TopicSetupError` for an invalid topic."""
        try:
            await self._lease.renew()
        except TopicSetupError:
            # Otherwise the partitions of the other topics would stay owned until the lease ends.
            await self._lease.leave()
            raise
        self._running = [
            self._tasks.start(self._again_and_again(step), name=f"redis{step.__name__}-{self._group}")
            for step in (self._read_next, self._finish_next, self._renew_next)
        ]

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it.

        Raises `BusClosedError` after the subscription or its broker is closed.
        """
        while not self._is_closed:
            if self._lease.is_sure:
                partition = self._partitions.next_ready()
                if partition is not None:
                    return partition.take()
            await self._takers.wait()
        raise BusClosedError(f"the subscription of {self._group}")

    async def ack(self, delivery: Delivery) -> None:
        """Finish a delivery. The server is updated within `ack_every_s`."""
        partition = self._partitions.holder(delivery)
        if partition is None:
            return
        if partition.finish(delivery):
            self._takers.wake_one()
        partition.finished.append(delivery.position)
        self._after_release(partition)
        self._undone.set()

    async def give_back(self, delivery: Delivery) -> None:
        """Return a delivery, so that this reader or the partition's next reader gets it again."""
        partition = self._partitions.holder(delivery)
        if partition is None:
            return
        partition.give_back(delivery)
        if partition.has_ready:
            self._takers.wake_one()
        self._after_release(partition)
        # Otherwise a reader that gives back immediately would block all other tasks of the loop.
        await asyncio.sleep(0)

    async def progress(self) -> Sequence[topic_api.PartitionProgress]:
        """Renew the lease, which returns the ends of this reader's partitions.

        The ends of other readers' partitions are unknown.
        """
        async with self._owning:
            await self._lease.renew()
        return [
            self._progress_of(topic, number)
            for topic in sorted(self._partitions.topics)
            for number in range(self._lease.partitions_of(topic))
        ]

    def _progress_of(self, topic: str, number: int) -> topic_api.PartitionProgress:
        ours = self._partitions.get(topic, number)
        if ours is None or ours.is_revoked:
            return topic_api.PartitionProgress(topic, number, 0, None)
        return topic_api.PartitionProgress(topic, number, ours.end + 1, ours.done)

    async def aclose(self) -> None:
        """Finish the acknowledged messages and leave the group.

        Repeated calls have no effect. It ends within a few seconds, even if the server does not answer.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._takers.wake_all()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    # Wait for a renewal in flight: the server would run it after this reader has left.
                    await self._owning.acquire()
        finally:
            for task in self._running:
                task.cancel()
        await self._tasks.aclose()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._finish()
                await self._lease.leave()
        except (BusError, TimeoutError) as e:
            log.warning("redis_reader_not_left", group=self._group, error=str(e))
        for partition in [*self._partitions]:
            self._partitions.end(partition)

    @property
    def is_closed(self) -> bool:
        """Whether this reader is closed."""
        return self._is_closed

    def lag(self) -> Iterator[topic_api.ConsumerLag]:
        """Yield the unfinished messages of this reader's partitions, by topic."""
        for topic in filter(self._partitions.of, self._partitions.topics):
            ours = self._partitions.of(topic)
            waiting = sum(each.waiting_here_and_there for each in ours)
            yield topic_api.ConsumerLag(self._group, topic, waiting, sum(each.in_flight for each in ours))

    async def _again_and_again(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception as e:  # noqa: BLE001 - a reader continues, because the next step may succeed
                log.warning("redis_reader_failed", group=self._group, step=step.__name__, error=str(e))
                self._read_all_again()
                await asyncio.sleep(min(self._lease.renewed_every_s, RETRY_S))

    # --- reading --------------------------------------------------------------------------------------------

    async def _read_next(self) -> None:
        """Read new messages of topics that have room. If there are none, wait a little."""
        self._lease.changed.clear()
        wanted = [each for each in self._partitions.with_room() if not each.is_revoked]
        behind = [each for each in wanted if each.is_behind]
        if behind:
            await self._fetch(behind)
        elif wanted:
            await self._look(wanted)
        else:
            await set_within(WAIT_S, self._lease.changed)

    async def _look(self, wanted: Sequence[OwnedPartition]) -> None:
        """Wait until one of these streams has a new message.

        This only peeks. A plain group read would let a frozen reader take messages from the partition's next
        owner, so messages are read by a script that checks the owner.
        """
        by_stream = {self._lease.stream(each).encode(): each for each in wanted}
        after = {stream: f"0-{each.seen}" for stream, each in by_stream.items()}
        # Wait less while a topic is full, because it may have room again and is not among the streams read.
        wait_s = WAIT_S / 5 if self._partitions.is_any_full else WAIT_S
        for stream in await self._server.read(after, most=1, wait_s=wait_s):
            by_stream[stream].is_behind = True

    async def _fetch(self, behind: Sequence[OwnedPartition]) -> None:
        for partitions in _by_topic(behind):
            given = [fact for each in partitions for fact in (each.partition, each.token, f"0-{each.seen}")]
            answers = await self._lease.run(
                "read", partitions, [self._partitions.most, *given], doing="reading"
            )
            for partition, (what, *found) in zip(partitions, answers, strict=True):
                self._keep(partition, what, *found)

    def _keep(self, partition: OwnedPartition, what: bytes, found: Any = None) -> None:
        """Queue the messages that were read from a partition."""
        match what:
            case b"lost":
                self._partitions.end(partition)
            case b"all":
                partition.is_behind = False
                self._see(partition, position_of(found), at_least=partition.seen)
            case b"read":
                for id_, fields in found:
                    self._see(partition, position_of(id_), at_least=partition.seen + 1)
                    if fields is None:  # another program deleted the entry, so finish it unread
                        partition.finished.append(partition.seen)
                        self._undone.set()
                    elif partition.add(
                        partition.seen, message_in(dict(zip(fields[::2], fields[1::2], strict=True)))
                    ):
                        self._takers.wake_one()
            case _:  # the answer was full, so the partition stays behind and is read next time
                pass

    def _see(self, partition: OwnedPartition, position: int, *, at_least: int) -> None:
        """Record how far a partition is read.

        If the server was restored to an older state, the partition ends here and begins again with the next
        renewal.
        """
        if position < at_least:
            log.warning(
                "redis_stream_was_set_back",
                topic=partition.topic,
                partition=partition.partition,
                position=position,
            )
            self._partitions.end(partition)
        partition.seen = position

    def _read_all_again(self) -> None:
        """Mark every partition for reading, because messages of a lost answer must be read again."""
        for partition in self._partitions:
            partition.is_behind = True

    # --- finishing ------------------------------------------------------------------------------------------

    async def _finish_next(self) -> None:
        await self._undone.wait()
        self._undone.clear()
        try:
            await self._finish()
        except BusError:
            self._undone.set()
            raise
        await asyncio.sleep(self._settings.ack_every_s)

    async def _finish(self) -> None:
        """Finish acknowledged messages on the server.

        Partitions that another reader owns are ended.
        """
        async with self._finishing:
            for partitions in _by_topic([each for each in self._partitions if each.finished]):
                done = {each: list(each.finished) for each in partitions}
                given: list[Any] = []
                for each, positions in done.items():
                    given += (each.partition, each.token, len(positions), *(f"0-{n}" for n in positions))
                answers = await self._lease.run("finish", partitions, given, doing="finishing messages")
                for (each, positions), answer in zip(done.items(), answers, strict=True):
                    del each.finished[: len(positions)]
                    if answer == b"lost":
                        self._partitions.end(each)

    def _after_release(self, partition: OwnedPartition) -> None:
        if partition.is_revoked and not partition.in_flight:
            self._lease.released.set()
        elif self._partitions.is_any_full:
            self._lease.changed.set()

    # --- owning ---------------------------------------------------------------------------------------------

    async def _renew_next(self) -> None:
        await set_within(self._lease.renewed_every_s, self._lease.released)
        self._lease.released.clear()
        async with self._owning:
            drained = self._lease.drained()
            if drained:
                await self._finish()
            await self._lease.renew(drained)
        self._takers.wake_all()  # deliver messages that waited because the lease may have expired


def _by_topic(partitions: Sequence[OwnedPartition]) -> Iterator[list[OwnedPartition]]:
    """Yield the partitions of each topic, in order."""
    for _, same in groupby(partitions, key=lambda each: each.topic):
        yield list(same)


class RedisBroker:
    """A `Broker` on one Redis server. Its topics must exist (see `topics create`).

    One reader of a group reads a partition at a time, and delivers its keys independently of each other.
    Messages that every group has finished are dropped, so a later group gets only the remaining messages. A
    topic that no group reads keeps all its messages, up to `max_backlog`. A topic with `newest` drops its
    oldest messages instead. Connections are opened when they are needed. Use a broker in one event loop only.

    Args:
        settings: The server and the limits.
        clock: The clock for leases. The default is the system clock.

    """

    def __init__(self, settings: RedisBusSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._server = StreamServer(settings)
        self._subscriptions: list[RedisSubscription] = []
        self._replies: list[ReplyQueue] = []
        self._published: Counter[str] = Counter()
        self._is_closed = False

    @property
    def max_message_bytes(self) -> int:
        """The size limit of a message value in bytes, on a topic whose `room` is 1, as configured."""
        return self._settings.max_message_bytes

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic. See `publish_all`."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in order, all of them or none.

        When this returns, they are stored.

        Raises:
            MessageTooLargeError: If one message is too large. No message was added.
            BusClosedError: After `aclose`. No message was added.
            BacklogFullError: If a partition would exceed `max_backlog`, and the topic has no `newest`.
            TopicSetupError: If the topic does not exist, or has another number of partitions.
            BusSettingsError: If the server may lose acknowledged messages, or is too old.
            BusUnavailableError: If the server does not answer in time. The messages may have been added or
                not.

        """
        self._check_open()
        most, most_in_head = (
            self._settings.max_message_bytes * topic.room,
            topic_api.MAX_HEAD_BYTES * topic.room,
        )
        for message in messages:
            message.check_size(topic.name, most=most, most_in_head=most_in_head)
        if messages:
            await self._server.open()
            await self._add(topic, messages)
            self._published[topic.name] += len(messages)

    async def _add(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        keys, settings = self._settings.keys_of(topic.name), self._settings
        is_reply = topic.name == topic_api.REPLIES.name
        streams: dict[str | bytes, int] = {}  # the number of each stream in the script's KEYS, from 1
        given: list[int | bytes] = [
            settings.partitions,
            settings.max_backlog,
            REPLIES_STAY_S if is_reply else 0,
            REPLIES_KEPT if is_reply else min(topic.newest or 0, settings.max_backlog),
        ]
        for message in messages:
            key = message.key_bytes
            stream = keys.reply_stream(key) if is_reply else keys.stream(keys.partition_of(key))
            given += (streams.setdefault(stream, len(streams) + 1), *fields_of(message))
        answer = await self._server.run(
            "publish", [keys.meta, *streams], given, doing="publishing", within_s=settings.publish_s
        )
        done_or_raise(answer, topic.name, keys.partitions)
        if answer[0] == b"full":
            full = str([*streams][int(answer[1]) - 1])
            partition = int(full.rpartition(":")[2])
            raise BacklogFullError(topic.name, partition, int(answer[2]), settings.max_backlog)
        # Dropped heads are no loss, because each head replaces the one before.
        if int(answer[1]) and topic.name != topic_api.HEADS.name:
            log.warning("redis_oldest_messages_gone", topic=topic.name, count=int(answer[1]))

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
        """Join `group` as one of its readers, and read `topics`.

        Raises the errors of `publish_all` except those about sizes, and `ValueError` if `topics` is empty.
        """
        self._check_open()
        if not topics:
            raise ValueError("A subscription needs at least one topic.")
        await self._server.open()
        names = [topic.name for topic in topics]
        lease = PartitionLease(self._server, self._settings, names, group, clock=self._clock)
        subscription = RedisSubscription(self._server, self._settings, lease)
        await subscription.start()
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that are published from now on.

        Each address has its own stream.
        """
        self._check_open()
        await self._server.open()
        reader = RedisReplyReader(self._server, self._settings, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield the stored messages of a topic.

        Close the generator if you do not read it to the end.
        """
        self._check_open()
        await self._server.open()
        async with aclosing(scanned_streams(self._server, self._settings, topic)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete the messages before a position in a partition. Raises `BusUnavailableError`."""
        self._check_open()
        keys = self._settings.keys_of(topic.name)
        await self._server.open()
        await self._server.trim({
            keys.stream(partition): f"0-{first}" for partition, first in positions.items()
        })

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:
        """Check that the topics exist.

        Raises the errors of `Broker.check`, and `BusSettingsError`.
        """
        self._check_open()
        await self._server.open()
        made = await self._server.partitions([self._settings.keys_of(topic.name) for topic in topics])
        for topic, partitions in zip(topics, made, strict=True):
            made_or_raise(topic.name, partitions, self._settings.partitions)

    async def aclose(self) -> None:
        """Close all subscriptions and stop accepting messages. Repeated calls have no effect."""
        self._is_closed = True
        readers: list[topic_api.Subscription] = [*self._replies, *self._subscriptions]
        async with asyncio.TaskGroup() as group:
            for each in readers:
                group.create_task(each.aclose(), name="redis-close")
        await self._server.aclose()

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return the counts of messages published through this object, and the lag of its own readers.

        `kept` is empty, because only the server has these counts.
        """
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return topic_api.BrokerStatistics(
            published=dict(self._published), kept={}, backlogs=topic_api.summed(lags)
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Redis broker")
