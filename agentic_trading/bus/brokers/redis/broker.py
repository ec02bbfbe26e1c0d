"""The broker on Redis Streams: a topic is a number of streams, a group has one reader a stream at a time, under a lease."""

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
"""How long a reader waits for messages before it looks again which partitions it has."""

RETRY_S: Final = 0.5
CLOSE_S: Final = 2.0

REPLY_WAIT_S: Final = 1.0
PAGE: Final = 64

REPLIES_KEPT: Final = 10_000
"""About how many replies an address keeps that were not read."""

REPLIES_STAY_S: Final = 3600
"""How long they stay after the last one came, and after the reader was last heard."""

_KEPT_EVERY: Final = 60
"""After so many waits a reader says that it is still there."""

_HEADERS: Final = TypeAdapter(dict[str, str])


class RedisReplyReader:
    """Read the replies to `address` that come from now on into `replies`; to be started once."""

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
        """Find the end of the stream; raises `BusUnavailableError`, and `TopicSetupError` where the topic is not there."""
        (made,) = await self._server.partitions([self._keys])
        made_or_raise(topic_api.REPLIES.name, made, made or 0)
        (self._last,) = await self._server.last_ids([self._stream])
        self._reading = self._tasks.start(self._read(), name="redis-replies")

    async def _stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._tasks.aclose()

    async def _read(self) -> None:
        """Read until closed, but no more than `buffer` ahead."""
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
    """Yield all that `topic` keeps now, partition by partition; raises `BusUnavailableError`, and `TopicSetupError`."""
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
    """Return key, headers and value as they stand in a stream."""
    return message.key_bytes, _HEADERS.dump_json(dict(message.headers)), message.value


def message_in(fields: Mapping[bytes, bytes]) -> Message:
    """Return what stands in a stream as a message, whatever another program put there."""
    headers: dict[str, str] = {}
    with suppress(ValidationError):
        headers = _HEADERS.validate_json(fields.get(b"headers", b""))
    key = fields.get(b"key", b"").decode("utf-8", "surrogateescape")
    return Message(key, fields.get(b"value", b""), headers)


def position_of(id_: bytes) -> int:
    """Return the place of a message in its partition."""
    return int(id_.partition(b"-")[2])


def _place_of(id_: bytes) -> int:
    """Return a number that grows with the time of a reply, and with its place within a millisecond."""
    milliseconds, _, place = id_.partition(b"-")
    return (int(milliseconds) << 20) + int(place)


