"""The settings of a command, read at its start, and how its log looks."""

import logging
import sys
from pathlib import Path
from typing import Any, assert_never

import structlog
from structlog.types import Processor

from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.settings import LogFormat, LogLevel, Settings, load_config, load_settings


def configured(path: Path | None = None) -> PlatformConfig:
    """Start as `start` does, and return the configuration that `load_config` gives; raises what the two raise."""
    start()
    return load_config(path)


def start() -> Settings:
    """Return the settings, and have the log look as they say; raises `SettingsError` for a wrong variable."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    return settings


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Send events of at least `level` to standard error; standard output stays the commands' own."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs what it raises, and is reported by us
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
