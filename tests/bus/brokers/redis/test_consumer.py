"""A reader on a real Redis: who owns a partition, what a crash or a freeze leaves, what is dropped and what never is."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis
from typing_extensions import override

from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.brokers.redis.consumer import RedisSubscription
from agentic_trading.bus.brokers.redis.redis import StreamServer
from agentic_trading.bus.errors import BusClosedError, BusUnavailableError, TopicSetupError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import Subscription, Topic
from agentic_trading.clock import SystemClock
from agentic_trading.llm.event import Event
from tests import redis_bus, redis_server

ROOT = redis_bus.ROOT
PATIENCE_S = 8.0
TOPIC = Topic("events", Event)


@dataclass
class Place:
    """A namespace of the test's own on a server, with a topic of one partition."""

    url: str
    namespace: str
    redis: Any
    partitions: int = 1

    def broker(self, **changes: Any) -> RedisBroker:
        return redis_bus.broker(self.url, self.namespace, **{"partitions": self.partitions, **changes})

    async def kept(self, partition: int = 0) -> list[bytes]:
        """Return the values that a partition keeps."""
        return [fields[b"value"] for _, fields in await self.redis.xrange(self.stream(partition))]

    async def pending(self, group: str = "group") -> int:
        """Return how many messages the group was handed and has not finished."""
        streams = [self.stream(partition) for partition in range(self.partitions)]
        return sum([(await self.redis.xpending(stream, group))["pending"] for stream in streams])

    def stream(self, partition: int) -> str:
        return f"{{{self.namespace}:bus}}:{TOPIC.name}:{partition}"


@asynccontextmanager
async def place(url: str, partitions: int = 1) -> AsyncIterator[Place]:
    """Give a topic of the test's own."""
    namespace = redis_server.namespace()
    await redis_bus.make_topics(url, namespace, [TOPIC], partitions=partitions)
    async with Redis.from_url(url) as redis:
        yield Place(url, namespace, redis, partitions)


@pytest.fixture
async def one(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url) as made:
        yield made


@pytest.fixture
async def two(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url, 2) as made:
        yield made


@pytest.fixture
async def many(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url, 16) as made:
        yield made


async def publish(broker: RedisBroker, *messages: str) -> None:
    """Publish `key:value` each, as one batch."""
    pairs = [message.split(":") for message in messages]
    await broker.publish_all(TOPIC, [Message(key, value.encode(), {}) for key, value in pairs])


async def opened(broker: RedisBroker, group: str = "group") -> RedisSubscription:
    made = await broker.subscribe([TOPIC], group)
    assert isinstance(made, RedisSubscription)
    return made


async def take(reader: Subscription) -> Delivery:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.take()


async def says(reader: Subscription, count: int) -> list[bytes]:
    """Take, acknowledge and name values."""
    said = []
    for _ in range(count):
        delivery = await take(reader)
        said.append(delivery.message.value)
        await reader.ack(delivery)
    return said