class RedisSubscription:
    """One reader of a group; to be started once.

    What is done is finished on the server every `ack_every_s`, and when the reader closes or gives partitions up: after a
    crash, what was acknowledged since then comes again. While the lease may be over nothing is handed out. A delivery of a
    partition that another reader has taken is not held any more: to acknowledge it does nothing.
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
        self._undone = asyncio.Event()  # something is finished here, and not on the server
        self._is_closed = False

    async def start(self) -> None:
        """Join the group; raises `BusUnavailableError`, and `TopicSetupError` for a topic that is not there."""
        try:
            await self._lease.renew()
        except (
            TopicSetupError
        ):  # of one topic: what is owned of the others would be so for as long as the lease lasts
            await self._lease.leave()
            raise
        self._running = [
            self._tasks.start(self._again_and_again(step), name=f"redis{step.__name__}-{self._group}")
            for step in (self._read_next, self._finish_next, self._renew_next)
        ]

    async def take(self) -> Delivery:
        """Wait for the next delivery and hold it; raises `BusClosedError` once this or its broker is closed."""
        while not self._is_closed:
            if self._lease.is_sure:
                partition = self._partitions.next_ready()
                if partition is not None:
                    return partition.take()
            await self._takers.wait()
        raise BusClosedError(f"the subscription of {self._group}")

    async def ack(self, delivery: Delivery) -> None:
        """Finish a delivery; the server knows it in a moment."""
        partition = self._partitions.holder(delivery)
        if partition is None:
            return
        if partition.finish(delivery):
            self._takers.wake_one()
        partition.finished.append(delivery.position)
        self._after_release(partition)
        self._undone.set()

    async def give_back(self, delivery: Delivery) -> None:
        """Let this reader, or the next one of the partition, be handed the message again."""
        partition = self._partitions.holder(delivery)
        if partition is None:
            return
        partition.give_back(delivery)
        if partition.has_ready:
            self._takers.wake_one()
        self._after_release(partition)
        await asyncio.sleep(0)  # or a reader that gives back at once would keep the loop from all other tasks

    async def progress(self) -> Sequence[topic_api.PartitionProgress]:
        """Renew the lease, which asks for the ends of this reader's partitions; those of other readers are not asked for."""
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
        """Finish what is done and leave the group, within a few seconds whatever the server does. Harmless twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._takers.wake_all()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await (
                        self._owning.acquire()
                    )  # a renewal that is cut off could be done after this reader left
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
        """Whether this reader reads nothing more."""
        return self._is_closed

    def lag(self) -> Iterator[topic_api.ConsumerLag]:
        """Yield how much each topic's partitions of this reader have that is not done; nothing before it has any."""
        for topic in filter(self._partitions.of, self._partitions.topics):
            ours = self._partitions.of(topic)
            waiting = sum(each.waiting_here_and_there for each in ours)
            yield topic_api.ConsumerLag(self._group, topic, waiting, sum(each.in_flight for each in ours))

    async def _again_and_again(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception as e:  # noqa: BLE001 - a reader goes on: the next time it may be right
                log.warning("redis_reader_failed", group=self._group, step=step.__name__, error=str(e))
                self._read_all_again()
                await asyncio.sleep(min(self._lease.renewed_every_s, RETRY_S))

    # --- reading --------------------------------------------------------------------------------------------

    async def _read_next(self) -> None:
        """Read what there is of topics that have room here; where there is nothing, wait a little for more."""
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
        """Wait until one of these has something. Only a script may read for the group: it looks whose partition it is.

        A reader that was frozen while it waited would take from the next owner what comes.
        """
        by_stream = {self._lease.stream(each).encode(): each for each in wanted}
        after = {stream: f"0-{each.seen}" for stream, each in by_stream.items()}
        wait_s = WAIT_S / 5 if self._partitions.is_any_full else WAIT_S  # a full topic may have room again
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
        """Queue what was read of a partition."""
        match what:
            case b"lost":
                self._partitions.end(partition)
            case b"all":
                partition.is_behind = False
                self._see(partition, position_of(found), at_least=partition.seen)
            case b"read":
                for id_, fields in found:
                    self._see(partition, position_of(id_), at_least=partition.seen + 1)
                    if fields is None:  # another program deleted it
                        partition.finished.append(partition.seen)
                        self._undone.set()
                    elif partition.add(
                        partition.seen, message_in(dict(zip(fields[::2], fields[1::2], strict=True)))
                    ):
                        self._takers.wake_one()
            case _:  # there was no room for it in this answer
                pass

    def _see(self, partition: OwnedPartition, position: int, *, at_least: int) -> None:
        """Note how far a partition is read; one whose server was set back is begun again with the next renewal."""
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
        """Look again at every partition: what was read without an answer is read again, in its place."""
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
        """Finish on the server what is done; another reader's partition is not ours any more."""
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
        self._takers.wake_all()  # what was ready while the lease may have been over is handed out now


def _by_topic(partitions: Sequence[OwnedPartition]) -> Iterator[list[OwnedPartition]]:
    """Yield the partitions of each topic, in their order."""
    for _, same in groupby(partitions, key=lambda each: each.topic):
        yield list(same)


class RedisBroker:
    """Keep the promise of `Broker` on one server; topics must be there (`topics create`).

    A partition is read by one reader of a group at a time, which hands out its keys independently of each other. What
    every group has finished is dropped, so a group that comes later gets what is left; a topic that no group reads is kept
    whole, until `max_backlog`. Of a topic with `newest` the oldest ones go instead. Nothing is connected before it is
    needed. For one event loop.
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
        """The largest value of a message on a topic with `room` for one, as it is configured."""
        return self._settings.max_message_bytes

    async def publish(self, topic: topic_api.Topic[Any], message: Message) -> None:
        """Add a message to a topic; it is kept when this returns. Raises as `publish_all` does."""
        await self.publish_all(topic, (message,))

    async def publish_all(self, topic: topic_api.Topic[Any], messages: Sequence[Message]) -> None:
        """Add messages to a topic in their order, all of them or none; they are kept when this returns.

        Beside what the port says, raises `BacklogFullError` where a partition would keep more than `max_backlog` and the
        topic has no `newest`, `TopicSetupError`, `BusSettingsError`, and `BusUnavailableError` without an answer in time:
        they may then be there or not.
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
        streams: dict[str | bytes, int] = {}  # in the order in which the script is given them, from 1 on
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
        if (
            int(answer[1]) and topic.name != topic_api.HEADS.name
        ):  # an old head says nothing that the next one does not
            log.warning("redis_oldest_messages_gone", topic=topic.name, count=int(answer[1]))

    async def subscribe(self, topics: Sequence[topic_api.Topic[Any]], group: str) -> topic_api.Subscription:
        """Read `topics` as one of the readers of `group`; raises as `publish_all` does, but for sizes."""
        self._check_open()
        if not topics:
            raise ValueError("a subscription needs at least one topic")
        await self._server.open()
        names = [topic.name for topic in topics]
        lease = PartitionLease(self._server, self._settings, names, group, clock=self._clock)
        subscription = RedisSubscription(self._server, self._settings, lease)
        await subscription.start()
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    async def replies(self, address: str) -> topic_api.Subscription:
        """Read the replies to `address` that come from now on, in a stream of its own."""
        self._check_open()
        await self._server.open()
        reader = RedisReplyReader(self._server, self._settings, address)
        await reader.start()
        self._replies = [each for each in self._replies if not each.is_closed] + [reader.replies]
        return reader.replies

    async def scan(self, topic: topic_api.Topic[Any]) -> AsyncGenerator[Delivery]:
        """Yield what is kept of a topic now; close it if it is not read to its end."""
        self._check_open()
        await self._server.open()
        async with aclosing(scanned_streams(self._server, self._settings, topic)) as deliveries:
            async for delivery in deliveries:
                yield delivery

    async def delete_before(self, topic: topic_api.Topic[Any], positions: Mapping[int, int]) -> None:
        """Delete what stands before a position in a partition; raises `BusUnavailableError`."""
        self._check_open()
        keys = self._settings.keys_of(topic.name)
        await self._server.open()
        await self._server.trim({
            keys.stream(partition): f"0-{first}" for partition, first in positions.items()
        })

    async def check(self, topics: Sequence[topic_api.Topic[Any]]) -> None:
        """Ask the server for topics; raises as the port says, and `BusSettingsError`."""
        self._check_open()
        await self._server.open()
        made = await self._server.partitions([self._settings.keys_of(topic.name) for topic in topics])
        for topic, partitions in zip(topics, made, strict=True):
            made_or_raise(topic.name, partitions, self._settings.partitions)

    async def aclose(self) -> None:
        """Close all subscriptions and take nothing more; harmless twice."""
        self._is_closed = True
        readers: list[topic_api.Subscription] = [*self._replies, *self._subscriptions]
        async with asyncio.TaskGroup() as group:
            for each in readers:
                group.create_task(each.aclose(), name="redis-close")
        await self._server.aclose()

    def statistics(self) -> topic_api.BrokerStatistics:
        """Return what was published through this object, and how far its own readers lag; what is kept, the server knows."""
        lags = [lag for each in self._subscriptions if not each.is_closed for lag in each.lag()]
        return topic_api.BrokerStatistics(
            published=dict(self._published), kept={}, backlogs=topic_api.summed(lags)
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusClosedError("the Redis broker")
