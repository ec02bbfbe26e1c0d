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


def test_the_stable_part_comes_first_and_ends_in_the_mark_for_the_cache() -> None:
    made = asking(instructions="Judge.")

    arguments = create_arguments(made, ttl="5m")

    mark = {"type": "ephemeral", "ttl": "5m"}
    assert arguments["system"] == [{"type": "text", "text": made.system, "cache_control": mark}]
    assert arguments["messages"] == [{"role": "user", "content": made.user}]


def test_without_a_time_to_live_nothing_is_marked() -> None:
    assert "cache_control" not in str(create_arguments(asking(), ttl=""))


def test_the_marked_part_is_the_same_for_other_data() -> None:
    assert spelled(context={"n": 1})["system"] == spelled(context={"n": 2})["system"]


def test_a_schema_is_sent_closed_and_its_bounds_in_words() -> None:
    form = spelled(expected_output_schema=ORDER)["output_config"]["format"]

    quantity = form["schema"]["properties"]["qty"]
    assert form["type"] == "json_schema"
    assert form["schema"]["additionalProperties"] is False
    assert "maximum" not in quantity
    assert "10" in quantity["description"]


def test_a_schema_put_into_the_prompt_is_not_sent_as_one() -> None:
    assert "output_config" not in spelled(expected_output_schema={})


def test_a_model_that_knows_efforts_gets_thinking_by_one() -> None:
    arguments = spelled(budget=thinking(8000))

    assert arguments["thinking"] == {"type": "adaptive", "display": "omitted"}
    assert arguments["output_config"]["effort"] == "medium"


def test_an_effort_alone_does_not_ask_for_thinking() -> None:
    arguments = spelled(effort="low")

    assert "thinking" not in arguments
    assert arguments["output_config"]["effort"] == "low"


def test_a_model_that_takes_a_budget_gets_it_and_no_temperature() -> None:
    arguments = spelled(WITH_SAMPLING, budget=thinking(2000))

    assert arguments["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert arguments["max_tokens"] == 6096
    assert "extra_body" not in arguments


def test_a_temperature_goes_with_the_version_that_takes_one() -> None:
    arguments = spelled(WITH_SAMPLING)

    assert arguments["extra_body"] == {"temperature": 0.0}
    assert arguments["extra_headers"] == {"anthropic-version": "2023-06-01"}


def test_a_model_without_sampling_gets_no_temperature() -> None:
    assert {"extra_body", "extra_headers", "temperature"}.isdisjoint(spelled())


@pytest.mark.parametrize("model", [SONNET, WITH_SAMPLING])
def test_only_the_tier_that_was_reserved_for_is_asked_for(model: str) -> None:
    assert spelled(model)["service_tier"] == "standard_only"


def test_what_is_counted_is_what_is_billed_as_input() -> None:
    made = asking(budget=thinking(8000))
    sent = create_arguments(made, ttl="1h")

    counted = count_arguments(made, ttl="1h")

    assert set(counted) == {"model", "system", "messages", "output_config", "thinking"}
    assert counted.items() <= sent.items()
