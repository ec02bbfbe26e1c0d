"""Requests of format `verbatim` through a gateway: passed on, paid, recorded, replayed, and refused where nobody speaks the API."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.client.gateway import verdict_of
from agentic_trading.llm import (
    EnvelopeBuilder,
    FailureKind,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    LLMResult,
    MemoryInteractionStore,
    ResponseFormat,
)
from agentic_trading.llm.errors import LLMResponseValidationError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers, RulesProvider, ScriptedProvider
from agentic_trading.llm.result import Stage
from agentic_trading.platform import Platform, local_gateway
from tests.build import response
from tests.gateway import gateway
from tests.worker.running import running

BODY = '{ "id":"x", "choices":[] , "n":1.50}'


def asking(body: str = '{"messages":[],"temperature":0.70}', *, cap: int = 100, **more: Any) -> LLMEnvelope:
    builder = EnvelopeBuilder().with_instructions("Answer the request in the context as it stands.")
    builder.with_context({"api": "chat_completions", "body": body} | more)
    builder.with_response_format(ResponseFormat.VERBATIM).with_agent("client-1", "client")
    return (
        builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").with_budget(max_output_tokens=cap).build()
    )


async def asked(client: Platform, envelope: LLMEnvelope) -> LLMResult:
    answer = await client.ask(envelope)
    assert isinstance(answer, LLMInteraction)
    return answer.result


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls", ""])
async def test_body_is_passed_on_however_the_answer_ended(reason: str) -> None:
    script = ScriptedProvider(lambda _: response(BODY, model="scripted-1", stop_reason=reason))
    async with local_gateway(script, budget_usd=Decimal(1)) as client:
        result = await asked(client, asking())

    assert (result.raw_output, result.parsed_output, result.actionable) == (BODY, {}, False)
    assert (result.success, result.failure, result.next_step) == (True, None, "final")
    assert result.reading is not None
    assert (result.reading.verdict, result.reading.transport) == (Stage.PASSED_ON, "verbatim")
    assert result.cost_nusd > 0
    assert (script.requests[0].system, script.requests[0].user) == ("", asking().context["body"])
    with pytest.raises(LLMResponseValidationError, match="was passed on to its client"):
        result.raise_for_failure()


async def test_outcome_of_a_passed_on_answer_is_not_ok_and_has_no_failed_stage() -> None:
    async with local_gateway(ScriptedProvider([BODY]), budget_usd=Decimal(1)) as client:
        outcome = await client.ask_structured(asking())

    assert (outcome.ok, outcome.json, outcome.stage, outcome.last_candidate) == (False, None, None, BODY)


async def test_provider_without_apis_not_called() -> None:
    desk = gateway(RulesProvider({}))
    async with running(desk) as client:
        answer = await client.ask(asking())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.category is FailureKind.INVALID_REQUEST
    said = "provider scripted does not speak 'chat_completions'. Allowed: requests of other formats"
    assert answer.result.failure.description == said
    assert (answer.result.cost_nusd, answer.result.dispatched_at) == (0, None)


async def test_provider_of_another_api_not_called() -> None:
    script = ScriptedProvider([BODY])
    script.speaks = frozenset({"messages"})
    desk = gateway(script)
    async with running(desk) as client:
        answer = await client.ask(asking())

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.description.endswith("'chat_completions'. Allowed: messages")
    assert script.requests == []


async def test_envelope_of_a_foreign_producer_is_checked_before_its_body_is_read() -> None:
    good = asking()
    foreign = good.model_copy(update={"context": {"api": "chat_completions", "body": '{"model":"dear"}'}})
    script = ScriptedProvider([BODY])
    async with running(gateway(script)) as client:
        answer = await client.ask(foreign)

    assert isinstance(answer, LLMInteraction)
    assert answer.result.failure is not None
    assert answer.result.failure.description.startswith("context.body has 'model'")
    assert script.requests == []


async def reserved(body: str, cap: int) -> ModelRequest:
    script = ScriptedProvider([BODY])
    async with local_gateway(script, budget_usd=Decimal(9)) as client:
        result = await asked(client, asking(body, cap=cap))
    assert result.failure is None, result.failure
    assert result.reserved_tokens == cap + 16 + len(body)
    return script.requests[0]


async def test_several_answers_are_reserved_and_may_exceed_the_cap_of_one() -> None:
    request = await reserved('{"messages":[],"n":3}', 3 * 128_000)

    assert (request.max_tokens, request.max_choice_tokens) == (384_000, 128_000)


async def test_cap_above_the_models_is_lowered_to_it() -> None:
    script = ScriptedProvider([BODY])
    async with local_gateway(script, budget_usd=Decimal(9)) as client:
        await asked(client, asking('{"messages":[],"n":2}', cap=900_000))

    assert script.requests[0].max_tokens == 256_000


async def test_replay_serves_same_bytes_for_free() -> None:
    store = MemoryInteractionStore()
    async with local_gateway(ScriptedProvider([BODY]), budget_usd=Decimal(1), store=store) as client:
        await client.ask(asking())
    recorded = [each.record async for each in store.scan()]
    answers = RecordedAnswers(one for one in recorded if isinstance(one, LLMInteraction))
    async with local_gateway(answers, budget_usd=Decimal(1)) as client:
        again = await asked(client, asking())
        missed = await asked(client, asking('{"messages":[1]}'))

    assert (again.raw_output, again.cost_nusd, again.served_from) == (BODY, 0, "recorded")
    assert again.reading is not None
    assert (again.reading.verdict, again.actionable) == (Stage.PASSED_ON, False)
    assert missed.failure is not None
    assert missed.failure.category is FailureKind.REPLAY_MISS


async def test_trace_has_a_word_of_its_own_for_a_passed_on_answer(tmp_path: Path) -> None:
    async with local_gateway(ScriptedProvider([BODY]), budget_usd=Decimal(1), folder=tmp_path) as client:
        answer = await client.ask(asking())

    assert verdict_of(answer) == "passed_on"
