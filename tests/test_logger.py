"""A library stays quiet until the application configures logging, by structlog or by `logging`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import BLOCKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentic_trading"

EVENTS = """
from agentic_trading.client import parse_llm_response
from agentic_trading.logger import get_logger
{configured}
parse_llm_response('{{"conclusion": "up"}}')  # logs answer_parsed, for debugging
get_logger().info("quiet", number=1)
parse_llm_response("no object")
"""

UNUSABLE = "answer_unusable chars=9 rules=['json']"


def ran(code: str) -> tuple[str, str]:
    """Run a program, and return its standard output and standard error."""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return ended.stdout, ended.stderr


def test_unconfigured_gateway_prints_no_log() -> None:
    first = next(block for block in BLOCKS if block.language == "python")
    out, err = ran(first.text)

    assert err == ""
    assert len(out.splitlines()) == 1  # the example's own
    assert "answer_" not in out


def test_unconfigured_logger_prints_only_warnings() -> None:
    out, err = ran(EVENTS.format(configured=""))

    assert (out, err.splitlines()) == ("", [UNUSABLE])


def test_logger_follows_python_logging() -> None:
    form = "%(levelname)s %(name)s %(module)s %(message)s"
    _, err = ran(
        EVENTS.format(configured=f"import logging; logging.basicConfig(level='INFO', format={form!r})")
    )

    assert err.splitlines() == [
        "INFO agentic_trading <string> quiet number=1",
        f"WARNING agentic_trading response {UNUSABLE}",
    ]


@pytest.mark.parametrize(
    ("level", "events"), [(10, ["answer_parsed", "quiet", "answer_unusable"]), (30, ["answer_unusable"])]
)
def test_logger_follows_structlog_configured_later(level: int, events: list[str]) -> None:
    configured = (
        "import structlog\n"
        "structlog.configure(processors=[structlog.processors.KeyValueRenderer(['event'])],"
        f" wrapper_class=structlog.make_filtering_bound_logger({level}))"
    )
    out, err = ran(EVENTS.format(configured=configured))

    assert err == ""
    assert [line.split("'")[1] for line in out.splitlines()] == events


def test_error_keeps_the_traceback() -> None:
    _, err = ran(
        "from agentic_trading.logger import get_logger\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    get_logger().exception('failed', step=2)\n"
    )

    assert err.startswith("failed step=2\nTraceback")
    assert err.rstrip().endswith("ZeroDivisionError: division by zero")


def test_package_has_no_other_loggers() -> None:
    """A logger of structlog's default prints everything to standard output."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}

    assert [str(path) for path, text in texts.items() if "structlog.get_logger" in text] == []
