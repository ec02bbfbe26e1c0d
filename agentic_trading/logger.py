"""The program's log: structlog if it is configured, otherwise Python's `logging`."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, cast

import structlog

_LOGGER = logging.getLogger(__name__.partition(".")[0])


def get_logger() -> Any:
    """Return a logger that follows the application's configuration, also if it comes later.

    Without structlog, events go to the logger `agentic_trading` of `logging`. By default it prints only
    warnings and errors, to standard error.
    """
    return structlog.wrap_logger(None, wrapper_class=cast("type[structlog.typing.BindableLogger]", _bound))


def _bound(logger: Any, processors: Any, context: dict[str, Any]) -> Any:
    """Return a bound logger of structlog's configuration, or of `logging`."""
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors, context)
    return structlog.stdlib.BoundLogger(_LOGGER, _PROCESSORS, context)


def _as_text(
    _logger: Any, _name: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], Mapping[str, Any]]:
    """Return an event as arguments of a `logging` method: its name and its fields."""
    arguments = {"exc_info": event.pop("exc_info", None), "stacklevel": _STACK_LEVEL}
    name = event.pop("event", "")
    return (" ".join([str(name), *(f"{key}={value!r}" for key, value in event.items())]),), arguments


_STACK_LEVEL = 4
"""Stack frames of structlog and this module between the caller and `logging`."""

_PROCESSORS: list[Callable[..., Any]] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    _as_text,
]
