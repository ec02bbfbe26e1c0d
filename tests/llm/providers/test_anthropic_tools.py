"""The answer tool of the Messages API, against a stub in a process of its own."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Provider
from agentic_trading.llm.providers.anthropic.messages import count_arguments, create_arguments
from agentic_trading.llm.result import LLMResult
from tests.gateway import asking, gateway, held
from tests.llm.providers.over import over
from tests.structured.asking import ORDER, request
from tests.stubs.messages_api import GOOD, REFUSED_SCHEMAS
from tests.stubs.running import page_of
from tests.stubs.tools_api import EXACT, OTHER

SONNET, WITH_BUDGET = "claude-sonnet-5-5", "claude-sonnet-4-5-20250929"
MODELS = Capabilities.load()
TODAY = datetime(2026, 11, 22, tzinfo=UTC)
BECOMES = {
    "call": "strict_tool",
    "thoughtful_call": "strict_tool",
    "call_beside": "strict_tool",
    "talk": "strict_tool",
    "cut_call, call": "strict_tool",
    "two_calls": "parsing_error",
    "lost_call": "parsing_error",
    "other_call": "parsing_error",
    "overfull_call": "truncated",
    "refused_call": "refusal",
    "complex, talk": "prompted",
}
"""What becomes of a call that is answered so: the transport of its answer, or the kind of its failure.

