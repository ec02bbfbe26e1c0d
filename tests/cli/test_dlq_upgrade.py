"""A fleet that is upgraded worker by worker: what an old one may not run is a dead letter until it is replayed."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.codec import envelope_message, read_dead_letter, read_interaction, reply_head
from agentic_trading.bus.topic import ENVELOPES, Broker, Subscription
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import SystemClock
from agentic_trading.llm import LLMEnvelope, LLMInteraction
from agentic_trading.operate.choices import pluralize
from agentic_trading.services.local import KafkaService
from tests import kafka_server
from tests.cli.newer_worker import ANSWER, newer_package
from tests.cli.piping import PROGRAM
from tests.gateway import GOOD, asking, gateway
from tests.worker.running import running

pytestmark = [pytest.mark.timeout(kafka_server.FIRST_START_S), pytest.mark.soak]

ROOT = Path(__file__).parents[2]
ADDRESS = "5f0e6c1e-6a1c-4c0e-9d0f-8f5b6f3f8a11"
WORKFLOWS = ("analysis", "planning", "general")
TRACES = ("trace-0", "trace-2")
"""One in each partition of two."""


@pytest.fixture
def servers(own_kafka: KafkaService) -> str:
    """Return the address of a Kafka of the test's own."""
    return own_kafka.bootstrap_servers


@contextmanager
def newer_worker(servers: str, folder: Path) -> Iterator[None]:
    """Run a worker of the newer release for as long as the block lasts."""
    command = [sys.executable, str(ROOT / "tests/cli/newer_worker.py"), servers]
    paths = f"{newer_package(folder)}:{ROOT}"
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={"PYTHONPATH": paths}) as worker:
        try:
            yield
        finally:
            assert worker.stdin is not None
            worker.stdin.close()
            assert worker.wait(20) == 0


def hinting(**fields: object) -> list[LLMEnvelope]:
    """Return envelopes with a field that only the newer release knows, one for each partition of each lane."""
    built = [asking(each).with_trace(trace).build() for each in WORKFLOWS for trace in TRACES]
    return [each.model_copy(update={"venue_hint": "XNYS", **fields}) for each in built]


async def answers(client: Gateway, envelopes: Sequence[LLMEnvelope]) -> set[str]:
    """Return which answers are given: they differ by release."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(client.ask(each)) for each in envelopes]
    found = [each.result() for each in asked]
    assert all(isinstance(each, LLMInteraction) for each in found)
    return {each.result.raw_output for each in found if isinstance(each, LLMInteraction)}


async def publish(broker: Broker, envelopes: Sequence[LLMEnvelope]) -> None:
    for each in envelopes:
        await broker.publish(
            ENVELOPES[each.workflow], envelope_message(each, reply_to=ADDRESS, sent_at=SystemClock().now())
        )


async def heard(replies: Subscription, count: int) -> dict[str, str]:
    """Return the answers, or the reasons of dead letters, that come by replies, by envelope."""
    found: dict[str, str] = {}
    while len(found) < count:
        message = (await replies.take()).message
        if reply_head(message).is_dead_letter:
            letter = read_dead_letter(message)
            found[letter.envelope_id] = letter.reason
        else:
            attempt = read_interaction(message)
            found[attempt.result.envelope_id] = attempt.result.raw_output
    return found


async def test_unknown_must_understand_field_replays_after_upgrade(servers: str, tmp_path: Path) -> None:
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=2))
    async with aclosing(kafka_server.broker(servers)) as broker, asyncio.timeout(60):
        replies = await broker.replies(ADDRESS)
        old = gateway(lambda _request: GOOD, broker=broker)
        restricted = hinting(must_understand=["venue_hint"])
        with newer_worker(servers, tmp_path):
            async with running(old) as client:
                while await answers(client, hinting()) != {GOOD, ANSWER}:
                    pass
                await publish(broker, restricted)
                before = await heard(replies, len(restricted))
            dead = [each for each, end in before.items() if end == "must_understand"]
            words = ["dlq", "replay", "--bus", f"kafka://{servers}", "--reason", "must_understand", "--yes"]
            replay = partial(
                subprocess.run, [str(PROGRAM), *words], capture_output=True, check=True, text=True
            )
            replayed = await asyncio.to_thread(replay)
            after = await heard(replies, len(dead))

    assert set(before.values()) == {ANSWER, "must_understand"}
    assert replayed.stdout == f"Replayed {pluralize(len(dead), 'message')}.\n"
    assert after == dict.fromkeys(dead, ANSWER)
