"""What a lane, its limits and an entry may say."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agentic_trading.governance.errors import LimitError, LimiterUnavailableError
from agentic_trading.governance.limiter import (
    CircuitBreakerConfig,
    Deployment,
    PermitRequest,
    RateLimits,
    RetryBudget,
)
from agentic_trading.llm.envelope import LLMProvider

DEPLOYMENT = Deployment(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "concurrent"])
@pytest.mark.parametrize("value", [0, -1, 10**10 + 1])
def test_invalid_rate_limit_is_rejected(field: str, value: int) -> None:
    with pytest.raises(LimitError, match=rf"{field}: is {value}\. Allowed: 1 to"):
        RateLimits(**{field: value})


@pytest.mark.parametrize(
    ("rules", "field", "value"),
    [
        (CircuitBreakerConfig, "window_s", 0),
        (CircuitBreakerConfig, "window_s", nan),
        (CircuitBreakerConfig, "min_calls", 0),
        (CircuitBreakerConfig, "failure_rate", 0),
        (CircuitBreakerConfig, "failure_rate", 1.01),
        (CircuitBreakerConfig, "wait_open_s", inf),
        (CircuitBreakerConfig, "half_open_calls", 0),
        (RetryBudget, "share", -0.1),
        (RetryBudget, "share", 1.1),
        (RetryBudget, "least", -1),
        (RetryBudget, "window_s", 0),
    ],
)
def test_invalid_limiter_setting_is_rejected(rules: Callable[..., Any], field: str, value: float) -> None:
    with pytest.raises(LimitError, match=field):
        rules(**{field: value})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": ""}, "has an empty id"),
        ({"tokens": -1}, "-1 tokens"),
        ({"tokens": 10**9 + 1}, "1000000001 tokens"),
        ({"lease_s": 0}, "lease of 0"),
        ({"lease_s": nan}, "lease of nan"),
        ({"lease_s": inf}, "lease of inf"),
    ],
)
def test_invalid_permit_request_is_rejected(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PermitRequest(**{"deployment": DEPLOYMENT, "id": "acme:1:1", **fields})


def test_limits_are_parsed_from_plain_values() -> None:
    limits = TypeAdapter(RateLimits)

    assert limits.validate_python({"requests_per_minute": 50}) == RateLimits(50)
    assert (
        TypeAdapter(Deployment).validate_python({"provider": "anthropic", "model": DEPLOYMENT.model})
        == DEPLOYMENT
    )
    with pytest.raises(ValidationError, match="Allowed: 1 to"):
        limits.validate_python({"concurrent": 0})


@pytest.mark.parametrize(
    ("budget", "calls", "retries", "left"),
    [
        (RetryBudget(), 0, 0, 10),
        (RetryBudget(), 0, 10, 0),
        (RetryBudget(), 100, 9, 1),
        (RetryBudget(), 109, 10, 0),
        (RetryBudget(), 110, 10, 1),
        (RetryBudget(), 50, 12, 0),
        (RetryBudget(share=0.1, least=0), 30, 3, 0),
        (RetryBudget(share=0.1, least=0), 0, 0, 0),
    ],
)
def test_retry_budget_is_share_or_minimum(budget: RetryBudget, calls: int, retries: int, left: int) -> None:
    assert budget.left(calls, retries) == left


def test_unavailable_error_includes_reason() -> None:
    error = LimiterUnavailableError("connection refused")

    assert error.reason == "connection refused"
    assert "connection refused" in str(error)
