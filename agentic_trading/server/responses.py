"""Responses: the fields of a request, and a whole answer as the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentic_trading.server.chat_completions import NO_BOUND, TOOL_OF_PROVIDER
from agentic_trading.server.fields import FieldTable
from agentic_trading.server.messages import event_line

_STATE: Final = "it is a state at the provider, which a replay does not have"

TABLE: Final = FieldTable(
    api="responses",
    ours=frozenset({"model", "stream", "stream_options", "max_output_tokens"}),
    dropped=frozenset({
        "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "store", "service_tier",
    }),
    refused={
        "previous_response_id": _STATE,
        "conversation": _STATE,
        "prompt": _STATE,
        "background": _STATE,
        "background_options": _STATE,
        "context_management": _STATE,
        "image": NO_BOUND,
        "moderation": TOOL_OF_PROVIDER,
        "access_programs": TOOL_OF_PROVIDER,
    },
    caps=("max_output_tokens",),
    tools=frozenset({"function", "custom"}),
    parts=frozenset({"input_text", "output_text", "refusal", "reasoning_text", "summary_text"}),
    items=frozenset({
        None, "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "reasoning",
    }),
)  # fmt: skip

_DELTAS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""The field of a call that comes as a delta, and the name of its events."""


def response_events(body: Mapping[str, Any]) -> bytes:
    """Return a whole answer as the events of a stream. Equal answers have equal bytes."""
    return b"".join(
        event_line({**event, "sequence_number": number}) for number, event in enumerate(_events(body))
    )


def _events(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(body["output"]):
        yield from _item_events(item, {"output_index": index})
    ends = "completed" if body.get("status") == "completed" else "incomplete"
    yield {"type": f"response.{ends}", "response": body}


def _item_events(item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind, inside = item["type"], {**at, "item_id": item.get("id", "")}
    field, name = _DELTAS.get(kind, ("", ""))
    begun: dict[str, Any] = {**item}
    if kind == "message":
        begun |= {"content": [], "status": "in_progress"}
    elif field:
        begun |= {field: "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": begun, **at}
    if kind == "message":
        for place, part in enumerate(item["content"]):
            yield from _part_events(part, {**inside, "content_index": place})
    elif field:
        yield {"type": f"{name}.delta", "delta": item[field], **inside}
        # The name of the function is in the events of its arguments only.
        called = {"name": item["name"]} if kind == "function_call" else {}
        yield {"type": f"{name}.done", field: item[field], **called, **inside}
    yield {"type": "response.output_item.done", "item": item, **at}


def _part_events(part: Mapping[str, Any], inside: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    is_text = part["type"] == "output_text"
    field, name = ("text", "response.output_text") if is_text else ("refusal", "response.refusal")
    logprobs = {"logprobs": part.get("logprobs") or []} if is_text else {}
    yield {"type": "response.content_part.added", "part": {**part, field: ""}, **inside}
    yield {"type": f"{name}.delta", "delta": part.get(field, ""), **logprobs, **inside}
    yield {"type": f"{name}.done", field: part.get(field, ""), **logprobs, **inside}
    yield {"type": "response.content_part.done", "part": part, **inside}
