"""The events of each API are folded to the body of the same answer, as the official SDKs fold them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.folds import FOLDS, EventSplitter, event_page, read_folded
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.taps import EventKind, Tap
from agentic_trading.llm.verbatim import Api
from agentic_trading.server import chat_completions, messages, responses
from tests.server.test_events import completions, made_messages, made_responses

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


def folded(api: Api, raw: bytes, size: int = 7) -> tuple[bytes, list[EventKind]]:
    """Return the body of a stream that arrives in pieces, and the kinds of its events."""
    fold, splitter = FOLDS[api](), EventSplitter()
    found = [event for start in range(0, len(raw), size) for event in splitter.add(raw[start : start + size])]
    assert b"".join(each for each, _ in found) == raw
    kinds = [fold.add(event_page(data), data) for _, data in found]
    return fold.body(), kinds


def events(*pages: Any) -> bytes:
    """Return events with this data."""
    texts = [page if isinstance(page, str) else json.dumps(page) for page in pages]
    return b"".join(f"data: {text}\n\n".encode() for text in texts)


@given(completions(), st.integers(1, 300))
@settings(deadline=None)
def test_events_of_a_chat_completion_are_folded_to_its_body(body: dict[str, Any], size: int) -> None:
    raw, kinds = folded("chat_completions", chat_completions.chat_events(body, include_usage=True), size)

    assert json.loads(raw) == body
    assert kinds[-2:] == ["usage", "end"]


@given(made_messages(), st.integers(1, 300))
@settings(deadline=None)
def test_events_of_a_message_are_folded_to_its_body(body: dict[str, Any], size: int) -> None:
    raw, kinds = folded("messages", messages.message_events(body), size)

    assert json.loads(raw) == {"stop_details": None, **body}
    assert kinds[-1] == "end"


@given(made_responses(), st.integers(1, 300))
@settings(deadline=None)
def test_events_of_a_response_are_folded_to_its_body(body: dict[str, Any], size: int) -> None:
    raw, kinds = folded("responses", responses.response_events(body), size)

    assert json.loads(raw) == body
    assert kinds[-1] == "end"


@st.composite
def chunks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return the chunks of several answers at once, in many pieces."""
    made: list[dict[str, Any]] = []

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None) -> None:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        made.append({**head, "choices": [choice]})

    indexes = range(draw(st.integers(1, 3)))
    for index in indexes:
        chunk(index, {"role": "assistant", "content": draw(st.sampled_from(["", None]))})
    for _ in range(draw(st.integers(0, 12))):
        index = draw(st.sampled_from(indexes))
        match draw(st.sampled_from(["content", "refusal", "call", "arguments"])):
            case "content":
                chunk(index, {"content": draw(TEXTS)})
            case "refusal":
                chunk(index, {"refusal": draw(TEXTS)})
            case kind:
                place = draw(st.integers(0, 2))
                name = {"name": "f"} if kind == "call" else {}
                call = {"id": f"c{place}", "type": "function"} if kind == "call" else {}
                function = {**name, "arguments": draw(TEXTS)}
                chunk(index, {"tool_calls": [{"index": place, **call, "function": function}]})
    for index in indexes:
        chunk(index, {}, draw(st.sampled_from(["stop", "length", "tool_calls"])))
    return made


def begin_calls(made: list[dict[str, Any]]) -> None:
    """Let calls begin with their name, and count them as they begin, as the API sends them."""
    seen: dict[int, list[int]] = {}
    for one in made:
        for call in one["choices"][0]["delta"].get("tool_calls", ()):
            places = seen.setdefault(one["choices"][0]["index"], [])
            is_known = call["index"] in places
            if not is_known:
                places.append(call["index"])
            call["index"] = places.index(call["index"])
            if is_known:
                call.pop("id", None)
                call.pop("type", None)
                call["function"].pop("name", None)
            else:
                call |= {"id": f"c{call['index']}", "type": "function"}
                call["function"]["name"] = "f"


