"""`agentic-trading archive` on a real Kafka: workers' logs in one, killed on the way, and read by the other commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import RECORDS, TOPICS
from agentic_trading.cli.exits import ExitCode
from agentic_trading.ids import random_id
from agentic_trading.llm.log_line import read_line
from agentic_trading.platform import BusConfig, LedgerConfig, Platform, PlatformConfig, Ports, ProviderConfig
from agentic_trading.platform.port_adapters import broker_of
from agentic_trading.worker.outbox import OutboxLag
from tests import kafka_server, redis_bus
from tests.audit.archiving import WorkerLog
from tests.build import event
from tests.cli.conftest import Command
from tests.platform.calls import envelope, scripted
from tests.redis_server import RealServer

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)

WRITTEN = 1500
WRITER = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.worker.outbox import cursor_file_of, streaming
from tests import kafka_server
from tests.build import event

folder, servers, namespace, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])

async def main():
    async with (
        aclosing(JsonFileInteractionStore(folder / "interactions.jsonl")) as store,
        aclosing(kafka_server.broker(servers, namespace=namespace)) as broker,
        streaming(store, broker, cursor_file_of(store.path)) as outbox,
    ):
        for first in range(0, count, 100):
            async with asyncio.TaskGroup() as group:
                kept = [
                    group.create_task(store.record(event(id=f"{folder.name}-{number}", trace_id=f"t{number % 50}")))
                    for number in range(first, first + 100)
                ]
            await outbox.reached(max(task.result() for task in kept))
            print(first, flush=True)

asyncio.run(main())
"""
ARCHIVER = """
import sys
from agentic_trading.cli.main import main
main(["archive", "--store", sys.argv[1]])
"""
READER = """
import asyncio, sys
from contextlib import aclosing
from agentic_trading.audit.archive import ARCHIVE_GROUP
from agentic_trading.bus.topic import RECORDS
from tests import kafka_server

async def main():
    async with aclosing(kafka_server.broker(sys.argv[1], namespace=sys.argv[2])) as broker:
        reader = await broker.subscribe([RECORDS], ARCHIVE_GROUP)
        while not all(each.done is not None for each in await reader.progress()):
            await asyncio.sleep(0.05)
        print("reads", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def another_reader(servers: str, namespace: str) -> Generator[None]:
    """Have a reader in the archiver's group that takes nothing, until the block ends."""
    program = [sys.executable, "-c", READER, servers, namespace]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, cwd=kafka_server.ROOT) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        yield
        reader.communicate(timeout=30)


@pytest.fixture
def bus(kafka_servers: str, monkeypatch: pytest.MonkeyPatch) -> BusConfig:
    """Give a bus of the test's own, which commands find in their environment."""
    made = BusConfig(url=f"kafka://{kafka_servers}", namespace=f"archive-{random_id()}")
    monkeypatch.setenv("AGENTIC_BUS__URL", made.url or "")
    monkeypatch.setenv("AGENTIC_BUS__NAMESPACE", made.namespace)
    topics = planned_topics(partitions=2)
    settings = kafka_server.settings(kafka_servers, namespace=made.namespace)
    asyncio.run(create_topics(settings, topics, replicas=1))
    return made


def records_in(*logs: Path) -> dict[str, dict[str, Any]]:
    """Return the records of logs by their ids, without places in a chain, and when each was written: workers may repeat one."""
    lines = [json.loads(line) for log in logs for line in log.read_bytes().splitlines()]
    found = {line.get("interaction_id") or line["id"]: line for line in lines}
    return {
        id_: {key: line[key] for key in line if key not in {"seq", "prev", "hash", "time", "stored_at"}}
        for id_, line in found.items()
        if line.get("kind") != "archive.started"
    }


