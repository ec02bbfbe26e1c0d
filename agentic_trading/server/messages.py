"""Messages: the fields of a request, and a whole answer as the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentic_trading.llm.verbatim import event_json
from agentic_trading.server.fields import FieldTable

TABLE: Final = FieldTable(
    api="messages",
    ours=frozenset({"model", "stream", "max_tokens"}),
    dropped=frozenset({"metadata", "service_tier", "user_profile_id"}),
    refused={
        "container": "it is a state at the provider, which a replay does not have",
        "mcp_servers": "tools of these servers run at the provider, at a price that no budget bounds",
        "inference_geo": "it has a price of its own",
        "speed": "it has a price of its own",
        "diagnostics": "it is a state at the provider, which a replay does not have",
        "workspace_id": "the workspace is that of the provider's key",
    },
    caps=("max_tokens",),
    tools=frozenset({None, "custom"}),
    parts=frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking"}),
)

_EMPTY: Final[Mapping[str, Mapping[str, Any]]] = {
    "text": {"text": ""},
    "tool_use": {"input": {}},
    "thinking": {"thinking": "", "signature": ""},
}
"""The fields of a block that come as deltas, as they are at its start."""

_ENDS: Final = ("stop_reason", "stop_sequence", "stop_details")
"""The fields of a message that come with its end."""


def message_events(body: Mapping[str, Any]) -> bytes:
    """Return a whole answer as the events of a stream. Equal answers have equal bytes."""
    return b"".join(event_line(event) for event in _events(body))


def event_line(event: Mapping[str, Any]) -> bytes:
    """Return an event of a stream, named by its type."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), event_json(event))


def _events(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    usage = body.get("usage") or {}
    ends = {name: body.get(name) for name in _ENDS}
    begun: dict[str, Any] = {
        "content": [],
        **dict.fromkeys(ends),
        "usage": {**usage, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": {**body, **begun}}
    for index, block in enumerate(body["content"]):
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, **_EMPTY.get(block["type"], {})},
        }
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": ends, "usage": usage}
    yield {"type": "message_stop"}


def _deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield {"type": "text_delta", "text": block["text"]}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": event_json(block["input"]).decode()}
        case "thinking":
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block.get("signature", "")}
        case _:  # it is whole at its start
            return
