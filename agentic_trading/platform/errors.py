"""What is wrong with a configuration: one error that names every problem, with its origin and what is allowed.

TradingError
└── ConfigError                      a platform cannot be made from it
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
_HIDDEN: Final = frozenset({"url", "base_url", "secret", "options"})
"""Keys whose wrong values are not shown: they may have a key or a password in them."""

_SCHEME: Final = re.compile(r"[a-z][a-z+-]{0,15}")
_PORT: Final = re.compile(r":\d+/?$", re.ASCII)

_PLAIN: Final = {
    "dict_type": "a table",
    "model_type": "a table",
    "string_type": "a text",
    "too_short": "one at least",
    "tuple_type": "a list",
}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One wrong value: the file, variable or argument it is from, its place, what was found, what is allowed."""

    origin: str
    place: str
    found: str
    allowed: str

    @override
    def __str__(self) -> str:
        """Return the problem as a sentence."""
        where = f"{self.origin}: {self.place}" if self.place else self.origin
        return f"{where} is {self.found}; allowed: {self.allowed}"


class ConfigError(TradingError):
    """A configuration cannot be used; `problems` are all that are wrong with it."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        lines = list(map(str, self.problems))
        head = f"{len(lines)} problems of the configuration:\n  "
        super().__init__(lines[0] if len(lines) == 1 else head + "\n  ".join(lines))


def found_text(place: Sequence[str], value: Any) -> str:
    """Return a wrong value as a message may show it."""
    if _HIDDEN.intersection(place):
        if not isinstance(value, str) or place[-1] not in {"url", "base_url"}:
            return "what it must not be"
        return _server_fault(place, value) if "//" in value else address_text(value)
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else f"{value!r:.{_SHOWN_CHARS}}"


def _server_fault(place: Sequence[str], address: str) -> str:
    """Return what is wrong with the address of a bus or a ledger; nothing but its scheme is shown."""
    scheme, _, rest = address.partition("://")
    schemes = {"redis", "rediss", "unix"} | ({"kafka"} if place[0] == "bus" else set())
    if place[-1] == "url" and scheme not in schemes and _SCHEME.fullmatch(scheme):
        return f"an address with the scheme {scheme}"
    servers = rest.rpartition("@")[2].split(",")
    if scheme == "kafka" and place[0] == "bus" and not all(_PORT.search(each) for each in servers):
        return "an address without a port"
    return "what it must not be"


def allowed_text(error: ErrorDetails) -> str:
    """Return what pydantic, or a validator of ours, says is allowed: ours raise `ValueError` with just that."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if plain := _PLAIN.get(error["type"]):
        return plain
    if expected := error.get("ctx", {}).get("expected"):
        return str(expected)
    message = error["msg"].removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def nearest_origin(origins: Mapping[str, str], place: str) -> str:
    """Return the origin of the value at a place, else of the value or table that it stands in, else nothing."""
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
