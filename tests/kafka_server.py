"""A real Kafka for tests: the one that is given, else one of our own that the test run starts and ends."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, plan_of
from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.bus.topic import MAX_MESSAGE_BYTES, Topic
from agentic_trading.services.local import KafkaService, ServiceError

# The environment chooses what tests may use, as it does for other services.
GIVEN = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")  # noqa: TID251 - test set-up
REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up

ROOT = Path(__file__).parents[1]
FIRST_START_S = 120
"""The time limit of a test that may be the first one to ask for Kafka: its artifacts are then got, and trained."""


SESSION_S = 3.0
"""Of a reader in tests: a join, and the notice of a crash, take a part of it."""


def settings(servers: str, **changes: Any) -> KafkaSettings:
    """Return settings with short waits."""
    return KafkaSettings(
        servers, **{"session_s": SESSION_S, "drain_s": 2.0, "commit_every_s": 0.05, **changes}
    )


def broker(servers: str, **changes: Any) -> KafkaBroker:
    """Return a broker with short waits; whoever opens it closes it."""
    return KafkaBroker(settings(servers, **changes))


async def make_topics(
    servers: str, topics: Sequence[Topic[Any]], *, partitions: int = 2, namespace: str = ""
) -> None:
    """Make topics that are not there."""
    plans = plan_of(topics, max_message_bytes=MAX_MESSAGE_BYTES, partitions=partitions)
    await create_topics(settings(servers, namespace=namespace), plans, replicas=1)


@contextmanager
def own_server(folder: Path, **options: Any) -> Iterator[KafkaService]:
    """Run a server for as long as the block lasts; the test is skipped where none can be, or fails if one is required."""
    try:
        server = KafkaService.prepared(folder, ends_with_starter=True, **options)
    except ServiceError as e:
        reason = str(e).splitlines()[0]
        if REQUIRED:
            pytest.fail(f"services are required (REQUIRE_SERVICES=1): {reason}")
        pytest.skip(reason)
    server.start()
    try:
        yield server
    finally:
        server.kill()
