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
def test_a_rate_limit_that_lets_nobody_in_is_refused(field: str, value: int) -> None:
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
def test_rules_that_make_no_sense_are_refused(rules: Callable[..., Any], field: str, value: float) -> None:
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
def test_an_entry_that_cannot_be_counted_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PermitRequest(**{"deployment": DEPLOYMENT, "id": "acme:1:1", **fields})


def test_limits_are_read_from_plain_values() -> None:
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
def test_retries_left_are_a_share_of_the_calls_or_the_least(
    budget: RetryBudget, calls: int, retries: int, left: int
) -> None:
    assert budget.left(calls, retries) == left


def test_an_absent_limiter_says_why() -> None:
    error = LimiterUnavailableError("connection refused")

    assert error.reason == "connection refused"
    assert "connection refused" in str(error)
