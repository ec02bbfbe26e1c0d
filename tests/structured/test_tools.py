"""Tools as the engine offers them, and calls as it reads them: nothing of this waits for anything."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from agentic_trading.governance.prices import input_bound
from agentic_trading.llm import FailureReason, LLMProvider, LLMResult
from agentic_trading.llm.provider import ToolDefinition
from agentic_trading.llm.providers.anthropic.messages import create_arguments
from agentic_trading.llm.providers.hosted import ToolCall, text_of_calls
from agentic_trading.llm.providers.openai.provider import completion_body
from agentic_trading.structured.engine import Prepared, prepare
from agentic_trading.structured.prompts import tools_by_name
from agentic_trading.worker.attempt_result import recorded_response
from tests.build import response
from tests.gateway import CAPABILITIES, asking
from tests.llm.providers.over import over
from tests.structured.tools import BOOK, CALL, NEWS


def prepared(model: str = "claude-sonnet-5-5", provider: LLMProvider = LLMProvider.ANTHROPIC) -> Prepared:
    one = asking().with_provider(provider, model).with_tools("order_book", "news").build()
    made = prepare(one, CAPABILITIES.of(provider, model), tools=tools_by_name([BOOK, NEWS]))
    assert not isinstance(made, FailureReason)
    return made


def test_recorded_tool_call_reads_identically() -> None:
    call = prepared()
    for name, accepted in (("order_book", True), ("place_order", False)):
        text, called = text_of_calls([ToolCall(name, CALL)])
        first = call.read(response(text, tool_called=called), call.request)
        kept = LLMResult(envelope_id="e", raw_output=first.raw_output, tool_called=called)
        again = call.read(recorded_response(kept), replace(call.request, transport=first.trace.transport))

        assert again == first
        assert (first.trace.verdict == "done") is accepted


def test_every_request_offers_same_tools() -> None:
    call = prepared()
    cap = call.raise_cap(call.request, attempt=2)
    moved = call.move_schema_to_prompt(call.request, attempt=2)

    assert [request.tools for request in (call.request, cap, moved)] == [(BOOK, NEWS)] * 3
    assert all("`order_book`, `news`" in request.system for request in (call.request, cap, moved))


@pytest.mark.parametrize(
    ("transport", "forced", "choice", "names"),
    [
        ("native_schema", False, "auto", ["order_book", "news"]),
        ("strict_tool", False, "auto", ["answer", "order_book", "news"]),
        ("strict_tool", True, "required", ["answer", "order_book", "news"]),
        ("text", True, "auto", ["order_book", "news"]),
    ],
)
def test_tool_definitions_match_each_api(
    transport: Any, choice: str, names: list[str], *, forced: bool
) -> None:
    request = over(transport, prepared().request, forced_tool=forced)
    body = completion_body(request, "openai", logprobs=False)
    message = create_arguments(request, ttl="")

    functions = [tool["function"] for tool in body["tools"]]
    assert [function["name"] for function in functions] == names
    assert {"name": "news", "description": "Headlines.", "parameters": {"type": "object"}} in functions
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (choice, False)
    assert [tool["name"] for tool in message["tools"]] == names
    assert message["tools"][-1]["input_schema"] == {"type": "object"}
    wanted = {"auto": "auto", "required": "any"}[choice]
    assert message["tool_choice"] == {"type": wanted, "disable_parallel_tool_use": True}


def test_input_bound_covers_tool_definitions() -> None:
    call = prepared()
    without = replace(call.request, tools=())
    sent = sum(2 * len(tool.model_dump_json()) for tool in (BOOK, NEWS))

    assert input_bound(call.request, call.capability) - input_bound(without, call.capability) >= sent


@pytest.mark.parametrize(
    "change", [{"name": "answer"}, {"name": "two words"}, {"name": "x" * 65}, {"description": ""}]
)
def test_invalid_tool_definition_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ToolDefinition(**{**BOOK.model_dump(), **change})


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([BOOK, BOOK], "'order_book' is defined twice"),
        ([NEWS.model_copy(update={"parameters": {"type": "thing"}})], "'news' are not a valid JSON Schema"),
    ],
)
def test_conflicting_tool_definitions_are_named(tools: list[ToolDefinition], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tools_by_name(tools)


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("order_bok", "claude-sonnet-5-5", "nearest is 'order_book'; defined are news, order_book"),
        ("x" * 400, "claude-sonnet-5-5", "is not defined; defined are news, order_book"),
        ("order_book", "rules-1", "rules/rules-1 takes no tools"),
    ],
)
def test_unofferable_tool_prevents_sending(name: str, model: str, says: str) -> None:
    provider = LLMProvider.RULES if model == "rules-1" else LLMProvider.ANTHROPIC
    one = asking().with_provider(provider, model).with_tools(name).build()

    refused = prepare(one, CAPABILITIES.of(provider, model), tools=tools_by_name([BOOK, NEWS]))

    assert isinstance(refused, FailureReason)
    assert says in refused.description
