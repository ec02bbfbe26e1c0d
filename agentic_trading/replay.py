"""Compare a recorded run with a fresh one, and block the network during replays."""

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from typing_extensions import override

from agentic_trading.canonical import canonical_bytes, exact_bytes, exact_value
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope

__all__ = ["Difference", "NetworkBlockedError", "first_difference", "no_network", "request_changes"]

COMPARED = (
    "instructions", "prompt_version", "context", "tools_allowed", "expected_output_schema", "response_format",
    "provider", "model", "temperature", "effort", "output_policy", "as_of",
)  # fmt: skip
"""The fields that a request hash covers, except parts of the budget and of evidence."""

COUNTED = ("tenant_id", "agent_id", "step")
"""The fields that identify a call, in addition to its request hash."""

SHOWN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two decision logs.

    Attributes:
        line: The number of the first different line, from 1.
        what: The line's kind, subject and time.
        path: The place of the first different value in the line. `$` if the line is missing in one log.
        recorded: The recorded value. None if it is missing.
        fresh: The fresh value. None if it is missing.

    """

    line: int
    what: str
    path: str
    recorded: Any
    fresh: Any

    @override
    def __str__(self) -> str:
        """Return the difference as one sentence."""
        recorded, fresh = _shown(self.recorded), _shown(self.fresh)
        return f"line {self.line} ({self.what}): {self.path} was {recorded}, is {fresh}"


def first_difference(recorded: Iterable[bytes], fresh: Iterable[bytes]) -> Difference | None:
    """Return the first difference between two decision logs, or None if all bytes are equal."""
    pairs = enumerate(zip_longest(recorded, fresh), start=1)
    differences = (difference_at(number, one, other) for number, (one, other) in pairs)
    return next((each for each in differences if each is not None), None)


def difference_at(line: int, recorded: bytes | None, fresh: bytes | None) -> Difference | None:
    """Return the difference in line `line` (from 1), or None. Pass None for a log that has ended."""
    return None if recorded == fresh else _difference(line, recorded, fresh)


def request_changes(recorded: LLMEnvelope, fresh: LLMEnvelope) -> list[str]:
    """Return the differences between two requests. Empty if a replay treats them as the same call."""
    counted = [
        _change(name, getattr(recorded, name), getattr(fresh, name))
        for name in COUNTED
        if getattr(recorded, name) != getattr(fresh, name)
    ]
    if recorded.request_hash == fresh.request_hash:
        return counted
    before, after = _semantics(recorded), _semantics(fresh)
    return counted + [
        _change(*_first_path(before.get(name), after.get(name), name))
        for name in dict.fromkeys([*before, *after])
        if not _same(before.get(name), after.get(name))
    ]


class NetworkBlockedError(TradingError, OSError):
    """Code tried to use the network during a replay.

    Attributes:
        event: The audit event of the interpreter.

    """

    def __init__(self, event: str) -> None:
        self.event = event
        super().__init__(
            f"{event} during a replay. Replays answer from their log and must not use the network"
        )


@contextmanager
def no_network() -> Generator[None]:
    """Block network access of this process while the block runs. Attempts raise `NetworkBlockedError`."""
    _HOOK.set()
    _HOOK.replays += 1
    try:
        yield
    finally:
        _HOOK.replays -= 1


def _semantics(envelope: LLMEnvelope) -> dict[str, Any]:
    """Return the fields that a request hash covers, each as decoded canonical JSON."""
    fields: dict[str, Any] = {name: getattr(envelope, name) for name in COMPARED}
    fields["output_policy"] = envelope.output_policy.model_dump(mode="json")
    fields["budget"] = envelope.budget.model_dump(include={"max_output_tokens", "thinking_budget"})
    for place, item in enumerate(envelope.retrieved_evidence, start=1):
        fields[f"evidence E{place}"] = item.model_dump(include={"source", "content", "available_at"})
    return {name: exact_value(canonical_bytes(value)) for name, value in fields.items()}


def _difference(number: int, one: bytes | None, other: bytes | None) -> Difference:
    was, now = _line(one), _line(other)
    line = next((each for each in (was, now) if isinstance(each, dict)), {})
    what = f"{line.get('kind')} of {line.get('subject')} at {line.get('as_of')}"
    path, recorded, fresh = _first_path(was, now, "$")
    return Difference(number, what, path, recorded, fresh)


def _line(raw: bytes | None) -> Any:
    """Return the object on a line. If it is not JSON, return the line unchanged."""
    if raw is None:
        return None
    try:
        return exact_value(raw)
    except (ValueError, RecursionError):
        return raw


def _first_path(was: Any, now: Any, path: str) -> tuple[str, Any, Any]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            if not _same(was.get(key), now.get(key)):
                return _first_path(was.get(key), now.get(key), f"{path}.{key}")
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            if not _same(one, other):
                return _first_path(one, other, f"{path}[{index}]")
    return path, was, now


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values have the same text: 1.0 differs from 1.00, and 1 from true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and str(one) == str(other)


def _change(path: str, was: Any, now: Any) -> str:
    if not (isinstance(was, str) and isinstance(now, str) and max(len(was), len(now)) > SHOWN):
        return f"{path}: was {_shown(was)}, is {_shown(now)}"
    differing = (place for place, (one, other) in enumerate(zip(was, now, strict=False)) if one != other)
    at = next(differing, min(len(was), len(now)))
    part = slice(max(0, at - SHOWN // 3), at + SHOWN)
    return f"{path}, at character {at}: was …{was[part]!r}, is …{now[part]!r}"


def _shown(value: Any) -> str:
    text = exact_bytes(value).decode() if isinstance(value, dict | list | Decimal) else repr(value)
    return text if len(text) <= 2 * SHOWN else text[: 2 * SHOWN] + "…"


_REACHING_OUT = frozenset({
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg",
    "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr",
})  # fmt: skip
"""The interpreter's audit events (PEP 578) for network access."""


class _NetworkHook:
    """One audit hook per process. Audit hooks cannot be removed, so it counts the active replays."""

    def __init__(self) -> None:
        self.replays = 0
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            sys.addaudithook(self._check)

    def _check(self, event: str, _args: tuple[Any, ...]) -> None:
        if self.replays and event in _REACHING_OUT:
            raise NetworkBlockedError(event)


_HOOK = _NetworkHook()
