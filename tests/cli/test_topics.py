"""`agentic-trading topics` makes, checks and watches the topics of a real Kafka and a real Redis."""

import asyncio
import json
from contextlib import aclosing

import pytest

from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES
from agentic_trading.cli.exits import ExitCode
from tests import kafka_server, redis_bus, redis_server
from tests.cli.conftest import Command

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


async def use(servers: str) -> None:
    """Publish two events, of which a group finishes one."""
    async with aclosing(kafka_server.broker(servers)) as broker:
        await broker.publish_all(EVENTS, [Message("a", b"1", {}), Message("a", b"2", {})])
        reader = await broker.subscribe([EVENTS], "topics-test")
        await reader.ack(await reader.take())


def test_kafka_topics_are_created_and_show_lag(kafka_servers: str, command: Command) -> None:
    bus = ("--bus", f"kafka://{kafka_servers}")
    if kafka_server.GIVEN is None:
        before = command("topics", "check", *bus)
        assert before.code == ExitCode.FOUND_WRONG
        assert "llm.envelopes.execution" in before.out
        assert "missing" in before.out

    made = command("topics", "create", *bus, "--partitions", "2", "--json")
    again = command("topics", "create", *bus, "--partitions", "2")
    more = command("topics", "create", *bus, "--partitions", "1000")
    fewer = command("topics", "create", *bus, "--partitions", "1")
    checked = command("topics", "check", *bus, "--partitions", "2")
    asyncio.run(use(kafka_servers))
    lag = command("topics", "lag", *bus, "--group", "topics-test", "--json")
    shown = command("topics", "lag", *bus, "--group", "topics-test")

    others = {"llm.replies", "llm.events", "llm.dead-letters", "llm.records", "llm.heads"}
    assert set(json.loads(made.out)["created"]) <= others | {topic.name for topic in ENVELOPES.values()}
    assert again.out == fewer.out == "All 9 topics exist already.\n"
    otherwise = "Topics with another number of partitions: 9. For details, run `topics check`."
    assert (more.code, more.out) == (ExitCode.FOUND_WRONG, f"{again.out[:-1]} {otherwise}\n")
    assert (checked.code, checked.out) == (ExitCode.DONE, "9 topics OK\n")
    (row,) = [row for row in json.loads(lag.out) if row["topic"] == "llm.events"]
    assert (row["group"], row["lag"]) == ("topics-test", row["end"] - row["committed"])
    assert row["lag"] >= 1
    assert "topics-test" in shown.out
    nosuch = command("topics", "lag", *bus, "--group", "nosuch")
    assert nosuch.code == ExitCode.FOUND_WRONG
    assert nosuch.err.startswith("Error: unknown group nosuch. Known groups: ")
    assert "topics-test" in nosuch.err


