"""From a model's answer through the gateway to code: asked again with what was wrong, and given up after three answers."""

import json
from typing import Any

import pytest

from agentic_trading.client import outcome_of
from agentic_trading.desk.planning import (
    GenerationFailedError,
    GenerationResult,
    MomentumTemplate,
    TemplateCodeGenerator,
    answer_schema,
    code_problems,
)
from agentic_trading.desk.planning.schema import EVERYTHING
from agentic_trading.desk.session.trading import CHECKS
from agentic_trading.llm import LLMInteraction, Stage
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.desk.planning.sets import EXAMPLE, REASON, VALID, answer
from tests.gateway import asking, attempts, gateway

GENERATOR = TemplateCodeGenerator(MomentumTemplate())
INCONSISTENT = answer({**VALID, "momentum_period": 30, "ma_periods": 20})


async def planned(*answers: str, **schema: Any) -> tuple[list[LLMInteraction], ScriptedProvider]:
    """Ask for momentum parameters of a model that gives these answers; returns all attempts, and the model."""
    model = ScriptedProvider(list(answers))
    desk = gateway(model, checks=CHECKS)
    builder = asking("planning").with_output_schema(answer_schema(EVERYTHING, ("momentum",), **schema))
    envelope = builder.build()
    await desk.runner.run(envelope)
    return await attempts(desk, envelope), model


def generated(kept: list[LLMInteraction]) -> GenerationResult:
    """Return what the last of these attempts is made into."""
    return GENERATOR.generate_from(outcome_of(kept), kept[-1].result.raw_output)


async def test_example_answer_generates_code_without_retry() -> None:
    kept, _ = await planned(EXAMPLE)

    result = generated(kept)

    assert len(kept) == 1
    assert result.success
    assert result == GENERATOR.generate(EXAMPLE)
    assert code_problems(str(result.code)) == ()


async def test_wrong_answer_is_retried_with_violations() -> None:
    wrong = answer({**VALID, "momentum_period": 25, "stop_loss": "10%"})

    kept, model = await planned(wrong, INCONSISTENT, EXAMPLE)

    assert [one.result.reading.verdict for one in kept if one.result.reading] == [
        Stage.SCHEMA_VALIDATION,
        Stage.SEMANTIC,
        Stage.DONE,
    ]
    assert generated(kept).params == GENERATOR.generate(EXAMPLE).params
    second, third = (request.user for request in model.requests[1:])
    assert '"path":"$.params.momentum_period"' in second
    assert '"suggestion":20' in second
    assert "for proper trend confirmation" in third
    assert all(one.result.cost_nusd >= 0 for one in kept)


async def test_third_wrong_answer_fails_with_details() -> None:
    first = answer({**VALID, "momentum_period": 25})
    second = answer({**VALID, "n_stocks": 7})

    kept, _ = await planned(first, second, INCONSISTENT, EXAMPLE)

    with pytest.raises(GenerationFailedError, match="should be <= ma_periods") as raised:
        generated(kept)
    assert len(kept) == 3
    assert [(error.field_path, error.error_type) for error in raised.value.errors] == [
        ("params.momentum_period", "inconsistent")
    ]
    assert raised.value.interaction_ids == tuple(one.interaction_id for one in kept)
    assert "Use 20 (closest valid value)" in str(raised.value)


async def test_truncated_answer_ends_before_third_attempt() -> None:
    kept, _ = await planned(EXAMPLE[:200], EXAMPLE[:200], EXAMPLE)

    with pytest.raises(GenerationFailedError) as raised:
        generated(kept)
    assert [error.error_type for error in raised.value.errors] == ["parse_error"]
    assert len(kept) == len(raised.value.interaction_ids) < 3


async def test_separate_reasoning_accompanies_the_parameters() -> None:
    text = f"REASONING:\n{REASON}\n\nJSON:\n{answer(reasoning=None)}"

    kept, _ = await planned(text, reasoning_apart=True)

    result = generated(kept)
    assert (result.success, result.reasoning) == (True, REASON)
    short, _ = await planned(answer(reasoning=None), reasoning_apart=True)
    assert [error.error_type for error in generated(short).errors] == ["missing_field"]


async def test_numeric_text_is_read_as_number() -> None:
    params = {**VALID, "n_stocks": "15", "stop_loss": "0.10"}

    kept, _ = await planned(json.dumps({"reasoning": REASON, "params": params}))

    assert len(kept) == 1
    assert generated(kept).params == GENERATOR.generate(EXAMPLE).params
