"""Settings and logging of commands."""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import structlog
from structlog.types import Processor
from typing_extensions import override

from agentic_trading.llm.redaction import Redaction
from agentic_trading.logger import get_logger
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.settings import LogFormat, LogLevel, Settings, load_config, load_settings

log = get_logger()


def configured(path: Path | None = None) -> PlatformConfig:
    """Call `start`, load the configuration and remove its secrets from the log.

    Raises:
        SettingsError: If an environment variable is wrong.
        ConfigError: If the configuration is wrong.

    """
    settings, config = start(), load_config(path)
    configure_logging(settings.log_level, settings.log_format, config.redaction)
    return config


def start() -> Settings:
    """Load the settings and configure logging. Raises `SettingsError` if an environment variable is wrong."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    return settings


def configure_logging(level: LogLevel, form: LogFormat, redaction: Redaction | None = None) -> None:
    """Log events from `level` on to standard error, without the secrets of `redaction`.

    Standard output is left to the commands.
    """
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # because its errors are also raised, and reported by us
    root = logging.getLogger()
    root.handlers = [one for one in root.handlers if not isinstance(one, _LibraryLog)] + [_LibraryLog()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(form),
            partial(_without_secrets, redaction or Redaction()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


class _LibraryLog(logging.Handler):
    """Logs an entry of a library as one line."""

    # Without it, asyncio would print a traceback for each unawaited task of a driver.

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Log the first line of a message, and its error without the traceback."""
        error = record.exc_info[1] if record.exc_info else None
        facts = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        text = record.getMessage().partition("\n")[0]
        log.log(record.levelno, "library_log", library=record.name, message=text, **facts)


def _to_standard_error(*_names: Any) -> structlog.PrintLogger:
    # Looked up for each logger, because a progress bar replaces standard error while it is drawn.
    return structlog.PrintLogger(sys.stderr)


def _spelled_out(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Return an event with the control characters in its texts escaped, except line breaks."""
    return {name: "\n".join(map(_printable, str(value).split("\n"))) for name, value in event.items()}


def _printable(line: str) -> str:
    return line if line.isprintable() else repr(line)[1:-1]


def _without_secrets(redaction: Redaction, _logger: Any, _name: str, line: Any) -> str:
    return redaction.text(line)


def _renderers(form: LogFormat) -> list[Processor]:
    match form:
        case "human":
            plain = structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
            return [structlog.processors.format_exc_info, _spelled_out, plain]
        case "json":
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
        case _:
            assert_never(form)
