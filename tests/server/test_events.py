"""A whole answer as events, folded again by the official SDKs' own accumulators."""

import json
import re
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._types import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentic_trading.llm.verbatim import Api
from agentic_trading.server import chat_completions, messages, responses
from agentic_trading.server.calls import answer_events, error_event
from agentic_trading.server.fields import ClientRequest

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
OBJECTS = st.dictionaries(NAMES, st.one_of(st.integers(-9, 9), TEXTS, st.booleans()), max_size=3)
COUNTS = st.integers(0, 10**6)
REFUSAL = {"type": "refusal", "category": "cyber", "explanation": "It asks for an attack."}
STOPS = [
    *({"stop_reason": reason} for reason in ("end_turn", "max_tokens", "tool_use", "refusal")),
    {"stop_reason": "refusal", "stop_details": REFUSAL},
]


def pages(raw: bytes) -> list[dict[str, Any]]:
    """Return the data of events."""
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    def message() -> dict[str, Any]:
        kind = draw(st.sampled_from(["text", "calls", "both", "refusal"]))
        made: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        if kind in {"text", "both"}:
            made["content"] = draw(TEXTS)
        if kind in {"calls", "both"}:
            made["tool_calls"] = [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": draw(NAMES), "arguments": json.dumps(draw(OBJECTS))},
                }
                for n in range(draw(st.integers(1, 3)))
            ]
        if kind == "refusal":
            made["refusal"] = draw(TEXTS.filter(bool))
        return made

    choices = [
        {
            "index": n,
            "message": message(),
            "logprobs": None,
            "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls"])),
        }
        for n in range(draw(st.integers(1, 3)))
    ]
    usage = {"prompt_tokens": draw(COUNTS), "completion_tokens": draw(COUNTS), "total_tokens": draw(COUNTS)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }


@given(completions())
@settings(deadline=None)
def test_chat_completion_is_folded_to_itself(body: dict[str, Any]) -> None:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    raw = chat_completions.chat_events(body, include_usage=True)
    for page in pages(raw):
        state.handle_chunk(ChatCompletionChunk.model_validate(page))

    folded = state.current_completion_snapshot.model_dump(exclude_none=True)
    for choice in folded["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    assert folded == ChatCompletion.model_validate(body).model_dump(exclude_none=True)
    assert raw.endswith(b"data: [DONE]\n\n")
    assert raw == chat_completions.chat_events(body, include_usage=True)


def test_usage_of_chat_is_left_out_unless_it_is_asked_for_and_logprobs_come_with_the_text() -> None:
    logprobs: dict[str, Any] = {
        "content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}],
        "refusal": None,
    }
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": ""},
        "finish_reason": "stop",
        "logprobs": logprobs,
    }
    chunks = pages(chat_completions.chat_events({"choices": [choice], "usage": {}}, include_usage=False))

    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [None, logprobs, None]


@st.composite
def made_messages(draw: st.DrawFn) -> dict[str, Any]:
    def block(place: int) -> dict[str, Any]:
        match draw(st.sampled_from(["text", "tool_use", "thinking", "redacted_thinking"])):
            case "text":
                return {"type": "text", "text": draw(TEXTS), "citations": None}
            case "tool_use":
                return {
                    "type": "tool_use",
                    "id": f"toolu_{place}",
                    "name": draw(NAMES),
                    "input": draw(OBJECTS),
                }
            case "thinking":
                return {"type": "thinking", "thinking": draw(TEXTS), "signature": draw(NAMES)}
            case _:
                return {"type": "redacted_thinking", "data": draw(NAMES)}

    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
        "content": [block(place) for place in range(draw(st.integers(0, 4)))],
        **draw(st.sampled_from(STOPS)), "stop_sequence": None,
        "usage": {"input_tokens": draw(COUNTS), "output_tokens": draw(COUNTS)},
    }  # fmt: skip


@given(made_messages())
@settings(deadline=None)
def test_message_is_folded_to_itself(body: dict[str, Any]) -> None:
    raw = messages.message_events(body)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for page in pages(raw):
        event = _event(page)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)

    assert raw == messages.message_events(body)
    folded = snapshot.model_dump(exclude_none=True)
    for block in folded["content"]:
        block.pop("parsed_output", None)
    assert folded == Message.model_validate(body).model_dump(exclude_none=True)


def _event(page: dict[str, Any]) -> RawMessageStreamEvent:
    event: RawMessageStreamEvent = TypeAdapter(RawMessageStreamEvent).validate_python(page)
    return event


@st.composite
def made_responses(draw: st.DrawFn) -> dict[str, Any]:
    def item(place: int) -> dict[str, Any]:
        match draw(st.sampled_from(["message", "refusal", "function_call", "custom_tool_call", "reasoning"])):
            case "message":
                part = {"type": "output_text", "text": draw(TEXTS), "annotations": [], "logprobs": []}
                return {
                    "type": "message",
                    "id": f"msg_{place}",
                    "status": "completed",
                    "role": "assistant",
                    "content": [part],
                }
            case "refusal":
                part = {"type": "refusal", "refusal": draw(TEXTS)}
                return {
                    "type": "message",
                    "id": f"msg_{place}",
                    "status": "completed",
                    "role": "assistant",
                    "content": [part],
                }
            case "function_call":
                arguments = json.dumps(draw(OBJECTS))
                return {
                    "type": "function_call",
                    "id": f"fc_{place}",
                    "call_id": f"c{place}",
                    "name": draw(NAMES),
                    "arguments": arguments,
                    "status": "completed",
                }
            case "custom_tool_call":
                return {
                    "type": "custom_tool_call",
                    "id": f"ctc_{place}",
                    "call_id": f"c{place}",
                    "name": draw(NAMES),
                    "input": draw(TEXTS),
                }
            case _:
                return {
                    "type": "reasoning",
                    "id": f"rs_{place}",
                    "summary": [],
                    "encrypted_content": draw(NAMES),
                }

    status = draw(st.sampled_from(["completed", "incomplete"]))
    return {
        "id": "resp_1", "object": "response", "created_at": 1.0, "status": status, "error": None,
        "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"}, "instructions": None,
        "metadata": {}, "model": "m", "output": [item(n) for n in range(draw(st.integers(0, 3)))], "tools": [],
        "parallel_tool_calls": True, "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto",
    }  # fmt: skip


