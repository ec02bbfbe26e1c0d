"""Chat completions: the fields of a request, and a whole answer as the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentic_trading.llm.verbatim import event_json
from agentic_trading.server.fields import FieldTable

NO_BOUND: Final = "its tokens have no bound"
TOOL_OF_PROVIDER: Final = "it runs at the provider, at a price that no budget bounds"

TABLE: Final = FieldTable(
    api="chat_completions",
    ours=frozenset({"model", "stream", "stream_options", "max_completion_tokens", "max_tokens"}),
    dropped=frozenset({
        "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "store", "service_tier",
    }),
    refused={
        "audio": NO_BOUND,
        "modalities": NO_BOUND,
        "prediction": "rejected tokens of a prediction are billed without a bound",
        "web_search_options": TOOL_OF_PROVIDER,
        "moderation": TOOL_OF_PROVIDER,
    },
    caps=("max_completion_tokens", "max_tokens"),
    tools=frozenset({"function", "custom"}),
    parts=frozenset({"text", "refusal"}),
)  # fmt: skip

_HEAD: Final = ("id", "created", "model", "system_fingerprint", "service_tier")


def chat_events(body: Mapping[str, Any], *, include_usage: bool) -> bytes:
    """Return a whole answer as the events of a stream. Equal answers have equal bytes."""
    head = {name: body[name] for name in _HEAD if name in body} | {"object": "chat.completion.chunk"}
    # With the usage at the end, all chunks before it have an empty one.
    tail: dict[str, Any] = {"usage": None} if include_usage else {}
    chunks = [{**head, "choices": [part], **tail} for choice in body["choices"] for part in _parts(choice)]
    if include_usage:
        chunks.append({**head, "choices": [], "usage": body.get("usage")})
    return b"".join(b"data: %b\n\n" % event_json(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def _parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one answer."""
    message = choice["message"]

    def part(delta: Mapping[str, Any], reason: Any = None, logprobs: Any = None) -> dict[str, Any]:
        return {"index": choice["index"], "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    content = message.get("content")
    yield part({"role": message.get("role", "assistant"), "content": None if content is None else ""})
    others = {
        name: value
        for name, value in message.items()
        if name not in {"role", "content", "tool_calls"} and value not in (None, [])
    }
    if others:
        yield part(others)
    if content or choice.get("logprobs") is not None:
        yield part({"content": content} if content else {}, logprobs=choice.get("logprobs"))
    for place, call in enumerate(message.get("tool_calls") or ()):
        yield part({"tool_calls": [{"index": place, **call}]})
    yield part({}, choice.get("finish_reason"))
