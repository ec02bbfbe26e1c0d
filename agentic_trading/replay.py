"""Compare what was recorded with a fresh run: where they part, what changed; and keep replays off the network."""

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
"""What a request hash covers, but for the parts of the budget and of evidence that it covers."""

COUNTED = ("tenant_id", "agent_id", "step")
"""What a call is counted by, in addition to the request hash."""

SHOWN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line (from 1) of two decision logs that is not the same, and the first value in it that differs.

    `what` says which line it is (kind, subject, moment). A value that is not there is None; a line that is not there
    has the path `$`.
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
    """Return where two decision logs part, or None if they are the same byte for byte."""
    pairs = enumerate(zip_longest(recorded, fresh), start=1)
    differences = (difference_at(number, one, other) for number, (one, other) in pairs)
    return next((each for each in differences if each is not None), None)


def difference_at(line: int, recorded: bytes | None, fresh: bytes | None) -> Difference | None:
    """Return the difference of line `line` (from 1) of two decision logs, None if it is the same; None where a log has ended."""
    return None if recorded == fresh else _difference(line, recorded, fresh)


def request_changes(recorded: LLMEnvelope, fresh: LLMEnvelope) -> list[str]:
    """Return the differences between two requests, each with its place; empty if a replay takes them for the same call."""
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
    """A replay tried to reach the network; `event` is the interpreter's audit event."""

    def __init__(self, event: str) -> None:
        self.event = event
        super().__init__(f"{event} during a replay; a replay answers from its log and reaches nothing else")


@contextmanager
def no_network() -> Generator[None]:
    """Let every attempt of this process to reach the network raise `NetworkBlockedError`, until the block ends."""
    _HOOK.set()
    _HOOK.replays += 1
    try:
        yield
    finally:
        _HOOK.replays -= 1


def _semantics(envelope: LLMEnvelope) -> dict[str, Any]:
    """Return what a request hash covers, by name, each value as it is hashed: in canonical JSON."""
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
    """Return the object on a line; where there is none, the line as it is."""
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
    """Whether two JSON values are spelled the same: 1.0 is not 1.00, and 1 is not true."""
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
"""The interpreter's own audit events (PEP 578) of everything that leaves the process."""


class _NetworkHook:
    """One audit hook for the whole process: it cannot be removed, so it counts the replays under way."""

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
