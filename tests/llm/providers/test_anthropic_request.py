"""A request is spelled as the Messages API takes it, the stable part first."""

from typing import Any

import pytest

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.anthropic.messages import count_arguments, create_arguments
from tests.structured.asking import ORDER, request

SONNET, WITH_SAMPLING = "claude-sonnet-5-5", "claude-sonnet-4-5-20250929"
MODELS = Capabilities.load()


def asking(model: str = SONNET, **changes: Any) -> ModelRequest:
    """Return a request of a model as the packaged table has it; `changes` are fields of `LLMEnvelope`."""
    return request(MODELS.of(LLMProvider.ANTHROPIC, model), model=model, **changes)


def spelled(model: str = SONNET, **changes: Any) -> dict[str, Any]:
    return create_arguments(asking(model, **changes), ttl="5m")


def thinking(tokens: int) -> LLMBudget:
    return LLMBudget(max_output_tokens=4096, thinking_budget=tokens)


def test_stable_system_part_is_cache_marked() -> None:
    made = asking(instructions="Judge.")

    arguments = create_arguments(made, ttl="5m")

    mark = {"type": "ephemeral", "ttl": "5m"}
    assert arguments["system"] == [{"type": "text", "text": made.system, "cache_control": mark}]
    assert arguments["messages"] == [{"role": "user", "content": made.user}]


def test_request_without_ttl_is_unmarked() -> None:
    assert "cache_control" not in str(create_arguments(asking(), ttl=""))


def test_marked_part_is_independent_of_context() -> None:
    assert spelled(context={"n": 1})["system"] == spelled(context={"n": 2})["system"]


def test_schema_is_closed_bounds_in_description() -> None:
    form = spelled(expected_output_schema=ORDER)["output_config"]["format"]

    quantity = form["schema"]["properties"]["qty"]
    assert form["type"] == "json_schema"
    assert form["schema"]["additionalProperties"] is False
    assert "maximum" not in quantity
    assert "10" in quantity["description"]


def test_prompted_schema_is_not_sent_natively() -> None:
    assert "output_config" not in spelled(expected_output_schema={})


def test_effort_model_gets_adaptive_thinking() -> None:
    arguments = spelled(budget=thinking(8000))

    assert arguments["thinking"] == {"type": "adaptive", "display": "omitted"}
    assert arguments["output_config"]["effort"] == "medium"


def test_effort_alone_does_not_enable_thinking() -> None:
    arguments = spelled(effort="low")

    assert "thinking" not in arguments
    assert arguments["output_config"]["effort"] == "low"


def test_budget_model_gets_budget_without_temperature() -> None:
    arguments = spelled(WITH_SAMPLING, budget=thinking(2000))

    assert arguments["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert arguments["max_tokens"] == 6096
    assert "extra_body" not in arguments


def test_temperature_goes_with_supporting_api_version() -> None:
    arguments = spelled(WITH_SAMPLING)

    assert arguments["extra_body"] == {"temperature": 0.0}
    assert arguments["extra_headers"] == {"anthropic-version": "2023-06-01"}


def test_non_sampling_model_gets_no_temperature() -> None:
    assert {"extra_body", "extra_headers", "temperature"}.isdisjoint(spelled())


@pytest.mark.parametrize("model", [SONNET, WITH_SAMPLING])
def test_only_standard_tier_is_requested(model: str) -> None:
    assert spelled(model)["service_tier"] == "standard_only"


def test_token_count_covers_billed_input() -> None:
    made = asking(budget=thinking(8000))
    sent = create_arguments(made, ttl="1h")

    counted = count_arguments(made, ttl="1h")

    assert set(counted) == {"model", "system", "messages", "output_config", "thinking"}
    assert counted.items() <= sent.items()
