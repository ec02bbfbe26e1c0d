"""Builders for tests: a valid object of each kind, of which a test says only what matters to it."""

from datetime import UTC, datetime
from typing import Any

from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import LLMResult, Usage

NOW = datetime(2026, 1, 2, tzinfo=UTC)
"""The moment at which everything built here happens, and where the fixture `clock` stands."""


def envelope(**changes: Any) -> LLMEnvelope:
    """Return an envelope with ids of its own; `changes` are fields of `LLMEnvelope`."""
    fields = {
        "instructions": "Judge the market.",
        "context": {"symbol": "BTCUSDT", "close": "42000.10"},
        "created_at": NOW,
        "agent_id": "analyst-1",
        "agent_type": "analyst",
        "model": "claude-sonnet-5-5",
    }
    return LLMEnvelope(**{**fields, **changes})


def response(text: str = '{"action":"buy"}', **changes: Any) -> ModelResponse:
    """Return what a provider answers; `changes` are fields of `ModelResponse`."""
    fields: dict[str, Any] = {
        "stop_reason": "end_turn",
        "usage": Usage(input_tokens=100, output_tokens=20),
        "model": "claude-sonnet-5-5",
    }
    return ModelResponse(text, **{**fields, **changes})


def result(**changes: Any) -> LLMResult:
    """Return an accepted answer; `changes` are fields of `LLMResult`."""
    fields = {
        "envelope_id": random_id(),
        "timestamp": NOW,
        "raw_output": '{"action":"buy"}',
        "parsed_output": {"action": "buy"},
        "validation_passed": True,
        "latency_ms": 12.5,
        "input_tokens": 100,
        "output_tokens": 20,
        "cost_nusd": 600_000,
        "model": "claude-sonnet-5-5",
    }
    return LLMResult(**{**fields, **changes})


def interaction(**changes: Any) -> LLMInteraction:
    """Return an attempt on record.

    `changes` are fields of `LLMInteraction`, `LLMEnvelope` and `LLMResult`; one that both have (`model`,
    `provider`, `envelope_id`) is set in both: `interaction(trace_id="t", attempt_number=2, raw_output="{}")`.
    """
    asked = changes.pop("envelope", None) or envelope(**_those_of(LLMEnvelope, changes))
    answered = changes.pop("result", None) or result(**{
        "model": asked.model,
        "provider": asked.provider,
        **_those_of(LLMResult, changes),
        "envelope_id": asked.envelope_id,
    })
    rest = {name: value for name, value in changes.items() if name not in _PARTS}
    return LLMInteraction(**{"envelope": asked, "result": answered, "stored_at": NOW, **rest})


def event(kind: str = "bar.closed", **changes: Any) -> Event:
    """Return an event with ids of its own; `changes` are fields of `Event`."""
    fields = {
        "kind": kind,
        "id": random_id(),
        "trace_id": random_id(),
        "tenant_id": "default",
        "time": NOW,
        "body": {"symbol": "BTCUSDT"},
    }
    return Event(**{**fields, **changes})


_PARTS = frozenset(LLMEnvelope.model_fields) | frozenset(LLMResult.model_fields)


def _those_of(model: type[LLMEnvelope | LLMResult], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name in model.model_fields}