The one whose schema is refused comes last: that is remembered.
"""


def asked_for(words: str) -> LLMEnvelope:
    """Return a call that the stub answers with `words`, one a request."""
    builder = asking("planning", clock=SimClock(TODAY)).with_instructions(f"play: {words}")
    return builder.with_provider(LLMProvider.ANTHROPIC, SONNET).build()


def _became(result: LLMResult) -> str:
    return result.failure.category if result.failure else str(result.reading and result.reading.transport)


def playing(word: str, model: str = SONNET, *, forced: bool = False, **changes: Any) -> ModelRequest:
    """Return a request over the answer tool; `changes` are fields of `LLMEnvelope`."""
    takes = MODELS.of(LLMProvider.ANTHROPIC, model)
    fields = {"instructions": f"play: {word}", "model": model, "expected_output_schema": ORDER, **changes}
    return over("strict_tool", request(takes, **fields), forced_tool=forced)


def spelled(**changes: Any) -> dict[str, Any]:
    return create_arguments(playing("call", **changes), ttl="5m")


async def error_from(claude: Provider, made: ModelRequest) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        await claude.complete(made)
    return failed.value


async def test_the_ledger_is_the_invoice_for_answers_by_a_tool(claude: Provider, claude_stub: str) -> None:
    by_tool = MODELS.of(LLMProvider.ANTHROPIC, SONNET).model_copy(update={"native_schema": False})
    desk = gateway(claude, clock=SimClock(TODAY), capabilities=Capabilities([*MODELS, by_tool]))
    before = (await asyncio.to_thread(page_of, claude_stub, "/invoice"))["total_nusd"]

    finals = {words: (await desk.runner.run(asked_for(words))).result for words in BECOMES}

    billed = (await asyncio.to_thread(page_of, claude_stub, "/invoice"))["total_nusd"] - before
    assert {words: _became(result) for words, result in finals.items()} == BECOMES
    assert desk.ledger.statistics().charged_nusd == billed > 0
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}
    assert finals["call"].parsed_output == {"action": "buy", "size": Decimal("1.50")}
    assert str(finals["call"].parsed_output["size"]) == "1.50"


def test_one_strict_tool_is_offered_for_one_call_and_no_format_is_asked_for() -> None:
    sent = spelled()

    assert [(tool["name"], tool["strict"]) for tool in sent["tools"]] == [("answer", True)]
    assert sent["tools"][0]["input_schema"]["additionalProperties"] is False
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert "format" not in sent.get("output_config", {})


def test_a_call_is_demanded_of_a_model_that_takes_that() -> None:
    demanded = {"type": "tool", "name": "answer", "disable_parallel_tool_use": True}

    assert spelled(forced=True)["tool_choice"] == demanded


def test_a_call_is_not_demanded_of_a_model_that_thinks_by_a_budget() -> None:
    sent = spelled(forced=True, model=WITH_BUDGET, budget=LLMBudget(thinking_budget=2000))

    assert sent["thinking"]["type"] == "enabled"
    assert sent["tool_choice"]["type"] == "auto"


def test_a_tool_is_billed_as_input_and_so_it_is_counted() -> None:
    assert count_arguments(playing("call"), ttl="")["tools"] == spelled()["tools"]


@pytest.mark.parametrize("model", [SONNET, WITH_BUDGET])
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_the_input_of_the_call_is_the_answer_digit_for_digit(claude: Provider, model: str) -> None:
    answer = await claude.complete(playing("call", model, forced=model == WITH_BUDGET))

    assert (answer.text, answer.stop_reason, answer.beside) == (EXACT, "tool_use", "")
    assert (answer.structured, answer.usage.output_tokens) == (None, 40)
    assert answer.provider_request_id == "req_1"


async def test_thinking_before_a_call_is_no_part_of_the_answer(claude: Provider) -> None:
    answer = await claude.complete(playing("thoughtful_call"))

    assert (answer.text, answer.usage.thinking_tokens) == (EXACT, 30)


async def test_a_text_beside_the_call_is_kept_apart(claude: Provider) -> None:
    answer = await claude.complete(playing("call_beside"))

    assert (answer.text, answer.beside) == (EXACT, f"{OTHER}done")


async def test_without_a_call_the_text_is_the_answer(claude: Provider) -> None:
    answer = await claude.complete(playing("talk"))

    assert (answer.text, answer.stop_reason) == (GOOD, "end_turn")


async def test_a_call_that_was_announced_and_is_not_there_leaves_no_answer(claude: Provider) -> None:
    answer = await claude.complete(playing("lost_call"))

    assert (answer.text, answer.beside) == ("", OTHER)


@pytest.mark.parametrize(("word", "called"), [("two_calls", "(answer, answer)"), ("other_call", "buy")])
async def test_other_calls_are_named_as_such(claude: Provider, word: str, called: str) -> None:
    assert (await claude.complete(playing(word))).tool_called == called


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("cut_call", "max_tokens"),
        ("overfull_call", "model_context_window_exceeded"),
    ],
)
async def test_a_cut_call_keeps_what_there_is_and_why_it_stopped(
    claude: Provider, word: str, reason: str
) -> None:
    answer = await claude.complete(playing(word))

    assert (answer.text, answer.stop_reason) == ('{"action": "buy"}', reason)


async def test_a_refusal_is_one_whatever_was_called(claude: Provider) -> None:
    answer = await claude.complete(playing("refused_call"))

    assert (answer.text, answer.stop_reason) == ("no", "refusal")


async def test_a_call_that_says_its_input_twice_is_no_answer(claude: Provider) -> None:
    e = await error_from(claude, playing("call_twice_said"))

    assert (e.kind, e.sent) == (FailureKind.SERVER_ERROR, True)
    assert "'input' stands 2 times" in e.message


@pytest.mark.parametrize("word", [*REFUSED_SCHEMAS])
async def test_a_tool_that_the_provider_does_not_take_is_a_refused_schema(
    claude: Provider, word: str
) -> None:
    e = await error_from(claude, playing(word))

    assert (e.kind, e.sent) == (FailureKind.SCHEMA_REFUSED, False)


async def test_a_demand_that_the_model_does_not_take_is_a_refused_schema(claude: Provider) -> None:
    e = await error_from(claude, playing("call", forced=True))

    assert (e.kind, e.sent) == (FailureKind.SCHEMA_REFUSED, False)


async def test_a_text_keeps_its_digits_too(claude: Provider, claude_stub: str) -> None:
    native = over("native_schema", playing("talk"))

    answer = await claude.complete(native)

    assert (answer.text, answer.structured) == (GOOD, None)
    assert "1.50" in answer.text
    assert "tools" not in (await asyncio.to_thread(page_of, claude_stub, "/last"))["body"]
