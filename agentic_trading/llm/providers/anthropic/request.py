"""Spell a `ModelRequest` as the Messages API takes it.

What is put first, and what is cached: the API caches a prefix, so the part that many requests share comes first. That
is the answer tool, where there is one (the API itself puts tools before all else), then the system text (instructions
and, where it is told in words, the schema) as one block, with a mark for the cache at its end. The user message
(context and evidence) differs from call to call; it comes after the mark and is not cached. The schema of a response
format stands beside both, outside of the marked text.

Writing to the cache costs a quarter more than plain input for five minutes and twice as much for an hour; a prefix
under the model's minimum is not cached and costs nothing extra.
"""

from functools import lru_cache
from typing import Any

import orjson
from anthropic import transform_schema

from agentic_trading.llm.json_data import json_of
from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest
from agentic_trading.llm.providers.anthropic.prompt_cache import PrefixTtl
from agentic_trading.llm.providers.tool_calls import TOOL_DESCRIPTION

WITH_SAMPLING = "2023-06-01"
"""The last version of the API whose requests have a temperature; later ones refuse it at any value."""


def message_of(request: ModelRequest, *, ttl: PrefixTtl) -> dict[str, Any]:
    """Return the arguments of `messages.create`. Raises `ValueError` for a schema that cannot be sent."""
    return {
        **counted_of(request, ttl=ttl),
        "max_tokens": request.max_tokens,
        "service_tier": "standard_only",  # another tier has another price than the one that was reserved
        **_sampling(request),
    }


def counted_of(request: ModelRequest, *, ttl: PrefixTtl) -> dict[str, Any]:
    """Return the arguments of `messages.count_tokens`: what is billed as input."""
    return {
        "model": request.envelope.model,
        "system": [_marked({"type": "text", "text": request.system}, ttl)],
        "messages": [{"role": "user", "content": request.user}],
        **_output(request),
        **_tool(request),
        **_thinking(request),
    }


def _marked(block: dict[str, Any], ttl: PrefixTtl) -> dict[str, Any]:
    return block | {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else block


def _output(request: ModelRequest) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.transport == "native_schema" and request.response_schema is not None:
        schema = _enforceable(json_of(request.response_schema))
        config["format"] = {"type": "json_schema", "schema": schema}
    if request.effort is not None:
        config["effort"] = request.effort
    return {"output_config": config} if config else {}


def _tool(request: ModelRequest) -> dict[str, Any]:
    """Offer the answer tool, once; it is demanded where the model takes that, which none does with a thinking budget."""
    if request.transport != "strict_tool" or request.response_schema is None:
        return {}
    tool = {
        "name": ANSWER_TOOL,
        "description": TOOL_DESCRIPTION,
        "strict": True,
        "input_schema": _enforceable(json_of(request.response_schema)),
    }
    is_forced = request.forced_tool and request.thinking_budget == 0
    choice = {"type": "tool", "name": ANSWER_TOOL} if is_forced else {"type": "auto"}
    return {"tools": [tool], "tool_choice": {**choice, "disable_parallel_tool_use": True}}


@lru_cache(maxsize=256)
def _enforceable(schema_json: bytes) -> dict[str, Any]:
    return transform_schema(orjson.loads(schema_json))


def _thinking(request: ModelRequest) -> dict[str, Any]:
    """Ask for thinking where the envelope does: by a budget where the request has one, else adaptive, by effort.

    Where it does not, nothing is said: some models always think, and refuse a word against it.
    """
    if request.thinking_budget > 0:
        return {"thinking": {"type": "enabled", "budget_tokens": request.thinking_budget}}
    if request.envelope.budget.thinking_budget > 0 and request.effort is not None:
        return {"thinking": {"type": "adaptive", "display": "omitted"}}
    return {}


def _sampling(request: ModelRequest) -> dict[str, Any]:
    """Send a temperature as only the old version takes it; the SDK has no parameter for it any more."""
    if request.temperature is None:
        return {}
    return {
        "extra_body": {"temperature": request.temperature},
        "extra_headers": {"anthropic-version": WITH_SAMPLING},
    }
