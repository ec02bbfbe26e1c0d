"""Log entries of libraries are lines of our log, without tracebacks."""

import asyncio
import gc
import json

import pytest

from agentic_trading.cli.settings import configure_logging
from tests.logging_kept import logging_kept

FAULT = "the server has gone"


async def failed_task() -> None:
    """Leave a task that has failed and is not awaited, as a driver does after an outage."""

    async def fail() -> None:
        raise ConnectionError(FAULT)

    task = asyncio.Task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()


def lines_of(printed: str) -> list[str]:
    """Return the lines that name the fault. A thread that another test has left may print its own."""
    return [line for line in printed.splitlines() if FAULT in line]


def test_library_task_failure_is_a_log_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logging_kept():
        configure_logging("warning", "json")
        asyncio.run(failed_task())

    [line] = lines_of(capsys.readouterr().err)
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["library"]) == ("library_log", "error", "asyncio")
    assert entry["error"] == f"ConnectionError: {FAULT}"
    assert entry["message"] == "Task exception was never retrieved"


def test_configuring_logging_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_kept():
        configure_logging("warning", "json")
        configure_logging("warning", "json")
        asyncio.run(failed_task())

    assert len(lines_of(capsys.readouterr().err)) == 1
