"""A real Kafka for tests: the one that is given, else one of our own that the test run starts and ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentic_trading.services.daemon import ServiceError
from agentic_trading.services.kafka import KafkaService

# The environment chooses what tests may use, as it does for other services.
GIVEN = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")  # noqa: TID251 - test set-up
REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up

FIRST_START_S = 120
"""The time limit of a test that may be the first one to ask for Kafka: its artifacts are then got, and trained."""


@contextmanager
def own_server(folder: Path) -> Iterator[KafkaService]:
    """Run a server for as long as the block lasts; the test is skipped where none can be, or fails if one is required."""
    try:
        server = KafkaService.prepared(folder, ends_with_starter=True)
        server.start()
    except ServiceError as e:
        reason = str(e).splitlines()[0]
        if REQUIRED:
            pytest.fail(f"services are required (REQUIRE_SERVICES=1): {reason}")
        pytest.skip(reason)
    try:
        yield server
    finally:
        server.kill()
