"""How fast, how busy and how orderly the bus is read, beside FastStream and taskiq, on the same real servers.

Run: python -m benchmarks.bus [--quick]. Starts a Kafka and a Redis, or takes those of KAFKA_BOOTSTRAP_SERVERS and REDIS_URL. Exits
with 1 if a bound does not hold, a message was lost or out of order, or a commit was ahead of its work. `--quick` takes
less than a minute.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis

from agentic_trading.bus.brokers.kafka.admin import create_topics, group_lags, plan_of
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.brokers.redis.redis import RedisTopics
from agentic_trading.bus.topic import MAX_MESSAGE_BYTES, Topic
from agentic_trading.llm.event import Event
from agentic_trading.services.local import KafkaService, ServiceError
from benchmarks.bus_ours import PARTITIONS, left_on_redis, redis_settings
from benchmarks.overspend import a_server
from benchmarks.peers.consuming import Consumed, Job
from benchmarks.peers.contender import Contender, UnavailableError, peer, versions

SLOTS = 16
WORK_S = 0.05
LEAST_RATIO = 10.0
"""How many times the acknowledged messages a second of FastStream at least once ours has to be."""
LEAST_BUSY = 0.95
"""The share of its slots that ours has to keep busy, of that which the same work without a bus keeps busy in the same run."""
OURS = "agentic_trading"
PEERS = ("faststream", "taskiq")
MESSAGE_BYTES = 1_024
RECORD_BYTES = 2_400
OUTBOX_GOAL_US = 50
"""CPU a record, with which a core of its own sends 20,000 a second; messages a second are those of the machine's load."""


@dataclass
class Row:
    """One way of reading, and its rounds; `per_round` messages in each."""

    title: str
    contender: str
    way: str
    workers: int
    per_round: int
    work_s: float = 0.0
    size: int = MESSAGE_BYTES
    is_at_least_once: bool = True
    is_judged: bool = False
    rounds: list[Consumed] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    unavailable: str = ""

    @property
    def rate(self) -> float:
        """Messages a second, the median of the rounds."""
        return median(self.per_round / one.wall_s for one in self.rounds)

    @property
    def cpu_us(self) -> float:
        return median(one.cpu_s / self.per_round * 1e6 for one in self.rounds)

    @property
    def busy(self) -> float:
        """The share of the slots that were busy until the last work ended, the median of the rounds."""
        return median(self.per_round * self.work_s / (SLOTS * one.work_s) for one in self.rounds)

    @property
    def faults(self) -> list[str]:
        """What was lost, came twice, came out of order, or was committed too early or not at all."""
        sums = {
            "lost": sum(self.per_round - one.handled for one in self.rounds),
            "twice": sum(one.copies for one in self.rounds),
            "out of order": sum(one.misordered for one in self.rounds),
            "committed before done": sum(one.early for one in self.rounds),
            "never acknowledged": sum(self.left),
        }
        return [f"{count} {fault}" for fault, count in sums.items() if count]

    def over(self, other: "Row") -> float:
        """Return the median of how many times the rate of `other` this one has, round by round."""
        return median(
            (self.per_round / mine.wall_s) / (other.per_round / theirs.wall_s)
            for mine, theirs in zip(self.rounds, other.rounds, strict=True)
        )


@dataclass
class Table:
    """The rows of one server: without work, with work that is awaited, and publishing; ours is the first of each.

    The second one of `working` is that work without a bus: what the machine lets as many tasks do at that moment.
    """

    server: str
    bare: list[Row]
    working: list[Row]
    publishing: list[Row]

    @property
    def rows(self) -> list[Row]:
        return [*self.bare, *self.working, *self.publishing]

    def leave_out(self, contender: str, reason: str) -> None:
        """Measure nothing more of a contender: its process is gone."""
        for row in self.rows:
            if row.contender == contender:
                row.unavailable = row.unavailable or reason


@dataclass(frozen=True)
class Bound:
    """A figure, and the least that it has to be."""

    what: str
    figure: float
    least: float

    @property
    def holds(self) -> bool:
        return self.figure >= self.least


