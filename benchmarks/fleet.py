"""What the protocol of a fleet adds to a call: Kafka in, claims and ledger on Redis, the log, the reply; and what DBOS and Restate take.

Run: python benchmarks/fleet.py [--quick]. One `agentic-trading worker` on a real Kafka and a real Redis, whose provider answers at once, beside a
platform whose bus, ledger and claims are in its own process; both keep a durable log. Peers make a workflow of three steps. Exits with 1 if an answer
is wrong, or if a call in the fleet costs the worker more than `MOST_MS` of CPU, 16 at once, on a machine on which the floor costs what it did for the reference figures.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import structlog

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import NoDecision
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.platform import Platform
from agentic_trading.platform.settings import load_config
from agentic_trading.services.local import KafkaService, RedisService, ServiceError
from benchmarks import floor
from benchmarks.fleet_peers import PEERS, Peer
from benchmarks.fleet_provider import ANSWER, MODEL, STEPS_FILE
from benchmarks.peers.contender import ROOT, UnavailableError

AT_ONCE = (1, 16)
MOST_MS = 2.2
"""The most CPU of the worker a call, 16 at once, scaled to the floor of the reference figures (`floor.REFERENCE_US`)."""

PROGRAM = Path(sys.executable).parent / "agentic-trading"
TICKS_S = os.sysconf("SC_CLK_TCK")
SCHEMA = {
    "$id": "advice.v1",
    "type": "object",
    "required": ["action", "size"],
    "additionalProperties": False,
    "properties": {"action": {"enum": ["buy", "sell", "wait"]}, "size": {"type": "number"}},
}


@dataclass(frozen=True)
class Load:
    """How many calls a run has: the CPU of one is the difference of a short and a long run, over the difference of their calls."""

    short: int
    long: int
    rounds: int


FULL, QUICK = Load(500, 1_500, 3), Load(60, 240, 3)


@dataclass
class Row:
    """A way of making calls: what one took from asking to the answer, and the CPU of who made it, and of its servers."""

    title: str
    at_once: int
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    wrong: int = 0
    servers_ms: list[float] = field(default_factory=list)
    unavailable: str = ""

    def quantile(self, share: float) -> float:
        """Return the wall time that so great a share does not pass."""
        return sorted(self.wall_ms)[min(len(self.wall_ms) - 1, int(share * len(self.wall_ms)))]

    @property
    def cpu(self) -> float:
        """The median of the rounds."""
        return median(self.cpu_ms)


def envelope_of(number: int) -> LLMEnvelope:
    """Build an envelope; each is of a trace of its own."""
    return (
        EnvelopeBuilder().for_analysis()
        .with_instructions("Advise.").with_context({"n": number}).with_output_schema(SCHEMA)
        .with_provider(LLMProvider("instant"), MODEL).with_budget(max_output_tokens=64, thinking_budget=0)
        .build()
    )  # fmt: skip


async def ask_all(gateway: StructuredGateway, count: int, row: Row) -> None:
    """Ask for `count` answers, as many at once as the row has."""
    envelopes = iter([envelope_of(number) for number in range(count)])

    async def ask() -> None:
        for envelope in envelopes:
            begin = time.perf_counter()
            answer = await gateway.ask(envelope)
            row.wall_ms.append(1000 * (time.perf_counter() - begin))
            row.wrong += isinstance(answer, NoDecision) or answer.result.raw_output != ANSWER

    async with asyncio.TaskGroup() as group:
        for _ in range(row.at_once):
            group.create_task(ask())


def cpu_of(pid: int, *, with_children: bool = False) -> float:
    """Return the CPU milliseconds that a process has used; with its children, those that have ended too."""
    used = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    own = 1000 * sum(map(int, used[11 : 15 if with_children else 13])) / TICKS_S
    if not with_children:
        return own
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return own + sum(cpu_of(int(child), with_children=True) for child in children)


@dataclass(frozen=True)
class Processes:
    """Who makes the calls of a row, and which servers work for it."""

    worker: int
    servers: Sequence[int] = ()

    def used(self) -> tuple[float, float]:
        """Return the CPU milliseconds of the worker, and of its servers."""
        return cpu_of(self.worker), sum(cpu_of(each, with_children=True) for each in self.servers)


async def measure(ask: Callable[[int, Row], Awaitable[None]], of: Processes, row: Row, load: Load) -> None:
    """Make a round: a short run and a long one."""
    took = []
    for count in (load.short, load.long):
        before = of.used()
        await ask(count, row)
        took.append([after - each for after, each in zip(of.used(), before, strict=True)])
    calls = load.long - load.short
    for figures, short, long in zip((row.cpu_ms, row.servers_ms), *took, strict=True):
        figures.append((long - short) / calls)


def write_config(path: Path, *tables: str, adapter: str = "instant") -> Path:
    """Write a configuration with the provider."""
    model = f"""
