"""Clients' own requests: the form that they demand, the part of an answer that is judged, and the re-ask in their own messages."""

import json
from typing import Any

import pytest

from agentic_trading.llm import ResponseFormat
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.llm.verbatim import Api, VerbatimRequest
from agentic_trading.structured.engine import read_answer
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.verbatim import WantedForm, corrected_body, judged_text, wanted_form
from tests.build import envelope

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = WantedForm(SCHEMA)
FORCED = WantedForm(SCHEMA, "order")


@pytest.mark.parametrize(
    ("api", "fields", "form"),
    [
        ("chat_completions", {"response_format": {"json_schema": {"schema": SCHEMA}}}, FORM),
        ("responses", {"text": {"format": {"schema": SCHEMA}}}, FORM),
        ("messages", {"output_config": {"format": {"schema": SCHEMA}}}, FORM),
        ("messages", {"output_config": {"format": {"schema": {}}}}, None),
        ("messages", {"output_config": "x"}, None),
        ("responses", {}, None),
        (
            "chat_completions",
            {"tool_choice": {"function": {"name": "order"}}, "tools": [{"function": {"name": "order", "parameters": SCHEMA}}]},
            FORCED,
        ),
        ("responses", {"tool_choice": {"name": "order"}, "tools": [{"name": "x"}, {"name": "order", "parameters": SCHEMA}]}, FORCED),
        ("messages", {"tool_choice": {"name": "order"}, "tools": [{"name": "order", "input_schema": SCHEMA}]}, FORCED),
        ("messages", {"tool_choice": {"name": "order"}, "tools": [{"name": "order"}]}, None),
        ("messages", {"tool_choice": {"name": "order"}, "tools": [{"name": "other"}]}, None),
        ("messages", {"tool_choice": {"type": "any"}, "output_config": {"format": {"schema": SCHEMA}}}, FORM),
        ("chat_completions", {"tool_choice": {"function": "order"}, "tools": [{"function": {"name": "order"}}]}, None),
        ("chat_completions", {"tool_choice": "required", "tools": None}, None),
    ],
)  # fmt: skip
def test_form_is_that_of_the_forced_tool_or_of_the_schema(
    api: Api, fields: dict[str, Any], form: Any
) -> None:
    assert wanted_form(api, fields) == form


CHOICES: dict[Api, Any] = {
    "chat_completions": {"type": "function", "function": {"name": "order"}},
    "responses": {"type": "function", "name": "order"},
    "messages": {"type": "tool", "name": "order"},
}
MALFORMED: list[Any] = [None, "x", 1, [], {}, {"function": None}, {"function": "x"}, {"function": [1]}, {"function": {"name": None}},
             {"name": None}, {"name": ["order"]}]  # fmt: skip


@pytest.mark.parametrize("api", CHOICES)
@pytest.mark.parametrize(
    "tools", [*([tool] for tool in MALFORMED), None, 1, True, "order", {"name": "order"}]
)
def test_malformed_tools_demand_no_form(api: Api, tools: Any) -> None:
    assert wanted_form(api, {"tool_choice": CHOICES[api], "tools": tools}) is None


@pytest.mark.parametrize("api", CHOICES)
@pytest.mark.parametrize("name", [None, "", 1, ["order"], {"a": 1}])
def test_malformed_choice_of_a_tool_demands_no_form(api: Api, name: Any) -> None:
    tool = {"name": name, "parameters": SCHEMA, "input_schema": SCHEMA}
    named = {"name": name}
    fields = {"tool_choice": {**named, "function": named}, "tools": [{**tool, "function": tool}]}

    assert wanted_form(api, fields) is None


@pytest.mark.parametrize("api", CHOICES)
def test_malformed_tool_does_not_hide_the_forced_one(api: Api) -> None:
    tool = {"name": "order", "parameters": SCHEMA, "input_schema": SCHEMA}
    tools = [*MALFORMED, {**tool, "function": tool}]

    assert wanted_form(api, {"tool_choice": CHOICES[api], "tools": tools}) == FORCED


def test_answer_is_kept_if_its_form_cannot_be_read() -> None:
    asked = envelope(
        context={"api": "chat_completions", "body": "[1"},
        response_format=ResponseFormat.VERBATIM,
        expected_output_schema=SCHEMA,
    )
    request = ModelRequest(asked, 1, 1, "", "[1", "verbatim", 100)

    outcome = read_answer(
        ModelResponse(text="{}", stop_reason="stop", usage=Usage(), model="m"), request, parser="t"
    )

    assert isinstance(outcome, Accepted)
    assert outcome.text == "{}"


def chat(reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "choices": [{"finish_reason": reason, "message": {"role": "assistant", "content": None, **message}}]
    }


def call(name: str = "order") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": '{"a":1.50}'}}


def response(*items: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"status": status, "output": [{"type": "reasoning", "id": "rs_1"}, *items]}


TEXT_ITEM = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
CALL_ITEM = {"type": "function_call", "call_id": "c1", "name": "order", "arguments": '{"a":1.50}'}
USE = {"type": "tool_use", "id": "t1", "name": "order", "input": {"a": 1.5}}