async def is_so(condition: Any) -> None:
    """Wait until an awaitable condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            pass


# --- what is kept ---------------------------------------------------------------------------------------------


async def test_a_message_is_dropped_when_every_group_has_finished_it_and_not_before(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "b:1", "c:2", "d:3")
        first, second = await opened(broker, "first"), await opened(broker, "second")
        await says(first, 4)
        held = await take(second)
        await second.ack(await take(second))
        await second.ack(await take(second))
        await is_so(lambda: _equals(one.pending("second"), 2))
        with_one_held = await one.kept()

        await second.ack(held)
        await is_so(lambda: _equals(one.kept(), [b"3"]))
        await says(second, 1)
        await is_so(lambda: _equals(one.kept(), []))
        await publish(broker, "a:4")
        positions = [(await take(reader)).position for reader in (first, second)]

    assert with_one_held == [b"0", b"1", b"2", b"3"]
    assert positions == [5, 5]  # what was dropped is counted


async def test_what_no_group_has_read_is_kept(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1")
        early = await opened(broker, "early")
        await says(early, 2)
        await is_so(lambda: _equals(one.kept(), []))
        await publish(broker, "a:2")
        await early.aclose()

        assert await one.kept() == [b"2"]
        assert await says(await opened(broker, "early"), 1) == [b"2"]


async def test_what_is_acknowledged_is_finished_on_the_server_while_the_reader_goes_on(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "b:1")
        reader = await opened(broker)

        await says(reader, 1)
        await is_so(lambda: _equals(one.pending(), 1))

        assert await says(reader, 1) == [b"1"]


async def _equals(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)


# --- who owns a partition ---------------------------------------------------------------------------------------


async def test_two_readers_share_the_partitions_and_one_that_leaves_hands_its_own_over(many: Place) -> None:
    async with aclosing(many.broker()) as one, aclosing(many.broker()) as other:
        first, second = await opened(one), await opened(other)
        await is_so(lambda: _shares(first, second, [8, 8]))

        await first.aclose()
        await is_so(lambda: _shares(second, second, [16, 16]))


async def _shares(one: RedisSubscription, other: RedisSubscription, wanted: list[int]) -> bool:
    await asyncio.sleep(0)
    return [len([*reader._partitions]) for reader in (one, other)] == wanted


async def with_both_under_way(broker: RedisBroker) -> tuple[RedisSubscription, list[Delivery]]:
    """Return a reader of two partitions, with the first message of each under way."""
    await publish(broker, "a:0", "a:1", "d:0", "d:1")
    reader = await opened(broker)
    held = [await take(reader), await take(reader)]
    assert {each.partition for each in held} == {0, 1}
    return reader, held


async def given_up(reader: RedisSubscription) -> int:
    """Wait until a reader has a partition that it hands out no more, and return which."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(each.is_revoked for each in reader._partitions):
            await reader._lease.renew()
    return next(each.partition for each in reader._partitions if each.is_revoked)


async def test_a_partition_goes_over_when_what_is_under_way_is_done(two: Place) -> None:
    async with aclosing(two.broker(drain_s=PATIENCE_S)) as broker:
        first, held = await with_both_under_way(broker)
        second = await opened(broker)
        partition = await given_up(first)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(take(second))
            for _ in range(3):
                await first._lease.renew(first._lease.drained())
                await second._lease.renew()
            is_waiting = not waiting.done()
            for delivery in held:
                await first.ack(delivery)

    assert is_waiting
    assert (waiting.result().partition, waiting.result().message.value) == (partition, b"1")


async def test_what_takes_longer_than_the_drain_comes_again_at_the_next_owner(two: Place) -> None:
    async with aclosing(two.broker(drain_s=0.1)) as broker:
        first, held = await with_both_under_way(broker)
        second = await opened(broker)
        again = await take(second)
        (same,) = [each for each in held if each.partition == again.partition]
        await first.ack(same)
        await first.give_back(same)
        await first.aclose()
        await second.aclose()

        assert (again.message, again.position) == (same.message, same.position)
        assert await two.pending() == 4


class Fleet:
    """Readers that come and go, each with a few tasks; what is done, in order."""

    def __init__(self, where: Place) -> None:
        self.where = where
        self.done: list[tuple[str, int]] = []
        self.grown = asyncio.Condition()

    async def reads(self, leaves: asyncio.Event, **changes: Any) -> None:
        """Read with three tasks until this reader is to leave."""
        async with aclosing(self.where.broker(buffer=16, **changes)) as broker:
            reader = await opened(broker)
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
            async with self.grown:
                self.grown.notify_all()

    async def has_done(self, count: int) -> None:
        """Wait until so many distinct messages are done."""
        async with asyncio.timeout(PATIENCE_S), self.grown:
            await self.grown.wait_for(lambda: len(set(self.done)) >= count)


