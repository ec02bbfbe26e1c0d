"""What is said to llama.cpp's server: a request as its chat body, its stream of chunks as an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage

SEED = 1
PROOF = "~"
"""What the answer to `proof_body` is, as long as the grammar holds it."""

_START = "start: "
_TOO_LONG = "exceed_context_size_error"

Chunk = Mapping[str, Any]


def local_chat_body(request: ModelRequest) -> dict[str, Any]:
    """Return the body of a request: equal requests have equal bodies.

    The prompt cache is off: a prompt that is cached in part is computed in other pieces, and may round, and so
    answer, differently. A request without a temperature is answered greedily.
    """
    body: dict[str, Any] = {
        "messages": messages(request),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature or 0.0,
        "seed": SEED,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    if request.response_schema is not None:
        body["grammar"] = grammar(request.response_schema)
    return body


def messages(request: ModelRequest) -> list[dict[str, str]]:
    """Return the system text and the one user message."""
    return [{"role": "system", "content": request.system}, {"role": "user", "content": request.user}]


def grammar(schema: Mapping[str, Any]) -> str:
    """Return the LLGuidance grammar of a schema's JSON, its properties in their order and without white space.

    White space costs tokens, and a small model may write nothing else until its cap.
    """
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return f"%llguidance {{}}\n{_START}%json {orjson.dumps(compact).decode()}"


def proof_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request that shows whether the grammar of `body` is one that the server can hold.

    Where it cannot (a pattern it does not know, bounds that nothing fits), it answers without any and says nothing.
    The same grammar behind one sign, asked for one token, must begin with that sign.
    """
    proof = body["grammar"].replace(_START, f'{_START}"{PROOF}" ', 1)
    return {**body, "messages": [{"role": "user", "content": "."}], "max_tokens": 1, "grammar": proof}


@dataclass(slots=True)
class StreamedCompletion:
    """An answer as its chunks come; `stop` is asked before each one is taken."""

    stop: Callable[[], bool]
    text: list[str] = field(default_factory=list)
    stop_reason: str = ""
    model: str = ""
    usage: Usage | None = None
    error: Mapping[str, Any] | None = None

    def take(self, chunk: Chunk) -> bool:
        """Take the next chunk; returns whether the server shall stop."""
        if self.stop():
            return True
        self.error = chunk.get("error", self.error)
        self.model = chunk.get("model", self.model)
        for choice in chunk.get("choices", []):
            self.text.append(choice["delta"].get("content") or "")
            self.stop_reason = choice["finish_reason"] or self.stop_reason
        if "usage" in chunk:
            self.usage = _usage(chunk["usage"])
        return False


def failure(error: Mapping[str, Any]) -> ProviderError:
    """Return what an error of the server means: a request that it refuses was never worked on."""
    message = str(error.get("message", "the server gave no reason"))
    if error.get("type") == _TOO_LONG:
        message = f"{message}; shorten the request, or give the model a larger context"
    refused = 400 <= int(error.get("code", 500)) < 500
    kind = FailureKind.INVALID_REQUEST if refused else FailureKind.SERVER_ERROR
    return ProviderError(kind, message, sent=not refused)


def _usage(told: Mapping[str, Any]) -> Usage:
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(
        input_tokens=told["prompt_tokens"] - cached,
        cache_read_tokens=cached,
        output_tokens=told["completion_tokens"],
    )
