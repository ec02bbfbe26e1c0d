"""Spell a request as the body of a chat completion."""

from collections.abc import Iterator, Mapping
from re import sub
from typing import Any, Literal

from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest
from agentic_trading.llm.providers.tool_calls import TOOL_DESCRIPTION

Dialect = Literal["openai", "compatible"]
"""OpenAI's own API, or a server that speaks an older form of it (llama.cpp, vLLM and the like)."""

_NAME_CHARS = 64


def completion_body(request: ModelRequest, dialect: Dialect, *, logprobs: bool) -> dict[str, Any]:
    """Return the body of `request`; what the request leaves open is not sent.

    The cap is `max_completion_tokens` at OpenAI, whose reasoning models refuse the older `max_tokens`, and
    `max_tokens` elsewhere, because a server that did not know the newer word would write without end. OpenAI is
    asked to keep no copy (`store`) and to bill at the standard tier whatever the project's setting is.
    """
    cap = "max_completion_tokens" if dialect == "openai" else "max_tokens"
    body = {
        "model": request.envelope.model,
        "messages": [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.user},
        ],
        cap: request.max_tokens,
        "temperature": request.temperature,
        "reasoning_effort": request.effort,
        "response_format": _response_format(request),
        "logprobs": logprobs or None,
        **_tool(request),
    }
    if dialect == "openai":
        body |= {"store": False, "service_tier": "default"}
    return {name: value for name, value in body.items() if value is not None}


def _response_format(request: ModelRequest) -> dict[str, Any] | None:
    if request.transport == "json_mode":
        return {"type": "json_object"}
    if request.transport != "native_schema" or request.response_schema is None:
        return None
    schema = request.response_schema
    form = {"name": _name(request), "schema": schema, "strict": takes_strict(schema)}
    return {"type": "json_schema", "json_schema": form}


def _tool(request: ModelRequest) -> dict[str, Any]:
    """Offer the answer tool, for one call; it is demanded where the model takes that."""
    if request.transport != "strict_tool" or request.response_schema is None:
        return {}
    schema = request.response_schema
    function = {
        "name": ANSWER_TOOL,
        "description": TOOL_DESCRIPTION,
        "parameters": schema,
        "strict": takes_strict(schema),
    }
    named = {"type": "function", "function": {"name": ANSWER_TOOL}}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": named if request.forced_tool else "auto",
        "parallel_tool_calls": False,
    }


def _name(request: ModelRequest) -> str:
    """Return the schema's `$id` in the letters that the API allows."""
    name = str(request.envelope.expected_output_schema.get("$id", ""))
    return sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARS] or "answer"


def takes_strict(schema: Mapping[str, Any]) -> bool:
    """Say whether the API holds answers to `schema` to the letter.

    It refuses `strict` for optional properties, `allOf`, a choice at the root and words beside a `$ref`. Such a
    schema is sent as a wish; either way the answer is held against the original one here.
    """
    return "anyOf" not in schema and all(map(_is_strict, _nested(schema)))


def _is_strict(schema: Mapping[str, Any]) -> bool:
    if "allOf" in schema or ("$ref" in schema and len(schema) > 1):
        return False
    return set(schema.get("properties", ())) == set(schema.get("required", ()))


def _nested(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and every schema inside it; names and data are passed over."""
    yield schema
    for keyword in ("properties", "$defs", "definitions"):
        for child in schema.get(keyword, {}).values():
            yield from _nested(child)
    for child in schema.get("anyOf", ()):
        yield from _nested(child)
    if isinstance(schema.get("items"), Mapping):
        yield from _nested(schema["items"])
