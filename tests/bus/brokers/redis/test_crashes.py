"""Readers on a real Redis that end, freeze, or hear no answer: nothing is lost, taken or finished by the wrong one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.bus.brokers.redis.redis import StreamServer
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.clock import SystemClock
from tests import redis_bus
from tests.bus_readers import neighbours_out_of_order
from tests.redis_bus import (
    TOPIC,
    Place,
    equals,
    is_so,
    opened,
    publish,
    says,
    take,
)

ROOT = redis_bus.ROOT

pytestmark = pytest.mark.soak


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


async def test_unfinished_messages_return_in_order_after_kill(one: Place) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1", "a:2", "b:3")
        async with another_process(one) as process:
            await is_so(lambda: equals(one.pending(), 3))
            process.kill()
        await publish(broker, "a:4")

        said = await says(await opened(broker), 4)

    assert [value for value in said if value != b"3"] == [b"1", b"2", b"4"]


async def test_frozen_process_cannot_ack_after_takeover(
    one: Place,
) -> None:
    async with aclosing(one.broker()) as broker:
        await publish(broker, "a:0", "a:1", "b:2")
        async with another_process(one) as process:
            await is_so(lambda: equals(one.pending(), 2))
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


async def test_reader_waits_while_lease_may_have_expired(one: Place) -> None:
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
        await is_so(lambda: equals(one.pending(), 0))

    assert is_waiting
    assert waiting.result().message.value == b"1"  # the partition is its own as before


async def test_lost_partition_messages_stay_for_next_owner(one: Place) -> None:
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
        await is_so(lambda: equals(one.pending(), 3))
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


async def test_lost_answers_keep_messages_and_key_order(many: Place) -> None:
    total, done = 10 * 10, list[tuple[str, int]]()
    async with aclosing(many.broker(buffer=8)) as broker:
        broker._server = LosesAnswers(redis_bus.settings(many.url, many.namespace, partitions=16))
        await publish(broker, *(f"k{key}:{n}" for n in range(10) for key in range(10)))
        reader = await opened(broker)
        while len(done) < total:
            delivery = await take(reader)
            done.append((delivery.message.key, int(delivery.message.value)))
            await reader.ack(delivery)
        await is_so(lambda: equals(many.pending(), 0))

    assert len(set(done)) == total
    assert neighbours_out_of_order(done) == []