def without_nulls(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return choices without nulls, and without the fields that the SDK adds to calls."""
    for choice in choices:
        for call in choice["message"].get("tool_calls", []):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        choice["message"] = {name: value for name, value in choice["message"].items() if value is not None}
    return [{name: value for name, value in choice.items() if value is not None} for choice in choices]


@given(chunks())
@settings(deadline=None)
def test_chunks_in_many_pieces_are_folded_as_by_the_sdk(made: list[dict[str, Any]]) -> None:
    begin_calls(made)
    state: Any = ChatCompletionStreamState()
    for one in made:
        state.handle_chunk(ChatCompletionChunk.model_validate(one))
    raw, _ = folded("chat_completions", events(*made, "[DONE]"))

    theirs = state.current_completion_snapshot.model_dump(exclude_none=True)["choices"]
    assert without_nulls(json.loads(raw)["choices"]) == without_nulls(theirs)


@given(st.lists(st.tuples(st.sampled_from(["text", "thinking", "tool_use"]), st.lists(TEXTS)), max_size=4))
@settings(deadline=None)
def test_deltas_of_messages_are_folded_as_by_the_sdk(blocks: list[tuple[str, list[str]]]) -> None:
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": "", "citations": None},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"id": "toolu_1", "name": "f", "input": {}},
    }
    usage = {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 3}
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    made: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, (kind, texts) in enumerate(blocks):
        at = {"index": index}
        made.append({"type": "content_block_start", **at, "content_block": {"type": kind, **empty[kind]}})
        written = json.dumps({"text": "".join(texts)})
        deltas = {
            "text": [{"type": "text_delta", "text": text} for text in texts],
            "thinking": [
                *({"type": "thinking_delta", "thinking": text} for text in texts),
                {"type": "signature_delta", "signature": "c2ln"},
            ],
            "tool_use": [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in ("", written[:5], written[5:])
            ],
        }
        made += [{"type": "content_block_delta", **at, "delta": delta} for delta in deltas[kind]]
        made.append({"type": "content_block_stop", **at})
    ends = {"stop_reason": "end_turn", "stop_sequence": None}
    last_usage = {"output_tokens": 9, "input_tokens": None}
    made += [{"type": "message_delta", "delta": ends, "usage": last_usage}, {"type": "message_stop"}]
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for page in made:
        if page["type"] != "ping":
            event = adapter.validate_python(page)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)

    raw, _ = folded("messages", events(*made))

    theirs = snapshot.model_dump(exclude_none=True)
    for block in theirs["content"]:
        block.pop("parsed_output", None)
    ours = {name: value for name, value in json.loads(raw).items() if value is not None}
    ours["content"] = [{k: v for k, v in block.items() if v is not None} for block in ours["content"]]
    assert ours == theirs


def test_numbers_and_unknown_fields_of_events_are_kept() -> None:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    first = json.dumps({
        **head,
        "x": "@",
        "choices": [{"index": 0, "delta": {"role": "assistant", "y": "@"}}],
    })
    raw, kinds = folded(
        "chat_completions",
        events(
            first.replace('"@"', "1.50"),
            {
                **head,
                "choices": [{"index": 0, "delta": {"content": "a", "role": "assistant"}}],
                "obfuscation": "q",
            },
            {**head, "choices": [], "usage": {"prompt_tokens": 12345678901234567890}},
            "[DONE]",
        ),
    )

    assert b'"x":1.50' in raw
    assert b'"y":1.50' in raw
    assert b"12345678901234567890" in raw
    assert b"obfuscation" not in raw
    assert json.loads(raw)["choices"][0]["message"]["role"] == "assistant"
    assert kinds == ["event", "event", "usage", "end"]


def test_body_of_a_response_is_that_of_its_last_event_byte_for_byte() -> None:
    last = '{"type": "response.completed", "response" : { "output": [],  "x": 1.50, "error": null}}'
    raw, kinds = folded("responses", events({"type": "response.created", "response": {}}, last))

    assert raw == b'{ "output": [],  "x": 1.50, "error": null}'
    assert kinds == ["event", "end"]


def test_input_of_a_tool_keeps_its_spelling_and_is_closed_if_it_was_cut() -> None:
    def block(written: str) -> bytes:
        begun = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        raw, _ = folded(
            "messages",
            events(
                {"type": "message_start", "message": {"content": []}},
                {"type": "content_block_start", "index": 0, "content_block": begun},
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": written},
                },
            ),
        )
        return raw

    assert b'"input":{ "size" : 1.50}' in block('{ "size" : 1.50}')
    assert b'"input":{"size":1.5}' in block('{"size": 1.5, "symbol": "NV')


def test_citations_and_unknown_pieces_of_a_block_are_kept() -> None:
    raw, _ = folded(
        "messages",
        events(
            {"type": "message_start", "message": {"content": [], "usage": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "citations_delta", "citation": {"a": 1}},
            },
            {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "new": "x"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "new": "y"}},
        ),
    )

    assert json.loads(raw)["content"] == [{"type": "text", "text": "", "citations": [{"a": 1}], "new": "xy"}]


def test_logprobs_and_listed_details_come_in_pieces() -> None:
    def chunk(token: str, detail: Any) -> dict[str, Any]:
        logprobs = {"content": [{"token": token, "logprob": -0.5}], "refusal": None}
        return {
            "choices": [{"index": 0, "delta": {"content": token, "details": detail}, "logprobs": logprobs}]
        }

    pieces = [[{"index": 0, "text": "a"}], [{"index": 0, "text": "b"}, {"index": 1, "text": "c"}]]
    raw, _ = folded("chat_completions", events(chunk("x", pieces[0]), chunk("y", pieces[1])))

    choice = json.loads(raw)["choices"][0]
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["x", "y"]
    assert choice["message"]["details"] == [{"index": 0, "text": "ab"}, {"index": 1, "text": "c"}]


def test_half_a_surrogate_pair_in_each_of_two_events_becomes_one_character() -> None:
    halves = [
        f'{{"choices":[{{"index":0,"delta":{{"content":"{half}"}}}}]}}' for half in (r"\ud83d", r"\ude00")
    ]
    raw, _ = folded("chat_completions", events(*halves))

    assert json.loads(raw)["choices"][0]["message"]["content"] == "\U0001f600"


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_split_at_empty_lines_of_any_kind(end: str, size: int) -> None:
    line = end[: len(end) // 2]
    raw = f"\ufeffevent: a{line}data: 1{end}: comment{end}data:2{line}data: 3{end}data: 4{line}".encode()
    splitter = EventSplitter()
    found = [event for start in range(0, len(raw), size) for event in splitter.add(raw[start : start + size])]

    assert [data for _, data in found] == ["1", "2\n3"]
    assert [*splitter.close()] == [(b"data: 4\n\n", "4")]


async def read(
    raw: bytes, api: Api = "chat_completions", tap: Tap | None = None, *, most: int = 1000, size: int = 50
) -> bytes:
    """Return the folded body of a stream."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    return await read_folded(pieces(), "", most, api, tap or Tap(Redaction()))


CHUNK = {"choices": [{"index": 0, "delta": {"content": "abcdefgh"}, "finish_reason": None}]}


async def test_stream_may_be_longer_than_its_answer() -> None:
    raw = await read(events(*[CHUNK] * 50, "[DONE]"))

    assert json.loads(raw)["choices"][0]["message"]["content"] == "abcdefgh" * 50


@pytest.mark.parametrize(
    "raw",
    [
        events(*[CHUNK] * 300, "[DONE]"),
        events(*[CHUNK] * 300),
        events({**CHUNK, "long": "x" * 1200}, "[DONE]"),
        b"data: " + b"x" * 5000,
        events({**CHUNK, "long": "x" * 1001}) + b"data: [DONE]\n",
    ],
)
async def test_answer_above_the_limit_is_an_error_in_doubt(raw: bytes) -> None:
    with pytest.raises(ProviderError, match="max_answer_bytes") as e:
        await read(raw)

    assert e.value.sent
    assert e.value.kind is FailureKind.TRUNCATED


@pytest.mark.parametrize(
    ("raw", "api"),
    [
        (events(CHUNK), "chat_completions"),
        (b"", "messages"),
        (events({"type": "response.created"}), "responses"),
        (events({"type": "message_start", "message": {"usage": {"input_tokens": 1}}}), "messages"),
    ],
)
async def test_stream_without_its_last_event_is_an_error_in_doubt(raw: bytes, api: Api) -> None:
    with pytest.raises(ProviderError, match="ended before its last event") as e:
        await read(raw, api)

    assert e.value.sent


@pytest.mark.parametrize(
    ("raw", "api"),
    [
        (b"data: {\n\n", "chat_completions"),
        (b"data: 7\n\n", "messages"),
        (events({"x": 1}), "responses"),
        (events({"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}}), "messages"),
        (
            events({"choices": [{"index": "x", "delta": {"content": 1}}, {"index": 1}]}, "[DONE]"),
            "chat_completions",
        ),
        (b"data: " + b"[" * 100_000 + b"\n\n", "chat_completions"),
        (
            events(
                {"type": "message_start", "message": {}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}},
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "i", "partial_json": "no" * 900},
                },
                {"type": "ping", "long": "x" * 2500},
            ),
            "messages",
        ),
    ],
)
async def test_event_that_cannot_be_read_is_an_error_in_doubt(raw: bytes, api: Api) -> None:
    with pytest.raises(ProviderError, match="cannot be read") as e:
        await read(raw, api, most=200_000 if len(raw) > 5000 else 2000)

    assert e.value.sent


@pytest.mark.parametrize(
    ("page", "api"),
    [
        ({"error": {"message": "no"}}, "chat_completions"),
        ({"object": "error", "message": "no"}, "chat_completions"),
        ({"type": "error", "message": "no"}, "responses"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "messages"),
    ],
)
async def test_error_in_place_of_an_answer_is_the_body_and_does_not_pass(page: Any, api: Api) -> None:
    tap = Tap(Redaction())

    assert json.loads(await read(events(page), api, tap)) == page
    assert not tap.is_begun


async def test_last_event_may_lack_its_empty_line() -> None:
    tap = Tap(Redaction())
    await read(events(CHUNK, "[DONE]")[:-2], tap=tap)

    assert tap.end == b"data: [DONE]\n\n"
