"""The command line on a bus for tests, and what it leaves in logs; the bus and its workers are fixtures."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.main import main
from tests.logging_kept import logging_kept

ON_BOTH = pytest.mark.parametrize("bus", ["kafka", "redis"], indirect=True)
"""The test runs on each."""
KAFKA_IN_SOAK = pytest.mark.parametrize(
    "bus", [pytest.param("kafka", marks=pytest.mark.soak), "redis"], indirect=True
)
"""The test runs on each, on a Kafka in `make soak` alone: another test shows the same way through it."""
REDIS_IN_SOAK = pytest.mark.parametrize(
    "bus", ["kafka", pytest.param("redis", marks=pytest.mark.soak)], indirect=True
)
"""The test runs on each, on a Redis in `make soak` alone: a question over a bus shows the same way through it."""

NO_KEYS = {"PATH": os.defpath}


def priced_model(workflow: str, adapter: str) -> str:
    """Return the rows of a configuration in which a model of an adapter of the tests answers a workflow."""
    return f"""
[models]
{workflow} = "own/small"

[providers.own]
adapter = "{adapter}"
[[providers.own.models]]
model = "small"
price = {{ input = 10, output = 100 }}
context_tokens = 200000
max_output_tokens = 16000
source = "a test"
checked_on = 2026-11-22
"""


def make_topics(config: Path) -> None:
    assert command("topics", "create", "--config", config) == ExitCode.DONE


def command(*words: object) -> int:
    with logging_kept(), pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return int(left.value.code or 0)


def records_in(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / "interactions.jsonl").read_text("utf-8").splitlines()]


def sent_by(log: Path) -> list[str]:
    """Return the reservations under which a worker has sent a request, each as often as that was."""
    lines = [line for line in records_in(log) if line.get("kind") == "attempt.dispatched"]
    return [line["body"]["reservation_id"] for line in lines]


def attempts_in(session: Path) -> list[str]:
    """Return the reservations of the attempts that a session has on record."""
    return [line["result"]["reservation_id"] for line in records_in(session) if "result" in line]
