"""`agentic-trading topics` makes, checks and watches the topics of a real Kafka."""

import asyncio
import json
from contextlib import aclosing

import pytest

from agentic_trading.app.cli.exits import ExitCode
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import ENVELOPES, EVENTS
from tests import kafka_server
from tests.app.cli.conftest import Command

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)


async def use(servers: str) -> None:
    """Publish two events, of which a group finishes one."""
    async with aclosing(kafka_server.broker(servers)) as broker:
        await broker.publish_all(EVENTS, [Message("a", b"1", {}), Message("a", b"2", {})])
        reader = await broker.subscribe([EVENTS], "topics-test")
        await reader.ack(await reader.take())


def test_topics_are_made_found_right_and_their_lag_is_shown(kafka_servers: str, command: Command) -> None:
    bus = ("--bus", f"kafka://{kafka_servers}")
    if kafka_server.GIVEN is None:
        before = command("topics", "check", *bus)
        assert before.code == ExitCode.FOUND_WRONG
        assert "llm.envelopes.execution" in before.out
        assert "missing" in before.out

    made = command("topics", "create", *bus, "--partitions", "2", "--json")
    again = command("topics", "create", *bus, "--partitions", "2")
    checked = command("topics", "check", *bus, "--partitions", "2")
    asyncio.run(use(kafka_servers))
    lag = command("topics", "lag", *bus, "--group", "topics-test", "--json")
    shown = command("topics", "lag", *bus, "--group", "topics-test")

    others = {"llm.replies", "llm.events", "llm.dead-letters", "llm.records", "llm.heads"}
    assert set(json.loads(made.out)["created"]) <= others | {topic.name for topic in ENVELOPES.values()}
    assert again.out == "created: nothing; all topics were there\n"
    assert (checked.code, checked.out) == (ExitCode.DONE, "right: 9 topics\n")
    (row,) = [row for row in json.loads(lag.out) if row["topic"] == "llm.events"]
    assert (row["group"], row["lag"]) == ("topics-test", row["end"] - row["committed"])
    assert row["lag"] >= 1
    assert "topics-test" in shown.out


@pytest.mark.parametrize(
    "bus", ["redis://127.0.0.1:6379", "kafka://", "kafka://host", "kafka://a:1,b", "127.0.0.1:9092"]
)
def test_an_address_that_names_no_bus_is_refused_with_what_is_allowed(bus: str, command: Command) -> None:
    ended = command("topics", "check", "--bus", bus)

    assert ended.code == ExitCode.BAD_INPUT
    assert (
        ended.err == f"Error: the bus is {bus!r}; allowed is kafka://HOST:PORT, several with commas between\n"
    )


def test_a_kafka_that_is_away_is_said_in_one_line(command: Command) -> None:
    ended = command("topics", "lag", "--bus", "kafka://127.0.0.1:1")

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert ended.err.count("\n") == 1
    assert "servers: 127.0.0.1:1; see that they run and can be reached" in ended.err