def test_archive_of_workers_feeds_every_command(
    bus: BusConfig, own_redis: RealServer, tmp_path: Path, command: Command
) -> None:
    logs = [tmp_path / name / "interactions.jsonl" for name in ("worker-1", "worker-2")]
    ledger, calls = LedgerConfig(url=own_redis.url), [envelope(n) for n in range(4)]

    def platform(name: str) -> Platform:
        config = PlatformConfig(
            name=name, folder=tmp_path, bus=bus, ledger=ledger, providers={"scripted": ProviderConfig()}
        )
        return Platform(config, Ports(providers={"scripted": scripted()}))

    async def work() -> list[OutboxLag]:
        async with platform("worker-1") as one, platform("worker-2") as other:
            for each in calls:
                await one.ask(each)
            return [await each.outbox.lag() for each in (one, other) if each.outbox is not None]

    lags = asyncio.run(work())
    done = command("archive", "--store", "archive", "--until-end", "--json")
    check = command("archive", "check", "--store", "archive", "--bus", bus.url)
    verified = command("audit", "verify", "archive")
    shown = command("trace", "show", calls[3].trace_id, "--store", "archive")
    spent = [command("spend", "--by", "tenant", "--store", log, "--json") for log in ("archive", *logs)]
    rebuilt = command("budget", "rebuild", "--store", "archive", "--ledger", own_redis.url, "--json")

    assert [(lag.problem, lag.left_out) for lag in lags] == [("", 0)] * 2
    assert records_in(tmp_path / "archive" / "interactions.jsonl") == records_in(*logs)
    assert json.loads(done.out)["dead_letters"] == 0
    assert check.err == ""
    assert (check.code, check.out.splitlines()[0]) == (ExitCode.DONE, "whole")
    assert (verified.code, verified.out.splitlines()[0]) == (ExitCode.DONE, "whole")
    assert "scripted-1" in shown.out
    sums = [json.loads(each.out)["total"]["cost_nusd"] for each in spent]
    assert sums[0] == sums[1] + sums[2] > 0
    assert json.loads(rebuilt.out)["charged_nusd"] == sums[0]


