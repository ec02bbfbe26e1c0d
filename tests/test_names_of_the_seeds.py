"""Names and forms of the first designs work as they are written there."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import override

from agentic_trading.client.outcome import outcome_of, outcome_of_chain
from agentic_trading.desk.analysis.analyst import CMTAnalysisEngine, CmtAnalyst
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA, CMT_RESPONSE_SCHEMA
from agentic_trading.errors import TradingError as Root
from agentic_trading.llm import (
    EnvelopeBuilder,
    EnvelopeValidationError,
    FailureKind,
    FailureReason,
    IInteractionStore,
    LLMEnvelope,
    LLMError,
    LLMInteraction,
    LLMProvider,
    MemoryInteractionStore,
    NoDecision,
    TradingError,
)
from agentic_trading.llm.result import Stage
from agentic_trading.structured import ParserException
from agentic_trading.structured.outcome import to_failure
from tests.build import NOW
from tests.gateway import Script, asking, attempts, gateway, not_connected


class Trend(BaseModel):
    """A model as a schema."""

    direction: Literal["up", "down"]
    confidence: Decimal = Field(ge=0, le=1)


class Odd(BaseModel):
    """A model without a JSON Schema."""

    script: Callable[[int], int]


class Broken(BaseModel):
    """A model whose schema raises an error of its own."""

    @classmethod
    @override
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        raise KeyError("title")


def _with_schema(schema: object) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_analysis().with_instructions("Judge.")
    return builder.with_output_schema(schema).with_provider(LLMProvider.SCRIPTED, "scripted-1").build()  # type: ignore[arg-type]


def test_names_of_the_seeds_are_importable() -> None:
    store: IInteractionStore = MemoryInteractionStore()

    assert store is not None
    assert CMTAnalysisEngine is CmtAnalyst
    assert CMT_RESPONSE_SCHEMA is CMT_ASSESSMENT_SCHEMA
    assert TradingError is Root
    assert issubclass(LLMError, TradingError)


def test_parser_exception_accepts_keywords() -> None:
    e = ParserException(
        parser_type="InstructorParser",
        model="m",
        stage="json_parse",
        content="x",
        error=ValueError("no JSON"),
    )

    assert (e.parser, e.parser_type, e.stage) == ("InstructorParser", "InstructorParser", Stage.JSON_PARSE)
    assert str(e) == "InstructorParser failed at json_parse: no JSON"
    assert to_failure(e).category == FailureKind.PARSING_ERROR
    with pytest.raises(ValueError, match="is not a valid Stage"):
        ParserException("p", "m", "nowhere", "", ValueError())


def test_failure_time_is_not_serialized() -> None:
    reason = FailureReason(category=FailureKind.TIMEOUT, description="late", occurred_at=NOW)
    decision = NoDecision(reason=reason)

    assert reason.occurred_at == NOW
    assert json.loads(reason.model_dump_json()) == {
        "category": "timeout", "description": "late", "technical_details": "", "recoverable": False,
    }  # fmt: skip
    assert "occurred_at" not in decision.model_dump_json()


async def test_outcome_failure_has_attempt_time() -> None:
    made = await _made([not_connected(), "no json", '{"action": "hold", "size": 1}'])

    outcome = outcome_of(made)

    ends = [one.result.timestamp for one in made]
    assert [one.failure and one.failure.occurred_at for one in outcome.attempts] == ends
    assert outcome.error is not None
    assert outcome.error.occurred_at == ends[-1]
    assert all(b"occurred_at" not in one.wire for one in made)


async def test_recorded_failure_omits_the_worker_time() -> None:
    failed = (await _made([not_connected()] * 9))[-1]
    assert failed.result.failure is not None

    timed = failed.result.failure.model_copy(update={"occurred_at": NOW})
    result = failed.result.model_copy(update={"failure": timed})

    assert result.model_dump_json() == failed.result.model_dump_json()


def test_model_class_is_accepted_as_schema() -> None:
    by_model, by_schema = _with_schema(Trend), _with_schema(Trend.model_json_schema())

    assert by_model.request_hash == by_schema.request_hash
    assert json.loads(by_model.output_schema_json)["required"] == ["direction", "confidence"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (Odd, "Odd has no JSON Schema: Cannot generate a JsonSchema"),
        (Broken, "Broken has no JSON Schema: 'title'. Pass a JSON Schema"),
        (int, "is not accepted. Pass a JSON Schema, or the class of a pydantic model"),
        (Trend(direction="up", confidence=Decimal(1)), "is not accepted"),
        (None, "None is not accepted"),
        ("{}", "'{}' is not accepted"),
    ],
    ids=["no schema", "own error", "class", "instance", "None", "text"],
)
def test_value_without_a_schema_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(EnvelopeValidationError, match=r"^expected_output_schema: ") as e:
        _with_schema(schema)

    assert reason in str(e.value)


async def test_last_candidate_is_in_the_outcome() -> None:
    bad = ['{"action": "hold", "size": 1}', '{"action": "hold", "size": 2}']

    failed = outcome_of(await _made(bad))
    good = outcome_of(await _made([bad[0], ' {"action": "buy", "size": 1.50}', not_connected()]))
    unanswered = outcome_of(await _made([not_connected()] * 9))

    assert (failed.ok, failed.json, failed.last_candidate) == (False, None, bad[-1])
    assert (good.ok, good.last_candidate) == (True, ' {"action": "buy", "size": 1.50}')
    assert outcome_of_chain([failed, unanswered]).last_candidate == bad[-1]
    assert (unanswered.ok, unanswered.last_candidate) == (False, "")


async def _made(script: Script) -> list[LLMInteraction]:
    made = gateway(script)
    envelope = asking().build()
    await made.runner.run(envelope)
    return await attempts(made, envelope)
