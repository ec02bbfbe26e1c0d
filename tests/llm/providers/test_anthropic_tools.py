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


async def test_anthropic_tool_ledger_matches_invoice(claude: Provider, claude_stub: str) -> None:
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


def test_strict_tool_is_offered_without_format() -> None:
    sent = spelled()

    assert [(tool["name"], tool["strict"]) for tool in sent["tools"]] == [("answer", True)]
    assert sent["tools"][0]["input_schema"]["additionalProperties"] is False
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert "format" not in sent.get("output_config", {})


def test_tool_call_forced_if_model_allows() -> None:
    demanded = {"type": "tool", "name": "answer", "disable_parallel_tool_use": True}

    assert spelled(forced=True)["tool_choice"] == demanded


def test_tool_call_not_forced_with_thinking() -> None:
    sent = spelled(forced=True, model=WITH_BUDGET, budget=LLMBudget(thinking_budget=2000))

    assert sent["thinking"]["type"] == "enabled"
    assert sent["tool_choice"]["type"] == "auto"


def test_tool_definition_is_counted_as_input() -> None:
    assert count_arguments(playing("call"), ttl="")["tools"] == spelled()["tools"]


@pytest.mark.parametrize("model", [SONNET, WITH_BUDGET])
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_tool_input_is_exact_answer(claude: Provider, model: str) -> None:
    answer = await claude.complete(playing("call", model, forced=model == WITH_BUDGET))

    assert (answer.text, answer.stop_reason, answer.beside) == (EXACT, "tool_use", "")
    assert (answer.structured, answer.usage.output_tokens) == (None, 40)
    assert answer.provider_request_id == "req_1"


async def test_thinking_before_call_is_not_answer(claude: Provider) -> None:
    answer = await claude.complete(playing("thoughtful_call"))

    assert (answer.text, answer.usage.thinking_tokens) == (EXACT, 30)


async def test_text_with_call_is_kept_separately(claude: Provider) -> None:
    answer = await claude.complete(playing("call_beside"))

    assert (answer.text, answer.beside) == (EXACT, f"{OTHER}done")


async def test_text_is_answer_without_call(claude: Provider) -> None:
    answer = await claude.complete(playing("talk"))

    assert (answer.text, answer.stop_reason) == (GOOD, "end_turn")


async def test_missing_announced_call_leaves_empty_answer(claude: Provider) -> None:
    answer = await claude.complete(playing("lost_call"))

    assert (answer.text, answer.beside) == ("", OTHER)


@pytest.mark.parametrize(("word", "called"), [("two_calls", "(answer, answer)"), ("other_call", "buy")])
async def test_other_tool_calls_are_named(claude: Provider, word: str, called: str) -> None:
    assert (await claude.complete(playing(word))).tool_called == called


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("cut_call", "max_tokens"),
        ("overfull_call", "model_context_window_exceeded"),
    ],
)
async def test_truncated_call_keeps_text_and_reason(claude: Provider, word: str, reason: str) -> None:
    answer = await claude.complete(playing(word))

    assert (answer.text, answer.stop_reason) == ('{"action": "buy"}', reason)


async def test_refusal_overrides_any_tool_call(claude: Provider) -> None:
    answer = await claude.complete(playing("refused_call"))

    assert (answer.text, answer.stop_reason) == ("no", "refusal")


async def test_duplicate_tool_input_raises(claude: Provider) -> None:
    e = await error_from(claude, playing("call_twice_said"))

    assert (e.kind, e.sent) == (FailureKind.SERVER_ERROR, True)
    assert "'input' appears 2 times" in e.message


@pytest.mark.parametrize("word", [*REFUSED_SCHEMAS])
async def test_rejected_tool_is_schema_refusal(claude: Provider, word: str) -> None:
    e = await error_from(claude, playing(word))

    assert (e.kind, e.sent) == (FailureKind.SCHEMA_REFUSED, False)


async def test_rejected_tool_choice_is_schema_refusal(claude: Provider) -> None:
    e = await error_from(claude, playing("call", forced=True))

    assert (e.kind, e.sent) == (FailureKind.SCHEMA_REFUSED, False)


async def test_native_text_answer_keeps_digits(claude: Provider, claude_stub: str) -> None:
    native = over("native_schema", playing("talk"))

    answer = await claude.complete(native)

    assert (answer.text, answer.structured) == (GOOD, None)
    assert "1.50" in answer.text
    assert "tools" not in (await asyncio.to_thread(page_of, claude_stub, "/last"))["body"]
