"""Typed answers: what `decide` returns, which validators it runs and where, and when an answer is true."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self, assert_type

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentic_trading.bus.brokers.redis.redis import redis_settings_of
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES
from agentic_trading.client.answer import Answer
from agentic_trading.client.fallback import Alternative, FallbackGateway
from agentic_trading.clock import SystemClock
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import EnvelopeValidationError, FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import (
    BusConfig,
    LedgerConfig,
    Platform,
    PlatformConfig,
    Ports,
    local_gateway,
    remote_gateway,
)
from tests.redis_bus import make_topics
from tests.redis_server import RealServer

MODEL = "scripted/scripted-1"
BUDGET_USD = Decimal("0.5")
PLANNING = EnvelopeBuilder().for_planning().with_instructions("Plan.").build().budget
UNSURE = '{"direction":"up","confidence":0.50}'
SURE = '{"direction":"up","confidence":0.70}'


class Trend(BaseModel):
    """An answer with a rule that JSON Schema cannot express."""

    model_config = ConfigDict(json_schema_extra={"$id": "acme.trend.v1"})

    direction: Literal["up", "down", "flat"]
    confidence: Decimal = Field(ge=0, le=1)

    @field_validator("confidence")
    @classmethod
    def _is_sure(cls, value: Decimal) -> Decimal:
        if value < Decimal("0.6"):
            raise ValueError("a confidence below 0.6 is no trend")
        return value


class Range(BaseModel):
    """An answer whose fields depend on each other."""

    low: int
    high: int

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


async def decided(
    provider: ScriptedProvider, checks: Mapping[str, Any] | None = None, **given: Any
) -> Answer[Trend]:
    async with local_gateway(provider, budget_usd=BUDGET_USD, checks=checks or {}) as gateway:
        return await gateway.decide("Judge the trend.", **{"output": Trend, "model": MODEL, **given})


async def test_decide_returns_instance_with_cost() -> None:
    async with local_gateway(ScriptedProvider([SURE]), budget_usd=BUDGET_USD) as gateway:
        answer = assert_type(
            await gateway.decide("Judge the trend.", output=Trend, model=MODEL), Answer[Trend]
        )

    assert answer
    assert answer.output == Trend(direction="up", confidence=Decimal("0.7"))
    assert answer.failure is None
    assert answer.outcome.usage.cost_nusd > 0
    assert answer.outcome.json_text == SURE


async def test_decide_sends_given_arguments() -> None:
    provider, at = ScriptedProvider([SURE]), datetime(2026, 1, 5, tzinfo=UTC)

    await decided(
        provider,
        evidence={"indicators": {"rsi_14": 62.3}, "news": "calm"},
        workflow=EnvelopeWorkflow.PLANNING,
        as_of=at,
        budget=LLMBudget(max_output_tokens=300),
    )

    (request,) = provider.requests
    sent = request.envelope
    assert sent.instructions == "Judge the trend."
    assert (sent.provider, sent.model, sent.workflow, sent.as_of) == (
        "scripted",
        "scripted-1",
        "planning",
        at,
    )
    assert [(item.source, item.evidence_id) for item in sent.retrieved_evidence] == [
        ("indicators", "E1"),
        ("news", "E2"),
    ]
    assert sent.expected_output_schema["$id"] == "acme.trend.v1"
    assert request.max_tokens == 300
    assert sent.budget == PLANNING.model_copy(update={"max_output_tokens": 300})


@pytest.mark.parametrize(
    ("output", "bad", "good", "rule"),
    [
        (Trend, UNSURE, SURE, "a confidence below 0.6 is no trend"),
        (Range, '{"low":2,"high":1}', '{"low":1,"high":2}', "low is above high"),
    ],
)
async def test_local_validator_rejection_asks_again(
    output: type[BaseModel], bad: str, good: str, rule: str
) -> None:
    provider = ScriptedProvider([bad, good])

    answer = await decided(provider, output=output)

    assert answer
    assert answer.output == output.model_validate_json(good)
    assert [attempt.trace and attempt.trace.verdict for attempt in answer.outcome.attempts] == [
        Stage.SEMANTIC,
        Stage.DONE,
    ]
    assert rule in provider.requests[1].user


async def test_rejected_answer_is_false_with_reason() -> None:
    answer = await decided(ScriptedProvider(lambda _request: UNSURE))

    assert not answer
    assert answer.output is None
    assert answer.failure is not None
    assert answer.failure.category is FailureKind.PARSING_ERROR
    assert answer.outcome.attempts


async def test_schema_checks_run_before_validators() -> None:
    def no_up(_envelope: LLMEnvelope, text: str) -> list[Violation]:
        is_up = '"up"' in text
        return [Violation(path="$.direction", keyword="house", message="never up")] if is_up else []

    provider = ScriptedProvider([UNSURE, SURE.replace("up", "down")])
    answer = await decided(provider, {"acme.trend.v1": no_up})

    assert answer.output == Trend(direction="down", confidence=Decimal("0.7"))
    assert "never up" in provider.requests[1].user
    assert "below 0.6" not in provider.requests[1].user


async def test_validators_run_after_passing_schema_check() -> None:
    provider = ScriptedProvider([UNSURE, SURE])
    answer = await decided(provider, {"acme.trend.v1": lambda _envelope, _text: ()})

    assert answer
    assert "below 0.6" in provider.requests[1].user


async def test_same_name_classes_keep_own_validators() -> None:
    def trend(least: str) -> type[BaseModel]:
        class Same(BaseModel):
            confidence: Decimal

            @field_validator("confidence")
            @classmethod
            def _least(cls, value: Decimal) -> Decimal:
                if value < Decimal(least):
                    raise ValueError(f"below {least}")
                return value

        return Same

    async with local_gateway(
        ScriptedProvider(lambda _request: '{"confidence":0.5}'), budget_usd=BUDGET_USD
    ) as gateway:
        answers = [
            await gateway.decide("Judge.", output=trend(least), model=MODEL)
            for least in ("0.4", "0.6", "0.4")
        ]

    assert [bool(answer) for answer in answers] == [True, False, True]


async def test_replay_decides_the_same() -> None:
    store = MemoryInteractionStore()
    async with local_gateway(ScriptedProvider([UNSURE, SURE]), budget_usd=BUDGET_USD, store=store) as gateway:
        live = await gateway.decide("Judge.", output=Trend, model=MODEL)
    recorded = RecordedAnswers([
        entry.record async for entry in store.scan() if isinstance(entry.record, LLMInteraction)
    ])
    async with local_gateway(recorded, budget_usd=BUDGET_USD) as gateway:
        replayed = await gateway.decide("Judge.", output=Trend, model=MODEL)

    assert replayed.output == live.output
    assert len(replayed.outcome.attempts) == len(live.outcome.attempts) == 2
    assert replayed.outcome.usage.cost_nusd == 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"model": "scripted-1"}, "model: 'scripted-1' has no provider. Use PROVIDER/MODEL"),
        ({"model": "/scripted-1"}, "Use PROVIDER/MODEL"),
        ({"output": dict}, "output: <class 'dict'> is not a pydantic model class"),
        ({"output": {"type": "object"}}, "is not a pydantic model class"),
        ({"evidence": {"x": float("nan")}}, "nan"),
    ],
)
async def test_unusable_argument_is_refused_before_call(given: dict[str, Any], problem: str) -> None:
    provider = ScriptedProvider([])

    with pytest.raises(EnvelopeValidationError) as refused:
        await decided(provider, **given)

    assert problem in str(refused.value).replace("NaN", "nan")
    assert provider.requests == []


async def test_only_configured_tenant_may_decide() -> None:
    async with local_gateway(ScriptedProvider([SURE]), budget_usd=BUDGET_USD, tenant="acme") as gateway:
        other = await gateway.decide("Judge.", output=Trend, model=MODEL)
        own = await gateway.decide("Judge.", output=Trend, model=MODEL, tenant="acme")

    assert [bool(other), bool(own)] == [False, True]
    assert other.failure is not None
    assert other.failure.category is FailureKind.NOT_ALLOWED


async def test_rejected_answer_falls_back_with_validators() -> None:
    def by_model(request: ModelRequest) -> str:
        return SURE if request.envelope.model == "scripted-prompted-1" else UNSURE

    async with local_gateway(ScriptedProvider(by_model), budget_usd=BUDGET_USD) as gateway:
        chain = FallbackGateway(gateway, [Alternative(LLMProvider.SCRIPTED, "scripted-prompted-1")])
        answer = await chain.decide("Judge.", output=Trend, model=MODEL, workflow=EnvelopeWorkflow.PLANNING)

    assert answer
    assert answer.outcome.attempts[-1].model == "scripted-prompted-1"
    assert answer.outcome.attempts[0].trace is not None
    assert answer.outcome.attempts[0].trace.verdict is Stage.SEMANTIC


def check_trend(_envelope: LLMEnvelope, text: str) -> tuple[Violation, ...]:
    """The check that a worker has: the validators of the class."""
    Trend.model_validate_json(text)
    return ()


@pytest.mark.timeout(30)  # a server of its own
@pytest.mark.parametrize("is_checked", [True, False])
async def test_remote_validators_run_in_worker_or_client(
    tmp_path: Path, own_redis: RealServer, *, is_checked: bool
) -> None:
    namespace = redis_settings_of(own_redis.url).namespace
    await make_topics(own_redis.url, namespace, [*ENVELOPES.values(), EVENTS, REPLIES, DEAD_LETTERS])
    bus, provider = BusConfig(url=own_redis.url), ScriptedProvider([UNSURE, SURE])
    worker = Platform(
        PlatformConfig(folder=tmp_path, name="w", bus=bus, ledger=LedgerConfig(url=own_redis.url)),
        Ports(providers={"scripted": provider}),
        checks={"acme.trend.v1": check_trend} if is_checked else {},
    )

    async with worker, remote_gateway(PlatformConfig(bus=bus)) as gateway:
        answer = await gateway.decide("Judge the trend.", output=Trend, model=MODEL)

    assert bool(answer) is is_checked
    assert len(provider.requests) == len(answer.outcome.attempts) == (2 if is_checked else 1)
    if not is_checked:
        assert answer.failure is not None
        assert answer.failure.category is FailureKind.PARSING_ERROR
        assert "$.confidence" in answer.failure.description
        assert answer.outcome.usage.cost_nusd > 0
        assert not answer.outcome.ok
        assert answer.outcome.stage is Stage.SEMANTIC


async def test_answer_is_true_only_if_actionable() -> None:
    answer = await decided(ScriptedProvider([SURE]))
    assert answer.output is not None
    reason = FailureReason(category=FailureKind.EXPIRED, description="too late")

    assert answer
    assert not replace(answer, output=None)
    assert not replace(answer, failure=reason)
    assert not replace(answer, outcome=replace(answer.outcome, ok=False))


async def test_outcome_is_true_if_ok() -> None:
    answer = await decided(ScriptedProvider([SURE]))

    assert answer.outcome
    assert not replace(answer.outcome, ok=False)


def test_no_decision_is_false() -> None:
    reason = FailureReason(category=FailureKind.TIMEOUT, description="no worker")

    assert not NoDecision(reason=reason, as_of=SystemClock().now())


async def test_answer_repr_is_a_short_line() -> None:
    good = await decided(ScriptedProvider([SURE]))
    bad = await decided(ScriptedProvider(lambda _request: "word " * 500))

    cost = good.outcome.usage.cost_nusd
    assert repr(good) == (
        f"Answer(Trend(direction='up', confidence=Decimal('0.7')), attempts=1, cost_nusd={cost})"
    )
    assert repr(bad).startswith("Answer(parsing_error: ")
    assert "\n" not in repr(bad)
    assert len(repr(bad)) < 300
