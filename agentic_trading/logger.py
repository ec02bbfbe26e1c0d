"""Where events are logged: to structlog once the application has configured it, before that to the `logging` of Python."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, cast

import structlog

_LOGGER = logging.getLogger(__name__.partition(".")[0])


def get_logger() -> Any:
    """Return a logger that follows the application's configuration, also if that comes later.

    If structlog is not configured, events go to the logger `agentic_trading` of `logging`: its default prints warnings
    and errors to standard error, and nothing else.
    """
    return structlog.wrap_logger(None, wrapper_class=cast("type[structlog.typing.BindableLogger]", _bound))


def _bound(logger: Any, processors: Any, context: dict[str, Any]) -> Any:
    """Return a bound logger of structlog's configuration, or one of `logging` if there is none."""
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors, context)
    return structlog.stdlib.BoundLogger(_LOGGER, _PROCESSORS, context)


def _as_text(
    _logger: Any, _name: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], Mapping[str, Any]]:
    """Return an event as the arguments of a method of `logging`: its name, then its facts."""
    arguments = {"exc_info": event.pop("exc_info", None), "stacklevel": _STACK_LEVEL}
    name = event.pop("event", "")
    return (" ".join([str(name), *(f"{key}={value!r}" for key, value in event.items())]),), arguments


_STACK_LEVEL = 4
"""How many frames of structlog and of this module are between the caller and `logging`."""

_PROCESSORS: list[Callable[..., Any]] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    _as_text,
]