@given(made_responses())
@settings(deadline=None)
def test_response_is_folded_to_itself(body: dict[str, Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    found = pages(responses.response_events(body))
    for page in found:
        state.handle_event(adapter.validate_python(page))

    assert [page["sequence_number"] for page in found] == [*range(len(found))]
    assert found[-1]["type"] == f"response.{body['status']}"
    assert found[-1]["response"] == body
    if body["status"] == "completed":
        folded = state._completed_response.model_dump(exclude_none=True)
        plain = Response.model_validate(body).model_dump(exclude_none=True)
        assert _plain(folded["output"]) == _plain(plain["output"])


def _plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items without what the accumulator adds to them."""
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return items


NUMBERS = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.sampled_from(["123456789012345678901", "100.10", "0.12345678901234567891", "1e2", "-0.0", "1E+400"]),
)


def streamed(api: Api, body: str) -> bytes:
    """Return an answer as the events of its API."""
    request = ClientRequest(api, "m", "{}", None, 1, stream=True, include_usage=True, metadata={}, fields={})
    raw = answer_events(request, body.encode())
    assert raw == answer_events(request, body.encode())
    return raw


def spelled(number: str) -> dict[Api, str]:
    """Return an answer of each API with a number in an unknown field, and in the input of a tool."""
    return {
        "chat_completions": f'{{"created":{number},"choices":[{{"index":0,"message":{{"content":"x","new":{number}}}}}],'
        f'"usage":{{"new":{number}}}}}',
        "responses": f'{{"status":"completed","new":{number},"output":[{{"type":"new","input":{{"order":{number}}}}}]}}',
        "messages": f'{{"new":{number},"content":[{{"type":"tool_use","input":{{"order":{number}}},"new":{number}}}],'
        f'"usage":{{"new":{number}}}}}',
    }


@given(NUMBERS)
@settings(deadline=None)
def test_numbers_of_events_are_spelled_as_in_the_answer(number: str) -> None:
    bodies = spelled(number)
    chat = streamed("chat_completions", bodies["chat_completions"])
    response = streamed("responses", bodies["responses"])
    message = streamed("messages", bodies["messages"])

    for raw in (chat, response, message):
        texts = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: {")]
        found = [
            value for text in texts for name, value in _written(text) if name in {"created", "new", "order"}
        ]
        assert set(found) == {number}
    inputs = [
        page["delta"]["partial_json"] for page in pages(message) if "partial_json" in page.get("delta", {})
    ]
    assert inputs == [f'{{"order":{number}}}']


def _written(text: str) -> list[tuple[str, str]]:
    """Return the numbers of a JSON text by name, as they are written."""
    return re.findall(r'"(\w+)":(-?[0-9][-+.0-9eE]*)', text)


HALF = "moon \\ud83d"
CUT: dict[Api, str] = {
    "chat_completions": f'{{"choices":[{{"index":0,"message":{{"content":"{HALF}","{HALF}":1.50}}}}]}}',
    "responses": f'{{"status":"incomplete","output":[{{"type":"message","content":[{{"type":"output_text","text":"{HALF}"}}]}}]}}',
    "messages": f'{{"content":[{{"type":"text","text":"{HALF}"}},{{"type":"tool_use","input":{{"{HALF}":["{HALF}",1.50]}}}}]}}',
}


@pytest.mark.parametrize("api", CUT)
def test_answer_that_ends_in_half_a_surrogate_is_streamed(api: Api) -> None:
    raw = streamed(api, CUT[api])
    texts = re.findall(r'"(?:content|text|delta)":("moon [^"]*")', raw.decode())

    assert texts
    assert {json.loads(text) for text in texts} == {"moon \ud83d"}
    if api == "messages":
        inputs = [
            page["delta"]["partial_json"] for page in pages(raw) if "partial_json" in page.get("delta", {})
        ]
        assert inputs == [f'{{"{HALF}":["{HALF}",1.50]}}']


@pytest.mark.parametrize(
    "body", [b"[]", b'{"choices":[],"created":NaN}', b"{}", b'{"choices":[{}]}', b"<html>", b"[" * 100_000]
)
def test_answer_of_another_form_cannot_be_streamed(body: bytes) -> None:
    request = ClientRequest(
        "chat_completions", "m", "{}", None, 1, stream=True, include_usage=False, metadata={}, fields={}
    )

    with pytest.raises((ValueError, KeyError, TypeError, RecursionError)):
        answer_events(request, body)


def test_error_is_an_event_of_its_api() -> None:
    chat = ClientRequest(
        "chat_completions", "m", "{}", None, 1, stream=True, include_usage=False, metadata={}, fields={}
    )
    claude = ClientRequest(
        "messages", "m", "{}", None, 1, stream=True, include_usage=False, metadata={}, fields={}
    )

    assert error_event(chat, b"{}") == b"data: {}\n\n"
    assert error_event(claude, b"{}") == b"event: error\ndata: {}\n\n"
