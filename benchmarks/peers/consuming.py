"""The side that consumes: jobs asked for on standard input, what came of each told on standard output.

It needs the standard library, aiokafka and redis, which every contender's environment has.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from threading import Timer

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

KEYS = 64
LOOKS_EVERY_S = 0.1
GIVES_UP_S = 30.0
"""How long a job may take: a contender that hangs is ended, and is a row with the reason."""

Place = tuple[int, int]
"""A partition, and an offset in it."""


@dataclass(frozen=True)
class Job:
    """Fill `topic` of `server` with `count` messages of `size` bytes, then handle each, with `work_s` awaited in it."""

    server: str
    topic: str
    group: str
    count: int
    size: int
    workers: int
    work_s: float = 0.0

    @property
    def is_kafka(self) -> bool:
        """Whether the server is a Kafka, else it is a Redis."""
        return not self.server.startswith("redis://")

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Yield the keys in turn, each with the bytes of a message: key, number, and digits that compress by half."""
        digits = "".join(sha256(str(number).encode()).hexdigest() for number in range(256)).encode()
        for number in range(self.count):
            key = f"k{number % KEYS}"
            start = number * 61 % (len(digits) - self.size)
            head = f"{key}:{number}:".encode()
            yield key, head + digits[start : start + self.size - len(head)]


@dataclass(frozen=True)
class Consumed:
    """What came of a job: seconds from the first message to the last acknowledgement, and to the end of the last work.

    And what went wrong.
    """

    wall_s: float
    work_s: float
    cpu_s: float
    handled: int
    copies: int
    misordered: int
    at_once: int
    early: int
    looks: int


@dataclass
class Tally:
    """What has been handled of a job, by whom it is not known: order per key, how much at once, and what is done."""

    job: Job
    all_done: asyncio.Event = field(default_factory=asyncio.Event)
    done: set[Place] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    misordered: int = 0
    early: int = 0
    looks: int = 0
    _began: tuple[float, float] = (0.0, 0.0)
    _ended: tuple[float, float] = (0.0, 0.0)
    _worked: float = 0.0
    _last: dict[bytes, int] = field(default_factory=dict)
    _numbers: set[int] = field(default_factory=set)
    _handled: int = 0
    _under_way: set[bytes] = field(default_factory=set)

    def begin(self) -> None:
        """Start the clocks; the first message does it."""
        self._began = (time.perf_counter(), time.process_time())

    async def handle(self, value: bytes, place: Place | None = None) -> None:
        """Do the work of one message, and note when it began and that it ended."""
        if not self._began[0]:
            self.begin()
        key, digits, _ = value.split(b":", 2)
        number = int(digits)
        if key in self._under_way or number < self._last.get(key, -1):
            self.misordered += 1
        self._last[key] = number
        if self.job.work_s:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self._under_way.add(key)
            await asyncio.sleep(self.job.work_s)
            self._under_way.discard(key)
            self.at_once -= 1
        self._handled += 1
        self._numbers.add(number)
        if place is not None:
            self.done.add(place)
        if len(self._numbers) == self.job.count:
            self.end()
            self._worked = self._ended[0]
            self.all_done.set()

    async def wait(self) -> None:
        """Wait until every message was handled."""
        await self.all_done.wait()

    def end(self) -> None:
        """Stop the clocks here; the last call counts."""
        self._ended = (time.perf_counter(), time.process_time())

    def result(self) -> Consumed:
        """Return what came of it."""
        return Consumed(
            wall_s=self._ended[0] - self._began[0],
            work_s=self._worked - self._began[0],
            cpu_s=self._ended[1] - self._began[1],
            handled=len(self._numbers),
            copies=self._handled - len(self._numbers),
            misordered=self.misordered,
            at_once=self.most_at_once,
            early=self.early,
            looks=self.looks,
        )

    async def watch(self, early: Callable[["Tally"], Awaitable[int]]) -> None:
        """Look again and again, from outside of the consumer, how much the server takes for done that is not."""
        while not self.all_done.is_set():
            self.early += await early(self)
            self.looks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKS_EVERY_S):
                    await self.all_done.wait()

    def ahead(self, acknowledged: int) -> int:
        """Return by how much that number is more than what was handled."""
        return max(0, acknowledged - self._handled)


async def early_on_kafka(tally: Tally) -> int:
    """Return how many offsets are committed that are not done."""
    admin = AIOKafkaAdminClient(bootstrap_servers=tally.job.server)
    await admin.start()
    try:
        committed = await admin.list_consumer_group_offsets(tally.job.group)
    finally:
        await admin.close()
    places = ((tp.partition, offset) for tp, meta in committed.items() for offset in range(meta.offset))
    return sum(place not in tally.done for place in places)


async def early_on_redis(tally: Tally) -> int:
    """Return by how much the acknowledged entries of the job's stream are more than the handled ones."""
    async with Redis.from_url(tally.job.server) as redis:
        groups = await redis.xinfo_groups(tally.job.topic)
    return tally.ahead(sum(tally.job.count - each["pending"] - each["lag"] for each in groups))


def answer_jobs(ways: Mapping[str, Callable[[Job], Awaitable[Consumed]]]) -> None:
    """Do the job of each line `WAY JSON` and print what came of it as a line of JSON, until the input ends."""
    logging.disable(logging.WARNING)

    async def answer(line: str) -> Consumed:
        way, _, job = line.partition(" ")
        return await ways[way](Job(**json.loads(job)))

    for line in sys.stdin:
        watchdog = Timer(GIVES_UP_S, _give_up)
        watchdog.daemon = True
        watchdog.start()
        print(json.dumps(asdict(asyncio.run(answer(line)))), flush=True)
        watchdog.cancel()


def _give_up() -> None:
    print(f"a job was not done within {GIVES_UP_S:g} s", file=sys.stderr, flush=True)
    os._exit(1)