async def test_when_readers_join_and_leave_nothing_is_lost_and_each_key_keeps_its_order(many: Place) -> None:
    fleet, leaves, total = Fleet(many), [asyncio.Event() for _ in range(3)], 40 * 30

    async def publish_from(first: int, until: int) -> None:
        async with aclosing(many.broker()) as broker:
            await publish(broker, *(f"k{key}:{n}" for n in range(first, until) for key in range(40)))

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

    assert neighbours_out_of_order(fleet.done) == []
    assert len(fleet.done) - total <= 3 * len(leaves)  # what a reader that left held may come again
    assert await many.pending() == 0


def neighbours_out_of_order(done: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return what was done before what comes before it in its key was done once."""
    seen: Counter[str] = Counter()
    wrong = []
    for key, number in done:
        if number > seen[key]:
            wrong.append((key, number))
        seen[key] = max(seen[key], number + 1)
    return wrong


# --- readers that end, freeze, or hear no answer -------------------------------------------------------------------


@asynccontextmanager
async def another_process(where: Place) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process that finishes a message, holds the next one, and acknowledges that when it is told to go on."""
    source = f"""
import asyncio, sys
from agentic_trading.bus.topic import Topic
from agentic_trading.llm.event import Event
from tests import redis_bus

async def main():
    broker = redis_bus.broker({where.url!r}, {where.namespace!r}, partitions={where.partitions})
    reader = await broker.subscribe([Topic({TOPIC.name!r}, Event)], "group")
    await reader.ack(await reader.take())
    held = await reader.take()
    print("holds", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await reader.ack(held)
    try:
        async with asyncio.timeout(1):
            print("took", (await reader.take()).message.value, flush=True)
    except TimeoutError:
        print("took nothing", flush=True)

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # noqa: TID251 - of a process of the test
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"holds\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_what_a_killed_process_had_not_finished_comes_again_in_its_order(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1", "a:2", "b:3")
        async with another_process(one) as process:
            await is_so(lambda: _equals(one.pending(), 3))
            process.kill()
        await publish(broker, "a:4")

        said = await says(await opened(broker), 4)

    assert [value for value in said if value != b"3"] == [b"1", b"2", b"4"]


async def test_a_process_that_was_frozen_takes_nothing_from_the_next_owner_and_finishes_nothing(
    one: Place,
) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1", "b:2")
        async with another_process(one) as process:
            await is_so(lambda: _equals(one.pending(), 2))
            process.send_signal(signal.SIGSTOP)
            reader = await opened(broker)
            again = await take(reader)
            others = [await take(reader)]
            await publish(broker, "c:3")  # for which the frozen one waits, too
            others.append(await take(reader))
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            later = await process.stdout.readline()

        await reader.aclose()
        pending = await one.pending()
        said = await says(await opened(broker), 3)

    assert later == b"took nothing\n"
    assert (again.message.value, {each.message.value for each in others}) == (b"1", {b"2", b"3"})
    assert pending == 3
    assert sorted(said) == [b"1", b"2", b"3"]


class Movable(SystemClock):
    """The machine's clock, which a test can put forward."""

    ahead_s = 0.0

    @override
    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def test_a_reader_whose_lease_may_be_over_hands_out_nothing_until_it_is_heard_again(one: Place) -> None:
    clock = Movable()
    async with aclosing(redis_bus.broker(one.url, one.namespace, partitions=1, clock=clock)) as broker:
        await publish(broker, "a:0", "b:1")
        reader = await opened(broker)
        held = await take(reader)

        clock.ahead_s = redis_bus.LEASE_S
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(take(reader))
            await asyncio.sleep(0)
            is_waiting = not waiting.done()
        await reader.ack(held)
        await reader.ack(waiting.result())
        await is_so(lambda: _equals(one.pending(), 0))

    assert is_waiting
    assert waiting.result().message.value == b"1"  # the partition is its own as before


async def test_what_was_read_by_a_reader_that_lost_its_partition_stays_for_the_next_one(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "b:1")
        frozen = await opened(broker)
        held = await take(frozen)
        (partition,) = frozen._partitions
        for task in frozen._running:
            task.cancel()
        await one.redis.zadd(
            f"{{{one.namespace}:bus}}:{TOPIC.name}:group:group:readers", {frozen._lease._reader: 1}
        )
        reader = await opened(broker)
        again = await take(reader)
        await publish(broker, "c:2")

        partition.is_behind = True
        await frozen._read_next()
        await frozen.ack(held)
        await frozen._finish()

        assert [*frozen._partitions] == []
        assert again.message.value == b"0"
        await is_so(lambda: _equals(one.pending(), 3))
        assert sorted(await says(reader, 2)) == [b"1", b"2"]


class LosesAnswers(StreamServer):
    """A server whose every eighth answer is lost on the way back: what was asked is done."""

    count = 0

    @override
    async def run(self, name: str, *given: Any, **named: Any) -> Any:
        answer = await super().run(name, *given, **named)
        self.count += 1
        if self.count % 8 == 0 and name != "publish":
            raise BusUnavailableError("server", f"the answer of {name} was lost")
        return answer


async def test_no_answer_that_is_lost_loses_a_message_or_the_order_of_its_key(many: Place) -> None:
    total, done = 10 * 10, list[tuple[str, int]]()
    async with aclosing(many.broker(buffer=8)) as broker:
        broker._server = LosesAnswers(redis_bus.settings(many.url, many.namespace, partitions=16))
        await publish(broker, *(f"k{key}:{n}" for n in range(10) for key in range(10)))
        reader = await opened(broker)
        while len(done) < total:
            delivery = await take(reader)
            done.append((delivery.message.key, int(delivery.message.value)))
            await reader.ack(delivery)
        await is_so(lambda: _equals(many.pending(), 0))

    assert len(set(done)) == total
    assert neighbours_out_of_order(done) == []


# --- what else may be there --------------------------------------------------------------------------------------


async def test_what_another_program_put_there_is_handed_out_and_what_it_deleted_is_finished(
    one: Place,
) -> None:
    async with aclosing(one.broker()) as broker:
        await one.redis.xadd(one.stream(0), {b"key": b"\xff", b"headers": b"[1]"}, id="0-*")
        await one.redis.xadd(one.stream(0), {b"other": b"1"}, id="0-*")
        await publish(broker, "a:2", "a:3")
        first = await opened(broker)
        messages = [(await take(first)).message for _ in range(3)]
        await first.aclose()
        await one.redis.xdel(one.stream(0), "0-3")

        second = await opened(broker)
        said = await says(second, 3)
        await is_so(lambda: _equals(one.pending(), 0))

    assert messages[:2] == [Message("\udcff", b"", {}), Message("", b"", {})]
    assert sorted(said) == [b"", b"", b"3"]


async def test_a_topic_with_too_much_here_is_read_no_further(one: Place) -> None:
    async with aclosing(one.broker(buffer=8)) as broker:
        await publish(broker, *(f"k{n}:{n}" for n in range(60)))
        reader = await opened(broker)
        held = [await take(reader) for _ in range(8)]

        (partition,) = reader._partitions
        lag = next(reader.lag())
        for delivery in held:
            await reader.ack(delivery)
        rest = await says(reader, 52)

    assert partition.unfinished <= 12  # what there was room for, and one more step
    assert lag.waiting + lag.in_flight == 60
    assert len(rest) == 52


async def test_a_topic_that_is_not_there_or_has_other_partitions_is_named_with_what_to_do(one: Place) -> None:
    async with aclosing(one.broker()) as broker, aclosing(one.broker(partitions=4)) as other:
        with pytest.raises(TopicSetupError, match=r"topic acme is not there; agentic-trading topics create"):
            await broker.subscribe([Topic("acme", Event)], "group")
        for refused in (other.subscribe([TOPIC], "group"), other.publish(TOPIC, Message("a", b"", {}))):
            with pytest.raises(TopicSetupError, match="made with 1 partitions, not 4; set partitions to 1"):
                await refused
        with pytest.raises(TopicSetupError, match="is not there"):
            await broker.replies("address")
        for wrong in (other.scan(TOPIC), broker.scan(Topic("acme", Event))):
            with pytest.raises(TopicSetupError):
                await anext(wrong)
