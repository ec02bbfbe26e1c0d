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


def test_a_failed_task_of_a_library_is_one_line_without_a_traceback(
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


def test_the_log_is_configured_once_however_often_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_kept():
        configure_logging("warning", "json")
        configure_logging("warning", "json")
        asyncio.run(failed_task())

    assert len(capsys.readouterr().err.splitlines()) == 1