def table_of(server: str, *, quick: bool) -> Table:
    """Return what is measured on a server."""
    many, few, worked, published = (16_000, 800, 640, 6_000) if quick else (20_000, 2_000, 1_600, 20_000)
    on_kafka = server == "Kafka"
    auto = " (commits by itself)" if on_kafka else ""
    by_batch = "a commit" if on_kafka else "an XACK"
    ours = f"agentic_trading, {SLOTS} at once"
    more = PARTITIONS if on_kafka else SLOTS
    bare = [
        Row(ours, OURS, "consume", SLOTS, many),
        Row("FastStream ACK, max_workers=1", "faststream", "ack", 1, few, is_judged=True),
        Row(f"FastStream ACK, max_workers={more}", "faststream", "ack", more, few, is_judged=True),
        Row(f"FastStream ACK, batch=True ({by_batch} a batch)", "faststream", "batch", 1, many),
        Row(f"taskiq, {SLOTS} at once{auto}", "taskiq", "tasks", SLOTS, few, is_at_least_once=not on_kafka),
    ]
    working = [
        Row(ours, OURS, "consume", SLOTS, worked, WORK_S),
        Row(f"the work alone, {SLOTS} at once", OURS, "alone", SLOTS, worked, WORK_S),
        Row(f"FastStream ACK, max_workers={SLOTS}", "faststream", "ack", SLOTS, worked // 4, WORK_S),
        Row(bare[-1].title, "taskiq", "tasks", SLOTS, worked // 4, WORK_S, is_at_least_once=not on_kafka),
    ]
    publishing = [Row("publish_all, batches of 500", OURS, "publish", 1, published, size=RECORD_BYTES)]
    if on_kafka:
        goal = f"the outbox of a log (goal {OUTBOX_GOAL_US} us)"
        publishing.append(Row(goal, OURS, "outbox", 1, published, size=RECORD_BYTES))
    return Table(server, bare, working, publishing)


@dataclass
class Servers:
    """The servers that all contenders use, and the topics of this run."""

    addresses: dict[str, str]
    unavailable: dict[str, str]
    run: str = field(default_factory=lambda: f"bench-{time.time_ns()}")
    topics: int = 0

    def job(self, server: str, row: Row, count: int) -> Job:
        """Return a job on a topic of its own, which is there."""
        self.topics += 1
        topic = f"{self.run}-{self.topics}"
        job = Job(self.addresses[server], topic, f"{topic}-group", count, row.size, row.workers, row.work_s)
        if job.is_kafka:
            plans = plan_of([Topic(topic, Event)], max_message_bytes=MAX_MESSAGE_BYTES, partitions=PARTITIONS)
            asyncio.run(create_topics(KafkaSettings(job.server), plans))
        elif row.contender == OURS:
            asyncio.run(RedisTopics(redis_settings(job)).create([Topic(topic, Event)]))
        return job

    def left(self, job: Job, row: Row) -> int:
        """Return how many messages of a finished job its group has not acknowledged."""
        if job.is_kafka:
            lags = asyncio.run(group_lags(KafkaSettings(job.server), [job.topic], [job.group]))
            return job.count - sum(each.committed for each in lags)
        if row.contender == OURS:
            return asyncio.run(left_on_redis(job))
        with Redis.from_url(job.server) as redis:
            groups = redis.xinfo_groups(job.topic)
        return sum(each["pending"] + each["lag"] for each in groups)


@contextmanager
def servers_for_all() -> Iterator[Servers]:
    """Give a Kafka and a Redis for as long as the block lasts; one that cannot be is left out, with the reason."""
    servers = Servers({}, {})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        try:
            servers.addresses["Kafka"] = given or _own_kafka(folder, stack)
        except ServiceError as e:
            servers.unavailable["Kafka"] = str(e).splitlines()[0]
        _, servers.addresses["Redis"] = stack.enter_context(a_server())
        yield servers


def _own_kafka(folder: Path, stack: ExitStack) -> str:
    service = KafkaService.prepared(folder / "kafka", ends_with_starter=True)
    service.start()
    stack.callback(service.kill)
    return service.bootstrap_servers


def opened(stack: ExitStack, table: Table) -> dict[str, Contender]:
    """Start every contender that there is; the rows of others say why there is none."""
    contenders = {OURS: stack.enter_context(Contender("benchmarks.bus_ours", Path(sys.executable)))}
    for name in PEERS:
        try:
            contenders[name] = stack.enter_context(peer(name))
        except UnavailableError as e:
            table.leave_out(name, e.reason)
    return contenders


def measure(tables: Sequence[Table], servers: Servers, rounds: int) -> None:
    """Fill the rows: each round measures every row once, every second one in reverse order, after a small one to warm up."""
    for table in tables:
        with ExitStack() as stack:
            contenders = opened(stack, table)
            for row in table.bare:
                _measure(row, contenders, servers, table, warms_up=True)
            for number in range(rounds):
                for row in table.bare if number % 2 else reversed(table.bare):
                    _measure(row, contenders, servers, table)
            peers, halves = table.working[2:] * (rounds // 2), max(2, rounds // 2)
            for row in (*table.working[:2] * halves, *peers, *table.publishing * rounds):
                _measure(row, contenders, servers, table)


def _measure(
    row: Row, contenders: dict[str, Contender], servers: Servers, table: Table, *, warms_up: bool = False
) -> None:
    if row.unavailable:
        return
    job = servers.job(table.server, row, row.per_round // 10 if warms_up else row.per_round)
    try:
        told = contenders[row.contender].ask(f"{row.way} {json.dumps(asdict(job))}")
    except UnavailableError as e:
        table.leave_out(row.contender, e.reason)
        return
    if not warms_up:
        consumed = Consumed(**json.loads(told))
        row.rounds.append(consumed)
        row.left.append(servers.left(job, row) if row.way not in {"alone", "publish", "outbox"} else 0)


def bounds(table: Table) -> list[Bound]:
    """Return what has to hold on a server; a peer that is not there is not judged."""
    ours, working, alone = table.bare[0], *table.working[:2]
    judged = [row for row in table.bare if row.is_judged and not row.unavailable]
    ratios = [Bound(f"{table.server}: times {row.title}", ours.over(row), LEAST_RATIO) for row in judged]
    share = working.busy / alone.busy
    busy = Bound(f"{table.server}: share of {SLOTS} slots busy, of that of the work alone", share, LEAST_BUSY)
    return [*ratios, busy]


def faults(table: Table) -> list[str]:
    """Return what ours did wrong on a server."""
    ours = [row for row in table.rows if row.contender == OURS and row.way == "consume"]
    return [f"{table.server}, {row.title}: {fault}" for row in ours for fault in row.faults]


def print_table(table: Table) -> None:
    """Print what was measured on a server."""
    ours = table.bare[0]
    print(f"\n{table.server + ': no work':<58}{'msgs/s':>9}{'CPU us':>8}{'ours is':>9}  found")
    for row in table.bare:
        if row.unavailable:
            print(f"  {row.title:<56}{row.unavailable}")
        else:
            print(
                f"  {row.title:<56}{row.rate:>9,.0f}{row.cpu_us:>8,.0f}{ours.over(row):>8.1f}x  {_found(row)}"
            )
    print(
        f"{table.server}: {WORK_S * 1000:.0f} ms of awaited work{'':<26}{'msgs/s':>9}{'at once':>8}{'busy':>9}  found"
    )
    for row in table.working:
        if row.unavailable:
            print(f"  {row.title:<56}{row.unavailable}")
        else:
            at_once = max(one.at_once for one in row.rounds)
            print(f"  {row.title:<56}{row.rate:>9,.0f}{at_once:>8}{row.busy:>9.1%}  {_found(row)}")
    for row in table.publishing:
        told = row.unavailable or f"{row.rate:>9,.0f}{row.cpu_us:>8,.0f}"
        print(f"{table.server + f': {row.title}, {row.size:,} bytes':<58}{told}")


def _found(row: Row) -> str:
    if row.way == "alone":
        return "no bus"
    looks = sum(one.looks for one in row.rounds)
    seen = f"all acknowledged{f', {looks} looks at commits' if looks else ''}"
    note = "" if row.is_at_least_once else "; not at least once"
    return ("; ".join(row.faults) or seen) + note


def judged(tables: Sequence[Table]) -> bool:
    """Print what was promised and what is; return whether all of it holds."""
    found = [fault for table in tables for fault in faults(table)]
    print()
    for bound in [each for table in tables for each in bounds(table)]:
        verdict = "holds" if bound.holds else "DOES NOT HOLD"
        print(f"At least {bound.least:g}, {bound.what}: {bound.figure:.3g}, {verdict}")
        if not bound.holds:
            found.append(bound.what)
    print("Ours: " + ("; ".join(found) + ": DOES NOT HOLD" if found else "all promises hold"))
    return not found


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="2 short rounds instead of 4 long ones")
    quick = arguments.parse_args().quick
    rounds = 2 if quick else 4
    with servers_for_all() as servers:
        tables = [table_of(server, quick=quick) for server in servers.addresses]
        measure(tables, servers, rounds)
    for server, reason in servers.unavailable.items():
        print(f"{server}: {reason}")
    broken = [
        row.unavailable for table in tables for row in table.rows if row.contender == OURS and row.unavailable
    ]
    if broken or not tables:
        print("; ".join(broken) or "no server", file=sys.stderr)
        return 1
    print(
        f"{rounds} rounds, interleaved, medians; a topic of its own each, {PARTITIONS} partitions on Kafka, one process a contender, "
        f"messages of {MESSAGE_BYTES:,} bytes with 64 keys.\nOne server of each kind on this machine, {os.cpu_count()} "
        f"processors, load {os.getloadavg()[0]:.1f}."
    )
    print("Peers: " + "; ".join(f"{name} ({versions(name)})" for name in PEERS))
    for table in tables:
        print_table(table)
    return 0 if judged(tables) else 1


if __name__ == "__main__":
    sys.exit(main())
