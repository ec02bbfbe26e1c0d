"""What a request must keep before money is looked at."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentic_trading.governance.prices import PriceBook, bound
from agentic_trading.governance.rules import Quote, quote
from agentic_trading.llm.envelope import DeterminismLevel, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.models import Capabilities, Capability
from agentic_trading.llm.provider import ModelRequest
from tests.build import NOW
from tests.governance.requests import request

CAPABILITIES = Capabilities.load()
PRICES = PriceBook.load()
TODAY = datetime(2026, 11, 21, tzinfo=UTC)


def quoted(
    asked: ModelRequest, capabilities: Capabilities = CAPABILITIES, **changes: Any
) -> Quote | FailureReason:
    return quote(asked, capabilities, PRICES, **{"mode": "live", "now": TODAY, **changes})


def refused(asked: ModelRequest, **changes: Any) -> FailureReason:
    answer = quoted(asked, **changes)
    assert isinstance(answer, FailureReason)
    return answer


def test_valid_request_is_quoted_at_maximum() -> None:
    asked = request()
    model = CAPABILITIES.of(LLMProvider.SCRIPTED, "scripted-1")

    assert quoted(asked) == Quote(bound(asked, model, PRICES, at=TODAY), model, TODAY)


def test_envelope_rules_are_checked_again() -> None:
    forged = request(temperature=0.7, safety_constraints={"require_deterministic": True})

    reason = refused(forged)

    assert reason.category is FailureKind.INVALID_REQUEST
    assert "require_deterministic allows 0.0 only" in reason.description


def test_future_context_is_refused() -> None:
    reason = refused(request(as_of=NOW, context_as_of=NOW + timedelta(seconds=1)))

    assert reason.category is FailureKind.LOOK_AHEAD


def test_unknown_model_is_refused() -> None:
    reason = refused(request(model="gpt-next"))

    assert reason.category is FailureKind.INVALID_REQUEST
    assert "scripted/gpt-next" in reason.description
    assert "capability table" in reason.description


def test_model_without_price_is_refused() -> None:
    unpriced = CAPABILITIES.of(LLMProvider.SCRIPTED, "scripted-1").model_copy(update={"model": "mine-1"})

    answer = quoted(request(model="mine-1"), Capabilities([unpriced]))

    assert isinstance(answer, FailureReason)
    assert answer.category is FailureKind.INVALID_REQUEST
    assert "price book" in answer.description


def test_determinism_violations_are_refused() -> None:
    assert refused(request(), mode="backtest").category is FailureKind.NOT_ALLOWED
    assert refused(request(determinism=DeterminismLevel.REPLAY_ONLY)).category is FailureKind.REPLAY_MISS


def test_retirement_day_is_counted_in_utc() -> None:
    asked = request(provider="anthropic", model="claude-sonnet-4-5-20250929")

    assert isinstance(quoted(asked, now=datetime.fromisoformat("2026-11-30T23:59:59+00:00")), Quote)
    assert isinstance(quoted(asked, now=datetime.fromisoformat("2026-12-01T01:00:00+05:00")), Quote)
    assert "retired" in refused(asked, now=datetime.fromisoformat("2026-11-30T20:00:00-05:00")).description


def test_excessive_output_cap_is_refused() -> None:
    reason = refused(request(max_tokens=128_001))

    assert reason.category is FailureKind.INVALID_REQUEST
    assert "128001 output tokens asked; scripted-1 allows 128000" in reason.description
    assert isinstance(quoted(request(max_tokens=128_000)), Quote)


def test_counted_input_must_fit_the_context() -> None:
    reason = refused(request(), input_tokens=999_001)

    assert reason.category is FailureKind.INVALID_REQUEST
    assert "allows 1000000 together" in reason.description
    assert isinstance(quoted(request(), input_tokens=999_000), Quote)


def test_input_budget_uses_bytes_without_count() -> None:
    asked = request(system="s" * 100, user="", budget={"max_input_tokens": 100})

    reason = refused(asked)

    assert reason.category is FailureKind.BUDGET_EXHAUSTED
    assert "116 input tokens at most, by its bytes; its budget allows 100" in reason.description
    assert isinstance(quoted(request(system="s" * 84, user="", budget={"max_input_tokens": 100})), Quote)


def test_input_budget_uses_provider_count() -> None:
    asked = request(system="s" * 400, user="", budget={"max_input_tokens": 100})

    assert isinstance(quoted(asked, input_tokens=100), Quote)
    assert "101 input tokens by the provider's count" in refused(asked, input_tokens=101).description


@pytest.mark.parametrize("model", [row for row in CAPABILITIES if row.provider is not LLMProvider.ANTHROPIC])
def test_every_offline_model_can_be_quoted(model: Capability) -> None:
    asked = request(provider=model.provider, model=model.model, as_of=NOW)

    assert isinstance(quoted(asked, mode="backtest", now=NOW), Quote)
