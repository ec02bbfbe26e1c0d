"""The answers of the vendors' stub as the events that the vendors send: many small pieces, and the usage at the end."""

import json
from collections.abc import Iterator
from typing import Any

Body = dict[str, Any]

PIECE = 5


def events_of(path: str, page: Body) -> list[bytes]:
    """Return the events of an answer."""
    make = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}[path]
    return [*make(page)]


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _part(choice: Body, delta: Body, reason: str | None = None) -> Body:
    return {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": reason}


def _deltas_of_chat(message: Body) -> Iterator[Body]:
    for name in ("content", "refusal"):
        for piece in _pieces(message.get(name) or ""):
            yield {name: piece}
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        begun = {**call, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": place, **begun}]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}


def _chat(page: Body) -> Iterator[bytes]:
    head = {name: value for name, value in page.items() if name not in {"choices", "usage"}}
    head |= {"object": "chat.completion.chunk"}

    def chunk(*choices: Body, **more: Any) -> bytes:
        return b"data: " + json.dumps({**head, "choices": choices, "usage": None, **more}).encode() + b"\n\n"

    for choice in page["choices"]:
        yield chunk(_part(choice, {"role": "assistant", "content": "", "refusal": None}))
    for choice in page["choices"]:
        for delta in _deltas_of_chat(choice["message"]):
            yield chunk(_part(choice, delta))
        yield chunk(_part(choice, {}, choice["finish_reason"]))
    if "usage" in page:
        yield chunk(usage=page["usage"])
    yield b"data: [DONE]\n\n"


def _named(events: Iterator[Body]) -> Iterator[bytes]:
    for number, event in enumerate(events):
        data = json.dumps({**event, "sequence_number": number} if "response." in event["type"] else event)
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


def _responses(page: Body) -> Iterator[bytes]:
    return _named(_response_events(page))


def _response_events(page: Body) -> Iterator[Body]:
    begun = {**page, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for index, item in enumerate(page["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {
            **item,
            **{name: value for name, value in (("content", []), ("arguments", "")) if name in item},
        }
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for place, part in enumerate(item.get("content", ())):
            name = "text" if part["type"] == "output_text" else "refusal"
            inside = {**at, "content_index": place}
            kind = f"response.{part['type']}"
            yield {"type": "response.content_part.added", "part": {**part, name: ""}, **inside}
            for piece in _pieces(part[name]):
                yield {"type": f"{kind}.delta", "delta": piece, "logprobs": [], **inside}
            yield {"type": f"{kind}.done", name: part[name], "logprobs": [], **inside}
            yield {"type": "response.content_part.done", "part": part, **inside}
        if "arguments" in item:
            kind = "response.function_call_arguments"
            for piece in _pieces(item["arguments"]):
                yield {"type": f"{kind}.delta", "delta": piece, **at}
            yield {"type": f"{kind}.done", "arguments": item["arguments"], "name": item["name"], **at}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{page['status']}", "response": page}


def _messages(page: Body) -> Iterator[bytes]:
    return _named(_message_events(page))


def _message_events(page: Body) -> Iterator[Body]:
    usage = {"usage": {**page["usage"], "output_tokens": 1}} if "usage" in page else {}
    begun = {**page, "content": [], "stop_reason": None, **usage}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(page["content"]):
        empty: Body = {
            "text": {"text": ""},
            "tool_use": {"input": {}},
            "thinking": {"thinking": "", "signature": ""},
        }
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, **empty[block["type"]]},
        }
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    counted = {"usage": {"output_tokens": page["usage"]["output_tokens"]}} if "usage" in page else {}
    ends = {"stop_reason": page["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ends, **counted}
    yield {"type": "message_stop"}


def _deltas(block: Body) -> Iterator[Body]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in _pieces(block["text"]))
        case "tool_use":
            for piece in _pieces(json.dumps(block["input"])):
                yield {"type": "input_json_delta", "partial_json": piece}
        case "thinking":
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case _:
            pass
