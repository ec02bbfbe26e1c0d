"""Errors of a configuration. One error lists every problem with its origin and the allowed values.

TradingError
├── ConfigError                      a configuration is invalid
└── OptionError                      an option of a command is invalid
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ErrorDetails
from typing_extensions import override

from agentic_trading.errors import TradingError
from agentic_trading.llm.provider import address_text

_SHOWN_CHARS: Final = 80
_HIDDEN: Final = frozenset({"url", "base_url", "secret", "options", "sha256", "rotated"})
"""Keys whose wrong values are hidden, because they may contain a key or a password."""

_SCHEME: Final = re.compile(r"[a-z][a-z+-]{0,15}")
_PORT: Final = re.compile(r":\d+/?$", re.ASCII)

_PLAIN: Final = {
    "dict_type": "a table",
    "model_type": "a table",
    "string_type": "text",
    "too_short": "at least one item",
    "tuple_type": "a list",
}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One invalid value of a configuration.

    Attributes:
        origin: The source of the value: a file, a variable, an option or argument, or `code`.
        place: The path of the value, such as `ledger.url`. Empty if the problem is the source itself.
        found: The value, or its fault. Secrets are hidden.
        allowed: The allowed values.

    """

    origin: str
    place: str
    found: str
    allowed: str

    @override
    def __str__(self) -> str:
        """Return the problem as text."""
        where = f"{self.origin}: {self.place}" if self.place else self.origin
        return f"{where} is {self.found}. Allowed: {self.allowed}"


class ConfigError(TradingError):
    """A configuration is invalid.

    Attributes:
        problems: All problems of the configuration.

    """

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        lines = list(map(str, self.problems))
        head = f"{len(lines)} problems in the configuration:\n  "
        super().__init__(lines[0] if len(lines) == 1 else head + "\n  ".join(lines))


def found_text(place: Sequence[str], value: Any) -> str:
    """Return an invalid value for a message, without secrets."""
    if _HIDDEN.intersection(place):
        if not isinstance(value, str) or place[-1] not in {"url", "base_url"}:
            return "an invalid value, hidden because it may contain a secret"
        return _server_fault(place, value) if "//" in value else address_text(value)
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else f"{value!r:.{_SHOWN_CHARS}}"


def _server_fault(place: Sequence[str], address: str) -> str:
    """Return the fault of a bus or ledger URL.

    Only its scheme is shown, because the rest may be a password.
    """
    scheme, _, rest = address.partition("://")
    schemes = {"redis", "rediss", "unix"} | ({"kafka"} if place[0] == "bus" else set())
    if place[-1] == "url" and scheme not in schemes and _SCHEME.fullmatch(scheme):
        return f"a URL with the scheme {scheme}"
    servers = rest.rpartition("@")[2].split(",")
    if scheme == "kafka" and place[0] == "bus" and not all(_PORT.search(each) for each in servers):
        return "a URL without a port"
    return "an invalid value, hidden because it may contain a secret"


def allowed_text(error: ErrorDetails) -> str:
    """Return the allowed values of a pydantic error.

    Our validators raise `ValueError` with only this text.
    """
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if plain := _PLAIN.get(error["type"]):
        return plain
    if expected := error.get("ctx", {}).get("expected"):
        return str(expected)
    message = error["msg"].removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def nearest_origin(origins: Mapping[str, str], place: str) -> str:
    """Return the origin of the value at a place, or of the nearest table around it.

    Empty if there is none.
    """
    while place:
        if found := origins.get(place) or origins.get(f"{place}."):
            return found
        place = place.rpartition(".")[0]
    return ""


class OptionError(TradingError, ValueError):
    """An option has a wrong value.

    The message has the form `OPTION is WAS. Allowed: ALLOWED`.

    Attributes:
        option: The name of the option.
        was: Its value, or a description such as `missing`.
        allowed: The allowed values.

    """

    def __init__(self, option: str, was: object, allowed: str) -> None:
        self.option = option
        self.was = was
        self.allowed = allowed
        super().__init__(f"{option} is {was}. Allowed: {allowed}")
