"""Recorded against fresh: what changed, and where first."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from typing_extensions import override

from agentic_trading.canonical import exact_value
from agentic_trading.llm.envelope import LLMEnvelope

SEMANTIC_FIELDS = (
    "instructions", "prompt_version", "context", "context_as_of", "tools_allowed", "expected_output_schema",
    "response_format", "provider", "model", "temperature", "effort", "output_policy", "as_of", "budget",
)  # fmt: skip
"""What a request hash covers, but for evidence, which is compared item by item."""

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
        """Say it in one sentence."""
        recorded, fresh = _shown(self.recorded), _shown(self.fresh)
        return f"line {self.line} ({self.what}): {self.path} was {recorded}, is {fresh}"


def first_difference(recorded: Iterable[bytes], fresh: Iterable[bytes]) -> Difference | None:
    """Return where two decision logs part, or None if they are the same byte for byte."""
    for number, (one, other) in enumerate(zip_longest(recorded, fresh), start=1):
        if one != other:
            return _difference(number, one, other)
    return None


def request_changes(recorded: LLMEnvelope, fresh: LLMEnvelope) -> list[str]:
    """Return what makes two requests different, each with its place; empty if their hashes are equal."""
    if recorded.request_hash == fresh.request_hash:
        return []
    changes = []
    for name in SEMANTIC_FIELDS:
        one, other = _plain(getattr(recorded, name)), _plain(getattr(fresh, name))
        if one != other:
            changes.append(_change(name, one, other))
    before = [(item.source, item.content) for item in recorded.retrieved_evidence]
    after = [(item.source, item.content) for item in fresh.retrieved_evidence]
    for place, (was, now) in enumerate(zip_longest(before, after), start=1):
        if was != now:
            changes.append(_change(f"evidence E{place}", was, now))
    return changes


def _difference(number: int, one: bytes | None, other: bytes | None) -> Difference:
    was = None if one is None else exact_value(one)
    now = None if other is None else exact_value(other)
    line = was or now or {}
    what = f"{line.get('kind')} of {line.get('subject')} at {line.get('as_of')}"
    path, recorded, fresh = _first_path(was, now, "$")
    return Difference(number, what, path, recorded, fresh)


def _first_path(was: Any, now: Any, path: str) -> tuple[str, Any, Any]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                return _first_path(was.get(key), now.get(key), f"{path}.{key}")
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            if one != other:
                return _first_path(one, other, f"{path}[{index}]")
    return path, was, now


def _change(name: str, was: Any, now: Any) -> str:
    if isinstance(was, str) and isinstance(now, str):
        at = next(
            (i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now))
        )
        start = max(0, at - SHOWN // 3)
        return f"{name}, at character {at}: was …{was[start : start + SHOWN]!r}, is …{now[start : start + SHOWN]!r}"
    path, one, other = _first_path(was, now, name)
    return f"{path}: was {_shown(one)}, is {_shown(other)}"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 2 * SHOWN else text[: 2 * SHOWN] + "…"