def test_unread_messages_have_a_lag_row(
    kafka_servers: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = redis_server.namespace()
    monkeypatch.setenv("AGENTIC_BUS__NAMESPACE", namespace)
    lag = ("topics", "lag", "--bus", f"kafka://{kafka_servers}")
    command(*lag[:1], "create", *lag[2:], "--partitions", "1")
    before, unknown = command(*lag), command(*lag, "--group", "nosuch")

    asyncio.run(publish(kafka_servers, namespace))
    rows = json.loads(command(*lag, "--json").out)

    assert before.out == "No group has read from this bus.\n"
    assert unknown.err == "Error: unknown group nosuch. No group has read from this bus.\n"
    unread = {"group": "-", "partition": 0, "committed": None, "end": 1, "lag": 1}
    assert rows == [{**unread, "topic": "llm.dead-letters"}]
    assert command(*lag).out.splitlines()[1].split() == ["-", "llm.dead-letters", "0", "-", "1", "1"]


async def publish(servers: str, namespace: str) -> None:
    """Publish a letter, and a reply, which is read without a group."""
    async with aclosing(kafka_server.broker(servers, namespace=namespace)) as broker:
        for topic in (DEAD_LETTERS, REPLIES):
            await broker.publish(topic, Message("a", b"1", {}))


async def use_redis(url: str, namespace: str) -> None:
    """Publish three events, of which a group finishes one and holds another."""
    async with aclosing(redis_bus.broker(url, namespace)) as broker:
        await broker.publish_all(
            EVENTS, [Message("a", b"", {}), Message("a", b"", {}), Message("b", b"", {})]
        )
        reader = await broker.subscribe([EVENTS], "topics-test")
        await reader.ack(await reader.take())
        await reader.take()
        await broker.publish(DEAD_LETTERS, Message("a", b"", {}))


def test_redis_topics_are_created_and_show_lag(
    redis_url: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = redis_server.namespace()
    monkeypatch.setenv("AGENTIC_BUS__NAMESPACE", namespace)
    bus = ("--bus", redis_url)

    before = command("topics", "check", *bus)
    made = command("topics", "create", *bus, "--json")
    again = command("topics", "create", *bus)
    checked = command("topics", "check", *bus)
    other = command("topics", "check", *bus, "--partitions", "4", "--json")
    fewer = command("topics", "create", *bus, "--partitions", "4", "--json")
    asyncio.run(use_redis(redis_url, namespace))
    lag = command("topics", "lag", *bus, "--json")
    shown = command("topics", "lag", *bus, "--group", "topics-test")

    assert (before.code, before.out.count("missing")) == (ExitCode.FOUND_WRONG, 9)
    assert len(json.loads(made.out)["created"]) == 9
    assert again.out == "All 9 topics exist already.\n"
    assert (checked.code, checked.out) == (ExitCode.DONE, "9 topics OK\n")
    wrong = {"topic": "llm.events", "what": "partitions", "found": "16", "wanted": "4"}
    assert wrong in json.loads(other.out)
    assert (fewer.code, len(json.loads(fewer.out)["set_up_otherwise"])) == (ExitCode.FOUND_WRONG, 9)
    row, unread = json.loads(lag.out)
    assert (row["group"], row["topic"], row["waiting"] + row["pending"]) == ("topics-test", "llm.events", 2)
    assert unread == {"group": "-", "topic": "llm.dead-letters", "waiting": 1, "pending": 0}
    assert "pending" in shown.out


def test_redis_topic_errors_are_single_lines(
    command: Command,
) -> None:
    refused = command("topics", "create", "--bus", "redis://127.0.0.1:1", "--replicas", "3")
    away = command("topics", "lag", "--bus", "redis://:secret-password@127.0.0.1:1")

    assert (refused.code, refused.err) == (
        ExitCode.BAD_INPUT,
        "Error: --replicas requires a bus on Kafka. Redis keeps every message until all groups have finished it.\n",
    )
    assert (away.code, away.err.count("\n")) == (ExitCode.LOG_UNUSABLE, 1)
    assert "no Redis answers. Servers: 127.0.0.1:1. Check that they are running" in away.err
    assert "secret-password" not in away.err


@pytest.mark.parametrize(
    "bus",
    ["redis://", "redis://host/bus", "kafka://", "kafka://host", "kafka://a:1,b", "127.0.0.1:9092"],
)
def test_invalid_bus_url_error_lists_allowed_forms(bus: str, command: Command) -> None:
    ended = command("topics", "check", "--bus", bus)

    assert ended.code == ExitCode.BAD_INPUT
    assert ended.err.startswith("Error: --bus: bus.url is ")
    assert ended.err.endswith(
        ". Allowed: kafka://HOST:PORT[,HOST:PORT...], redis://HOST:PORT, rediss://HOST:PORT, or unix://PATH\n"
    )


def test_unreachable_kafka_error_is_single_line(command: Command) -> None:
    ended = command("topics", "lag", "--bus", "kafka://127.0.0.1:1")

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert ended.err.count("\n") == 1
    assert "no Kafka answers. Servers: 127.0.0.1:1. Check that they are running and reachable" in ended.err
