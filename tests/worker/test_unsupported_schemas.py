"""What a provider refused is remembered for its model and schema, and never without an end."""

from typing import Any

import pytest

from agentic_trading.governance.limiter import Failed
from agentic_trading.llm import FailureKind
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import LLMResult, NextStep
from agentic_trading.worker import call_context as unsupported_schemas
from agentic_trading.worker.attempt_result import FailedAttempt
from agentic_trading.worker.call_context import UnsupportedSchemas
from tests.structured.asking import ANSWER, request


def made(number: int, **changes: Any) -> ModelRequest:
    """Return a request with a schema of its own."""
    return request(expected_output_schema={**ANSWER, "$id": f"answer.v{number}"}, **changes)


def ended_as(kind: FailureKind) -> FailedAttempt:
    """Return an attempt that failed before it was processed."""

    def to_result(step: NextStep) -> LLMResult:
        return LLMResult(envelope_id="e", next_step=step)

    return FailedAttempt(to_result, Failed(kind=kind, sent=False))


def test_only_a_refused_schema_is_remembered() -> None:
    known = UnsupportedSchemas()

    known.learn(made(1), ended_as(FailureKind.SCHEMA_REFUSED))
    known.learn(made(2), ended_as(FailureKind.RATE_LIMIT))

    assert [known.holds(made(number).envelope) for number in (1, 2)] == [True, False]
    assert not known.holds(made(1, model="another").envelope)


def test_remembered_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsupported_schemas, "MOST_REMEMBERED", 2)
    known = UnsupportedSchemas()

    for number in range(3):
        known.learn(made(number), ended_as(FailureKind.SCHEMA_REFUSED))

    assert [known.holds(made(number).envelope) for number in range(3)] == [False, False, True]