def message(*blocks: dict[str, Any], reason: str = "end_turn") -> dict[str, Any]:
    return {"stop_reason": reason, "content": [{"type": "thinking", "thinking": "x"}, *blocks]}


@pytest.mark.parametrize(
    ("api", "body", "form", "judged"),
    [
        ("chat_completions", chat(content="{}"), FORM, "{}"),
        ("chat_completions", chat(content=""), FORM, None),
        ("chat_completions", chat("length", content="{"), FORM, None),
        ("chat_completions", chat(content="{}", refusal="no"), FORM, None),
        ("chat_completions", chat("tool_calls", tool_calls=[call()]), FORM, None),
        ("chat_completions", chat("stop", tool_calls=[call()]), FORCED, '{"a":1.50}'),
        ("chat_completions", chat("tool_calls", tool_calls=[call("other")]), FORCED, None),
        ("chat_completions", chat("tool_calls", tool_calls=[call(), call()]), FORCED, None),
        ("chat_completions", chat(content="{}"), FORCED, None),
        ("chat_completions", {"choices": []}, FORM, None),
        ("responses", response(TEXT_ITEM), FORM, "{}"),
        ("responses", response(TEXT_ITEM, status="incomplete"), FORM, None),
        ("responses", response({"type": "message", "content": [{"type": "refusal"}]}), FORM, None),
        ("responses", response(CALL_ITEM), FORCED, '{"a":1.50}'),
        ("messages", message({"type": "text", "text": "{}"}), FORM, "{}"),
        ("messages", message({"type": "text", "text": "{"}, reason="max_tokens"), FORM, None),
        ("messages", message(reason="refusal"), FORM, None),
        ("messages", message(USE, reason="tool_use"), FORCED, '{"a": 1.5}'),
        ("messages", [], FORM, None),
    ],
)  # fmt: skip
def test_only_whole_answers_of_the_demanded_kind_count(
    api: Api, body: Any, form: WantedForm, judged: str | None
) -> None:
    assert judged_text(VerbatimRequest(api, "{}"), json.dumps(body), form) == judged


def test_numbers_of_a_call_keep_their_digits() -> None:
    body = '{"stop_reason":"tool_use","content":[{"type":"tool_use","id":"t","name":"order","input":{"a":1.50}}]}'

    assert judged_text(VerbatimRequest("messages", "{}"), body, FORCED) == '{"a":1.50}'


ERRORS = [{"path": "$.a", "message": "is no integer"}]
WHY = 'This was not accepted:\n[{"path": "$.a", "message": "is no integer"}]\nAnswer again, whole and in the demanded form.'


def again(api: Api, body: str, answer: Any) -> Any:
    return corrected_body(VerbatimRequest(api, body), json.dumps(answer), ERRORS)


def test_reask_follows_the_clients_messages_and_keeps_their_text() -> None:
    body = '{"temperature":0.70,"messages":[ {"role":"user","content":"\\u00e9"}]}'

    found = again("chat_completions", body, chat(content="{}"))

    assert found.startswith(body.removesuffix("]}"))
    assert json.loads(found)["messages"][1:] == [
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": WHY},
    ]


def test_reask_of_a_call_is_its_result() -> None:
    chat_again = json.loads(again("chat_completions", '{"messages":[]}', chat("stop", tool_calls=[call()])))
    response_again = json.loads(again("responses", '{"input":"Judge."}', response(CALL_ITEM)))
    message_again = json.loads(again("messages", '{"messages":[]}', message(USE, reason="tool_use")))

    assert chat_again["messages"] == [
        {"role": "assistant", "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "c1", "content": WHY},
    ]
    assert response_again["input"] == [
        {"role": "user", "content": "Judge."},
        {"type": "reasoning", "id": "rs_1"},
        CALL_ITEM,
        {"type": "function_call_output", "call_id": "c1", "output": WHY},
    ]
    assert message_again["messages"][1] == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": WHY, "is_error": True}],
    }


def test_reask_of_an_answer_that_cannot_be_read_has_the_objection_only() -> None:
    found = corrected_body(VerbatimRequest("messages", '{"messages":[]}'), "<html>", ERRORS)

    assert json.loads(found) == {"messages": [{"role": "user", "content": WHY}]}


@pytest.mark.parametrize(
    ("body", "value", "kind"),
    [
        ({"response_format": {"json_schema": {"schema": SCHEMA}}}, '{"a": 1}', Accepted),
        ({"response_format": {"json_schema": {"schema": SCHEMA}}}, '{"a": "x"}', Rejected),
        ({}, "no JSON", Accepted),
    ],
)
def test_passed_on_answer_is_checked_by_the_form_of_its_request(
    body: dict[str, Any], value: str, kind: type[Accepted | Rejected]
) -> None:
    sent = json.dumps(body)
    asked = envelope(
        context={"api": "chat_completions", "body": sent},
        response_format=ResponseFormat.VERBATIM,
        expected_output_schema=SCHEMA,
    )
    answer = ModelResponse(text=json.dumps(chat(content=value)), stop_reason="stop", usage=Usage(), model="m")

    outcome = read_answer(answer, ModelRequest(asked, 1, 1, "", sent, "verbatim", 100), parser="t")

    assert isinstance(outcome, kind)
    assert outcome.raw_output == answer.text
