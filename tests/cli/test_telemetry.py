"""The program's own log goes to standard error, as its settings say."""

import json
from collections.abc import Iterator

import pytest
import structlog

from agentic_trading.cli.settings import configure_logging
from tests.logging_kept import logging_kept


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with logging_kept():
        yield


def test_event_below_level_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "human")

    structlog.get_logger().info("interaction_stored")

    assert capsys.readouterr() == ("", "")


def test_human_format_logs_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "human")

    structlog.get_logger().info("interaction_stored", cost_nusd=5)

    written = capsys.readouterr()
    assert written.out == ""
    assert "interaction_stored" in written.err
    assert "cost_nusd=5" in written.err


def test_json_format_logs_an_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")

    structlog.get_logger().warning("log_tail_set_aside", bytes=7)

    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["bytes"]) == ("log_tail_set_aside", "warning", 7)


def test_earlier_logger_follows_later_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger()
    configure_logging("info", "json")

    log.info("late")

    assert json.loads(capsys.readouterr().err)["event"] == "late"


def test_control_characters_are_escaped_in_log(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("human", "json"):
        configure_logging("info", form)

        failed = ValueError("no \x1b[2J\x9b")
        structlog.get_logger().warning("late\x1b", id="a\x1b[2J\u202eb", exc_info=failed)

        written = capsys.readouterr().err
        assert "x1b[2J" in written or "u001b[2J" in written
        assert written.replace("\n", "").isprintable()