[tenants.default]
budget_usd = "1000"
[providers.instant]
adapter = "benchmarks.fleet_provider:{adapter}"
[[providers.instant.models]]
model = "{MODEL}"
context_tokens = 32768
max_output_tokens = 4096
price = {{ input = 1000, output = 2000 }}
source = "benchmarks/fleet_provider.py"
checked_on = 2026-11-22
"""
    path.write_text("\n".join(['mode = "paper"', "concurrency = 16", *tables, model]), encoding="utf-8")
    return path


@contextmanager
def servers(folder: Path) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
    """Run Kafka and Redis; give the tables of a configuration that name them, and their processes."""
    kafka = KafkaService.prepared(folder / "kafka", ends_with_starter=True)
    redis = RedisService(folder / "redis", ends_with_starter=True)
    kafka.start()
    try:
        redis.start()
        plans = planned_topics(partitions=2)
        asyncio.run(create_topics(KafkaSettings(kafka.bootstrap_servers), plans, replicas=1))
        tables = f'[bus]\nurl = "kafka://{kafka.bootstrap_servers}"', f'[ledger]\nurl = "{redis.url}"'
        yield tables, [each.daemon.pid or 0 for each in (kafka, redis)]
    finally:
        redis.daemon.kill()
        kafka.kill()


@contextmanager
def worker(config: Path, name: str) -> Iterator[int]:
    """Run a worker for as long as the block lasts; give its process id once it serves."""
    said = config.with_name(f"{name}.said")
    where = ("--config", str(config), "--name", name, "--store", str(config.parent / "logs"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STEPS_FILE: str(steps_file(config))}
    command = [str(PROGRAM), "worker", *where, "--http", "127.0.0.1:0"]
    with (
        said.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process,  # noqa: S603 - our own command
    ):
        try:
            until = time.monotonic() + 60
            while b" serves " not in said.read_bytes():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the worker does not serve: {said.read_text('utf-8')}")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def steps_file(config: Path) -> Path:
    """Return where the steps of a worker are written down."""
    return config.with_name("steps.json")


async def measure_fleet(config: Path, of: Processes, rows: Sequence[Row], load: Load) -> None:
    """Measure the worker of a configuration."""
    async with remote_gateway(load_config(config), name="fleet") as gateway:
        await measure_gateway(gateway, of, rows, load)


async def measure_here(folder: Path, rows: Sequence[Row], load: Load) -> None:
    """Measure a platform in this process; it pays for its client, too."""
    config = load_config(
        write_config(folder / "here.toml", f'folder = "{folder / "here"}"', 'durability = "group"')
    )
    async with Platform(config) as platform, platform.client("here") as gateway:
        await measure_gateway(gateway, Processes(os.getpid()), rows, load)


async def measure_gateway(gateway: StructuredGateway, of: Processes, rows: Sequence[Row], load: Load) -> None:
    """Measure what answers behind a gateway."""
    await ask_all(gateway, load.short // 2, Row("warm-up", 16))
    for row in rows:
        await measure(partial(ask_all, gateway), of, row, load)


async def measure_peer(peer: Peer, rows: Sequence[Row], load: Load) -> None:
    """Measure a peer."""
    firsts = iter(range(0, sys.maxsize, load.long))

    async def ask(calls: int, row: Row) -> None:
        first = next(firsts)
        wall_ms, wrong = await asyncio.to_thread(peer.ask, range(first, first + calls), row.at_once)
        row.wall_ms += wall_ms
        row.wrong += wrong

    await ask(load.short // 2, Row("warm-up", 16))
    for row in rows:
        await measure(ask, Processes(peer.worker, peer.servers), row, load)


def measure_peers(folder: Path, load: Load) -> list[Row]:
    """Return the rows of all peers; those of one that cannot run here say why."""
    found = []
    for title, running in PEERS.items():
        rows = [Row(title, at_once) for at_once in AT_ONCE]
        try:
            with running(Path(tempfile.mkdtemp(dir=folder))) as peer:
                asyncio.run(measure_peer(peer, rows, load))
        except (UnavailableError, ServiceError) as e:
            rows = [Row(title, AT_ONCE[-1], unavailable=" ".join(str(e).split())[:80])]
        found += rows
    return found


def print_rows(rows: Sequence[Row], here: Sequence[Row]) -> None:
    """Print what a call takes."""
    print(f"\n{'':<60}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}{'servers':>9}{'to one process':>16}")
    beside = {row.at_once: row for row in here}
    for row in [*here, *rows]:
        shown = f"{row.title}, {row.at_once} at once"
        if row.unavailable:
            print(f"{row.title:<60}  {row.unavailable}")
            continue
        servers_ms = f"{median(row.servers_ms):.2f}" if any(row.servers_ms) else "-"
        times = f"{row.cpu / beside[row.at_once].cpu:.2f}x"
        print(
            f"{shown:<60}{row.quantile(0.5):>9.2f}{row.quantile(0.99):>9.2f}{row.cpu:>9.2f}{servers_ms:>9}{times:>16}"
        )


def print_steps(steps: Mapping[str, Sequence[float]]) -> None:
    """Print what each step waits for."""
    print(f"\n{'step of the worker, 1 at once':<52}{'p50 ms':>9}{'p99 ms':>9}")
    for name, took in steps.items():
        row = Row(name, 1, list(took) or [0.0])
        print(f"  {name:<50}{row.quantile(0.5):>9.2f}{row.quantile(0.99):>9.2f}")
    print(f"  {'their sum':<50}{sum(median(took) for took in steps.values() if took):>9.2f}")


def judged(fleet: Sequence[Row], here: Sequence[Row], floors_us: Sequence[float]) -> bool:
    """Print what is promised and what is; return whether that holds. `floors_us` are of the rounds. Peers are shown, not judged."""
    busiest = fleet[-1]
    rounds_ms = [ms * floor.REFERENCE_US / us for ms, us in zip(busiest.cpu_ms, floors_us, strict=True)]
    norm_ms = median(rounds_ms)
    wrong = sum(row.wrong for row in [*fleet, *here])
    print(f"\nThe floor: {median(floors_us):.0f} us of CPU, on the reference machine {floor.REFERENCE_US}")
    print(f"CPU of the worker norm. by round, ms: {', '.join(f'{ms:.2f}' for ms in rounds_ms)}")
    print(
        f"At most {MOST_MS} ms CPU of the worker norm., {busiest.at_once} at once: {norm_ms:.2f}, {'holds' if norm_ms <= MOST_MS else 'DOES NOT HOLD'}"
    )
    print(f"Wrong answers: {wrong}")
    return norm_ms <= MOST_MS and not wrong


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="rounds of 60 and 240 calls")
    load = QUICK if arguments.parse_args().quick else FULL
    level = structlog.make_filtering_bound_logger(logging.WARNING)  # as a worker has it
    structlog.configure(wrapper_class=level, cache_logger_on_first_use=True)
    fleet = [Row("fleet: the worker", count) for count in AT_ONCE]
    here = [Row("one process, all of it", count) for count in AT_ONCE]
    floors_us: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables, pids = stack.enter_context(servers(folder))
        config = write_config(folder / "fleet.toml", *tables)
        with worker(config, "w1") as pid:
            for _ in range(load.rounds):
                before_us = asyncio.run(floor.cpu_us())
                asyncio.run(measure_fleet(config, Processes(pid, pids), fleet, load))
                floors_us.append((before_us + asyncio.run(floor.cpu_us())) / 2)
                asyncio.run(measure_here(Path(tempfile.mkdtemp(dir=folder)), here, load))
        timing = write_config(folder / "timed.toml", *tables, adapter="timed")
        with worker(timing, "w2") as pid:
            one = replace(load, long=load.short + 1)
            asyncio.run(measure_fleet(timing, Processes(pid), [Row("timed", 1)], one))
        steps = json.loads(steps_file(timing).read_bytes())
        peers = measure_peers(folder, Load(load.short // 2, load.long // 2, 1))
    print(
        f"{load.rounds} rounds of {load.short} and {load.long} calls, of peers one of half as many; CPU by their difference, medians of rounds"
    )
    print_rows([*fleet, *peers], here)
    print_steps(steps)
    return 0 if judged(fleet, here, floors_us) else 1


if __name__ == "__main__":
    sys.exit(main())
