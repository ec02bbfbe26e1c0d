"""How the program's own log looks: lines for people, or JSON for machines, always on standard error."""

import logging
import sys
from typing import Any, assert_never

import structlog
from structlog.types import Processor

from agentic_trading.app.settings import LogFormat, LogLevel


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Send events of at least `level` to standard error; standard output stays the commands' own."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


def _to_standard_error(*_names: Any) -> structlog.PrintLogger:
    # Looked up for each logger: a progress bar takes standard error over while it is drawn.
    return structlog.PrintLogger(sys.stderr)


def _renderers(form: LogFormat) -> list[Processor]:
    match form:
        case "human":
            return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        case "json":
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
        case _:
            assert_never(form)
