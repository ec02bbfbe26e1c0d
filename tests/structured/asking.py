"""Builders for tests: what a model takes, and the request that is made of an envelope."""

import re
from typing import Any

from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.structured.engine import select
from tests.build import NOW, envelope

ANSWER: dict[str, Any] = {
    "$id": "answer.v1",
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
ORDER: dict[str, Any] = {
    "$id": "order.v1",
    "type": "object",
    "properties": {
        "side": {"enum": ["BUY", "SELL"]},
        "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        "legs": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["side", "qty"],
    "additionalProperties": False,
}

STRICT = OutputPolicy(
    mode="native",
    decode="strict",
    candidates="whole",
    coerce=False,
    drop_extra=False,
    answers_read=1,
    on_exhausted="fail",
)
SEALED = OutputPolicy(
    mode="native", decode="strict", candidates="whole", answers_read=1, require_sentinel=True
)
REASKED = OutputPolicy(
    mode="reask", decode="lossless", candidates="exactly_one", answers_read=3, on_truncated="raise_cap_once"
)


def capability(**changes: Any) -> Capability:
    """Return a model that takes a schema and nothing else; `changes` are fields of `Capability`."""
    fields: dict[str, Any] = {
        "provider": LLMProvider.SCRIPTED,
        "model": "scripted-1",
        "sampling": False,
        "native_schema": True,
        "context_tokens": 200_000,
        "max_output_tokens": 64_000,
        "overhead_tokens": 0,
        "source": "tests",
        "checked_on": NOW.date(),
    }
    return Capability(**{**fields, **changes})


def asked(**changes: Any) -> LLMEnvelope:
    """Return an envelope that wants `ANSWER`; `changes` are fields of `LLMEnvelope`."""
    return envelope(**{"expected_output_schema": ANSWER, "output_policy": STRICT, **changes})


def request(takes: Capability | None = None, **changes: Any) -> ModelRequest:
    """Return the first request of an envelope; `changes` are fields of `LLMEnvelope`."""
    model = takes or capability()
    wanted = asked(**changes)
    return select(model, wanted).request(wanted, model, attempt=1, answer=1)


def blocks(text: str) -> list[str]:
    """Return what stands in the fences of a message."""
    return re.findall(r"^```json\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
