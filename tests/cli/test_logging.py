"""Log entries of libraries are lines of our log, without tracebacks."""

import asyncio
import gc
import json

import pytest

from agentic_trading.cli.settings import configure_logging
from tests.logging_kept import logging_kept


async def failed_task() -> None:
    """Leave a task that has failed and is not awaited, as a driver does after an outage."""

    async def fail() -> None:
        raise ConnectionError("the server has gone")

    task = asyncio.Task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()


def test_library_task_failure_is_a_log_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logging_kept():
        configure_logging("warning", "json")
        asyncio.run(failed_task())

    [line] = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["library"]) == ("library_log", "error", "asyncio")
    assert entry["error"] == "ConnectionError: the server has gone"
    assert entry["message"] == "Task exception was never retrieved"


def test_configuring_logging_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_kept():
        configure_logging("warning", "json")
        configure_logging("warning", "json")
        asyncio.run(failed_task())

    assert len(capsys.readouterr().err.splitlines()) == 1