@pytest.fixture
def redis_streams(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> BusConfig:
    """Give a bus of the test's own on Redis, which commands find in their environment."""
    made = BusConfig(url=redis_url, namespace=f"archive-{random_id()}")
    monkeypatch.setenv("AGENTIC_BUS__URL", redis_url)
    monkeypatch.setenv("AGENTIC_BUS__NAMESPACE", made.namespace)
    asyncio.run(redis_bus.make_topics(redis_url, made.namespace, TOPICS))
    return made


def test_kafka_archive_check_detects_gap_and_cut(bus: BusConfig, tmp_path: Path, command: Command) -> None:
    check_gap_and_cut(bus, tmp_path, command)


def test_redis_archive_check_detects_gap_and_cut(
    redis_streams: BusConfig, tmp_path: Path, command: Command
) -> None:
    empty = command("archive", "--store", "empty", "--until-end")
    assert (
        "Note: no worker publishes its log on this bus. On Redis, workers do so if ack_after is set.\n"
        in empty.err
    )
    assert (
        empty.out
        == "Archived 0 new records from 0 messages (0 known already, 0 dead letters). The archive has 0 logs.\n"
    )
    asyncio.run(send_twice_and_poison(redis_streams))
    again = command("archive", "--store", "twice", "--until-end")
    assert (
        again.out
        == "Archived 1 new record from 3 messages (1 known already, 1 dead letter). The archive has 1 log.\n"
    )
    check_gap_and_cut(redis_streams, tmp_path, command)


def test_until_end_fails_with_competing_reader(
    bus: BusConfig, kafka_servers: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WorkerLog("log-0")
    log.add(*(event(trace_id=f"t{number}") for number in range(20)))
    asyncio.run(send(bus, log))

    with another_reader(kafka_servers, bus.namespace), monkeypatch.context() as patch:
        patch.setattr("agentic_trading.audit.archive.ASSIGNED_WITHIN_S", 3.0)
        failed = command("archive", "--store", "archive", "--until-end")
    done = command("archive", "--store", "archive", "--until-end")

    assert failed.code == ExitCode.LOG_UNUSABLE
    assert "partitions of llm.records are assigned to another reader of the group" in failed.err
    assert done.code == ExitCode.DONE
    assert len(records_in(tmp_path / "archive" / "interactions.jsonl")) == 20


async def send_twice_and_poison(bus: BusConfig) -> None:
    """Send one line twice, and what is none."""
    line = WorkerLog("log-0")
    line.add(event())
    for _ in range(2):
        await send(bus, line)
    async with aclosing(await asyncio.to_thread(broker_of, PlatformConfig(bus=bus))) as broker:
        await broker.publish(RECORDS, Message("k", b"{", {}))


def check_gap_and_cut(bus: BusConfig, tmp_path: Path, command: Command) -> None:
    """Archive a log without its second line, cut the archive, and expect both to be named."""
    log, path = WorkerLog("log-1"), tmp_path / "archive" / "interactions.jsonl"
    log.add(event(), event(), event())

    asyncio.run(send(bus, log, 1, 3))
    done = command("archive", "--store", "archive", "--until-end")
    gap = command("archive", "check", "--store", "archive")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    cut = command("archive", "check", "--store", "archive", "--bus", bus.url, "--json")

    assert (
        done.out
        == "Archived 2 new records from 2 messages (0 known already, 0 dead letters). The archive has 1 log.\n"
    )
    assert "archive_incomplete" in done.err
    assert "note: " not in done.err
    assert (gap.code, gap.out.splitlines()[::2]) == (
        ExitCode.FOUND_WRONG,
        ["incomplete", "log log-1: line 2 is missing"],
    )
    assert cut.code == ExitCode.FOUND_WRONG
    assert [found["reason"][:35] for found in json.loads(cut.out)["findings"][:2]] == [
        "the archive is cut: it had a line 3"
    ] * 2


@pytest.mark.soak
def test_archive_survives_worker_and_archiver_kills(
    bus: BusConfig, kafka_servers: str, tmp_path: Path, command: Command
) -> None:
    log, archived = (tmp_path / name / "interactions.jsonl" for name in ("worker", "archive"))
    other = WorkerLog("other")
    other.add(*(event(trace_id=f"t{number % 50}") for number in range(200)))

    def started(source: str, *words: object) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", source, *map(str, words)]
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=kafka_server.ROOT)

    archiver = started(ARCHIVER, tmp_path / "archive")
    writing = (WRITER, log.parent, kafka_servers, bus.namespace, WRITTEN)
    writer = started(*writing)
    assert writer.stdout is not None
    next(line for line in writer.stdout if int(line) >= WRITTEN // 3)
    kill(writer)
    asyncio.run(send(bus, other))
    wait_until(lambda: has_sources(archived.with_name("archive.json")))
    kill(archiver)
    with started(*writing) as again:
        asyncio.run(send(bus, other))  # copies
        again.communicate(timeout=30)
    done = command("archive", "--store", "archive", "--until-end", "--json")
    check = command("archive", "check", "--store", "archive", "--bus", bus.url, "--json")

    log_id = json.loads(log.with_name("interactions.outbox.json").read_bytes())["log_id"]
    sent = asyncio.run(on_topic(kafka_servers, bus.namespace))
    assert {message.value for message in sent[log_id]} == set(log.read_bytes().splitlines())
    for messages in sent.values():  # a copy has the id of what it is a copy of
        ids = {message.headers["ce_id"]: message.value for message in messages}
        assert all(ids[message.headers["ce_id"]] == message.value for message in messages)
    assert set(sent) == {log_id, "other"}
    assert (check.code, json.loads(check.out)["findings"]) == (ExitCode.DONE, [])
    assert json.loads(check.out)["logs"] == {log_id: WRITTEN, "other": 200}
    assert json.loads(done.out)["dead_letters"] == 0
    assert {line.record for line in other.lines} < records_of_lines(archived) >= records_of_lines(log)
    assert len(archived.read_bytes().splitlines()) == 1 + WRITTEN + 200


async def send(bus: BusConfig, log: WorkerLog, *numbers: int) -> None:
    """Send lines of a log by their numbers; all if none is named."""
    async with aclosing(await asyncio.to_thread(broker_of, PlatformConfig(bus=bus))) as broker:
        await log.send(broker, *numbers)


def records_of_lines(log: Path) -> set[bytes]:
    """Return the records of a log as they are spelled."""
    return {read_line(line).record for line in log.read_bytes().splitlines()}


async def on_topic(servers: str, namespace: str) -> dict[str, list[Message]]:
    """Return the messages on the stream of records, by the log that they are of."""
    found: dict[str, list[Message]] = defaultdict(list)
    async with aclosing(kafka_server.broker(servers, namespace=namespace)) as broker:
        async for delivery in broker.scan(RECORDS):
            found[delivery.message.headers["at_log"]].append(delivery.message)
    return found


def has_sources(state: Path) -> bool:
    """Whether an archive has lines of a log."""
    return state.is_file() and bool(json.loads(state.read_bytes())["sources"])


def kill(process: subprocess.Popen[Any]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


def wait_until(is_so: Callable[[], bool], longest_s: float = 20) -> None:
    """Look at what another process has written until it is so."""
    end = time.monotonic() + longest_s  # noqa: TID251 - of a process that is watched
    while not is_so():
        assert time.monotonic() < end  # noqa: TID251
        time.sleep(0.02)
