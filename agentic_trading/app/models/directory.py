"""Hold a row of the table against what the provider's own directory lists."""

from collections.abc import Iterator, Mapping
from typing import Any

from agentic_trading.llm.models import Capability


def differences(capability: Capability, facts: Mapping[str, Any]) -> list[str]:
    """Return where the directory's entry differs from the row; what it does not list is no difference.

    `facts` is the entry of `GET /v1/models/{id}` of the Messages API as JSON.
    """
    return [
        f"{field} {_told(told)} in the row, {_told(listed)} in the directory"
        for field, told, listed in _pairs(capability, facts)
        if listed is not None and listed != told
    ]


def _pairs(row: Capability, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    offered = facts.get("capabilities") or {}
    yield "context_tokens", row.context_tokens, facts.get("max_input_tokens")
    yield "max_output_tokens", row.max_output_tokens, facts.get("max_tokens")
    yield "native_schema", row.native_schema, _supported(offered.get("structured_outputs"))
    yield "effort", set(row.effort), _levels(offered.get("effort"))
    yield "thinking", set(row.thinking), _levels((offered.get("thinking") or {}).get("types"))
    retires = facts.get("retires_at")
    yield "retires_on", row.retires_on and row.retires_on.isoformat(), retires and str(retires)[:10]


def _supported(entry: Any) -> bool | None:
    return entry.get("supported") if isinstance(entry, Mapping) else None


def _levels(entry: Any) -> set[str] | None:
    if not isinstance(entry, Mapping):
        return None
    return {name for name, level in entry.items() if isinstance(level, Mapping) and level.get("supported")}


def _told(value: Any) -> str:
    if isinstance(value, set):
        return ", ".join(sorted(value)) or "none"
    return "unknown" if value is None else str(value)
