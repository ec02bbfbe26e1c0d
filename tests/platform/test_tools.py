"""Tools that an envelope names: resolved, offered, and a call of one returned as the answer, never executed."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm import (
    EnvelopeBuilder,
    FailureKind,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
    LLMResponseValidationError,
    LLMResult,
    MemoryInteractionStore,
    OutputPolicy,
    ResponseFormat,
)
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.hosted import ToolCall, text_of_calls
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.platform import Platform, ToolDefinition, local_gateway
from tests.build import response
from tests.gateway import GOOD, asking
from tests.structured.tools import BOOK, CALL, NEWS

FAILS = OutputPolicy(mode="reask", decode="lossless", on_exhausted="fail")


def envelope(*tools: str, workflow: str = "analysis", model: str = "scripted-1", **more: Any) -> LLMEnvelope:
    """Return an envelope that allows `tools`."""
    return asking(workflow, model=model, **more).with_tools(*tools).with_output_policy(FAILS).build()


def calling(*calls: tuple[str, str], **more: Any) -> Callable[[ModelRequest], ScriptedReply]:
    """Return a script in which the model calls tools; `more` are fields of the response."""
    text, called = text_of_calls([ToolCall(*call) for call in calls])
    answer = response(text, model="scripted-1", tool_called=called, stop_reason="tool_use")
    return lambda _request: replace(answer, **more)


@asynccontextmanager
async def opened(
    script: Callable[[ModelRequest], ScriptedReply] | Iterable[ScriptedReply],
    *,
    tools: Iterable[ToolDefinition] = (BOOK, NEWS),
) -> AsyncIterator[tuple[Platform, ScriptedProvider, MemoryInteractionStore]]:
    provider, store = ScriptedProvider(script), MemoryInteractionStore()
    async with local_gateway(provider, budget_usd=Decimal(1), store=store, tools=tools) as gateway:
        yield gateway, provider, store


async def asked(gateway: Platform, one: LLMEnvelope) -> LLMResult:
    answer = await gateway.ask(one)
    assert isinstance(answer, LLMInteraction)
    return answer.result


async def test_allowed_tool_call_is_not_actionable() -> None:
    async with opened(calling(("order_book", CALL))) as (gateway, provider, store):
        result = await asked(gateway, one := envelope("order_book"))
        kept = [entry.record async for entry in store.scan()]

    assert (result.tool_called, result.parsed_output) == ("order_book", {"symbol": "BTCUSDT", "depth": 10})
    assert (result.success, result.actionable, result.failure) == (True, False, None)
    assert [tool.name for tool in provider.requests[0].tools] == ["order_book"]
    with pytest.raises(LLMResponseValidationError, match="a call of the tool 'order_book'"):
        result.raise_for_failure()
    on_record = next(record for record in kept if isinstance(record, LLMInteraction))
    assert on_record.envelope.envelope_id == one.envelope_id
    assert LLMResult.from_wire(on_record.result.wire).tool_called == "order_book"


async def test_outcome_has_tool_input_but_not_ok() -> None:
    async with opened(calling(("order_book", CALL))) as (gateway, _, _):
        outcome = await gateway.ask_structured(envelope("order_book"))

    assert (outcome.ok, outcome.tool_called, outcome.json_text) == (False, "order_book", CALL)
    assert outcome.json == {"symbol": "BTCUSDT", "depth": 10}
    assert outcome.error is not None


async def test_plain_answer_with_tools_is_actionable() -> None:
    async with opened([GOOD]) as (gateway, _, _):
        result = await asked(gateway, envelope("order_book", "news"))

    assert (result.actionable, result.tool_called) == (True, "")
    assert b"tool_called" not in result.wire


@pytest.mark.parametrize(
    "calls",
    [
        [("news", "{}")],
        [("place_order", CALL)],
        [("order_book", CALL), ("order_book", CALL)],
        [("order_book", CALL), ("answer", GOOD)],
        [("order_book", '{"symbol": "BTCUSDT", "depth": 51}')],
        [("order_book", '{"symbol": "BTCUSDT", "depth": "10"}')],
        [("order_book", "{'symbol': 'BTCUSDT'}")],
        [("order_book", f"call {CALL}")],
    ],
    ids=str,
)
@pytest.mark.parametrize("text", [False, True])
async def test_invalid_tool_call_is_a_parsing_error(calls: list[tuple[str, str]], *, text: bool) -> None:
    one = envelope("order_book")
    if text:  # of a call that asks for text, any text is the answer
        builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_tools("order_book")
        builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").with_output_policy(FAILS)
        one = builder.with_response_format(ResponseFormat.TEXT).build()
    async with opened(calling(*calls)) as (gateway, _, _):
        result = await asked(gateway, one)

    assert (result.validation_passed, result.actionable, result.parsed_output) == (False, False, {})
    assert result.failure is not None
    assert result.failure.category is FailureKind.PARSING_ERROR


async def test_invalid_tool_call_is_asked_again() -> None:
    wrong = calling(("place_order", CALL))
    async with opened(lambda request: GOOD if request.answer == 2 else wrong(request)) as (
        gateway,
        provider,
        _,
    ):
        result = await asked(gateway, envelope("order_book"))

    assert result.actionable
    assert [[tool.name for tool in request.tools] for request in provider.requests] == [["order_book"]] * 2
    assert "calls 'place_order'" in provider.requests[1].user


async def test_degraded_answer_has_no_tool_call() -> None:
    one = asking("general").with_tools("order_book").build()
    async with opened(calling(("news", "{}"))) as (gateway, _, _):
        outcome = await gateway.ask_structured(one)

    assert (outcome.ok, outcome.json, outcome.tool_called) == (False, None, "")


@pytest.mark.parametrize(
    ("names", "tools", "model", "says"),
    [
        (["order_bok"], (BOOK, NEWS), "scripted-1", "nearest is 'order_book'; defined are news, order_book"),
        (["order_book"], (), "scripted-1", "the tool 'order_book' is not defined; defined are none"),
        (["order_book"], (BOOK,), "rules-1", "rules/rules-1 takes no tools"),
    ],
)
async def test_unavailable_tool_is_refused_without_charge(
    names: list[str], tools: tuple[ToolDefinition, ...], model: str, says: str
) -> None:
    provider = LLMProvider.RULES if model == "rules-1" else LLMProvider.SCRIPTED
    one = asking().with_provider(provider, model).with_tools(*names).build()
    async with opened([GOOD], tools=tools) as (gateway, asked_of, store):
        result = await asked(gateway, one)
        kept = [entry.record async for entry in store.scan()]

    assert result.failure is not None
    assert result.failure.category is FailureKind.INVALID_REQUEST
    assert says in result.failure.description
    assert (asked_of.requests, result.cost_nusd, result.reserved_nusd) == ([], 0, 0)
    assert any(isinstance(record, LLMInteraction) for record in kept)
