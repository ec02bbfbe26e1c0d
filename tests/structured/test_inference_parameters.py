"""What an envelope asks for is translated into what its model takes."""

from typing import Any

import pytest

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.models import Capabilities
from agentic_trading.structured.prompts import InferenceParameters, inference_parameters
from tests.build import envelope
from tests.structured.asking import capability

EVERY = ("low", "medium", "high", "xhigh", "max")


def dials(
    model: dict[str, Any], *, out: int = 1000, thinking: int = 0, **changes: Any
) -> InferenceParameters:
    """Return the settings for an envelope of `changes` on a model of `model`."""
    budget = LLMBudget(max_output_tokens=out, thinking_budget=thinking)
    return inference_parameters(envelope(budget=budget, **changes), capability(**model))


def test_token_cap_includes_answer_and_thinking() -> None:
    assert dials({"thinking": ("enabled",)}, thinking=3000) == InferenceParameters(4000, 3000, None, None)


def test_token_cap_is_limited_by_model() -> None:
    set_to = dials({"thinking": ("enabled",), "max_output_tokens": 2000}, thinking=3000)

    assert (set_to.max_tokens, set_to.thinking_budget) == (2000, 1999)


@pytest.mark.parametrize(
    ("budget", "effort"),
    [(1, "low"), (2_000, "low"), (8_000, "medium"), (16_000, "high"), (32_000, "xhigh"), (32_001, "max")],
)
def test_thinking_budget_becomes_effort(budget: int, effort: str) -> None:
    set_to = dials({"thinking": ("adaptive",), "effort": EVERY}, thinking=budget)

    assert (set_to.effort, set_to.thinking_budget, set_to.max_tokens) == (effort, 0, 1000 + budget)


def test_requested_effort_overrides_budget_effort() -> None:
    assert dials({"thinking": ("adaptive",), "effort": EVERY}, thinking=8000, effort="max").effort == "max"


@pytest.mark.parametrize(
    ("known", "asked", "sent"),
    [
        (EVERY, "xhigh", "xhigh"),
        (("low", "high"), "xhigh", "high"),
        (("high",), "low", "high"),
        ((), "low", None),
    ],
)
def test_unknown_effort_becomes_next_lower(known: tuple[str, ...], asked: str, sent: str | None) -> None:
    assert dials({"effort": known}, effort=asked).effort == sent


@pytest.mark.parametrize("kinds", [(), ("disabled",)])
def test_model_without_thinking_gets_no_room(kinds: tuple[str, ...]) -> None:
    assert dials({"thinking": kinds, "effort": EVERY}, thinking=8000) == InferenceParameters(
        1000, 0, None, None
    )


@pytest.mark.parametrize(
    ("sampling", "thinking", "sent"),
    [(True, 0, 0.0), (True, 2000, None), (False, 0, None), (False, 2000, None)],
)
def test_temperature_requires_sampling_without_thinking(
    sampling: bool,  # noqa: FBT001 - a parameter of the table above
    thinking: int,
    sent: float | None,
) -> None:
    assert dials({"sampling": sampling, "thinking": ("enabled",)}, thinking=thinking).temperature == sent


def test_analysis_preset_fits_default_model() -> None:
    asked = EnvelopeBuilder().for_analysis().with_instructions("Judge.").build()

    set_to = inference_parameters(asked, Capabilities.load().of(LLMProvider.ANTHROPIC, asked.model))

    assert set_to == InferenceParameters(
        max_tokens=12_096, thinking_budget=0, effort="medium", temperature=None
    )
