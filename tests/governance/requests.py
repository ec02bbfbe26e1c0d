"""Builders for gate tests: a request of which a test says only what matters."""

from typing import Any

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.provider import ModelRequest
from tests.build import envelope

REQUEST_FIELDS = frozenset({
    "attempt",
    "answer",
    "system",
    "user",
    "transport",
    "max_tokens",
    "response_schema",
})


def request(**changes: Any) -> ModelRequest:
    """Return a request to `scripted-1`; `changes` are fields of `ModelRequest` and of its envelope."""
    of_request = {name: value for name, value in changes.items() if name in REQUEST_FIELDS}
    of_envelope = {name: value for name, value in changes.items() if name not in REQUEST_FIELDS}
    fields: dict[str, Any] = {
        "attempt": 1,
        "answer": 1,
        "system": "Judge the market.",
        "user": "{}",
        "transport": "prompted",
        "max_tokens": 1000,
        **of_request,
    }
    scripted = {"provider": LLMProvider.SCRIPTED, "model": "scripted-1", **of_envelope}
    return ModelRequest(envelope=envelope(**scripted), **fields)
