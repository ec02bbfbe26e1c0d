"""Chat completions: the body of a request, and the body of an answer read as a `ModelResponse`."""

import json
import math
from collections.abc import Iterator, Mapping
from re import sub
from typing import Annotated, Any, Literal, Never

from pydantic import BaseModel, Field, ValidationError

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest, ModelResponse
from agentic_trading.llm.providers.bills import NO_BILL, Bill, BillUnit, bill_of
from agentic_trading.llm.providers.hosted import (
    TOOL_DESCRIPTION,
    CallsText,
    HttpReply,
    ToolCall,
    text_of_calls,
)
from agentic_trading.llm.providers.openai.usage import UnmeteredError, billed_usage

Dialect = Literal["openai", "compatible"]
"""OpenAI's own API, or a server that speaks an older form of it (llama.cpp, vLLM and the like)."""

_NAME_CHARS = 64


def completion_body(request: ModelRequest, dialect: Dialect, *, logprobs: bool) -> dict[str, Any]:
    """Return the body of `request`; what the request leaves open is not sent.

    The cap is `max_completion_tokens` at OpenAI, whose reasoning models refuse the older `max_tokens`, and
    `max_tokens` elsewhere, because a server that did not know the newer name would write without end. OpenAI is
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
        **_tools(request),
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


def _tools(request: ModelRequest) -> dict[str, Any]:
    """Offer the tools for one call in all; it is demanded where the answer is one, and the model takes that."""
    functions: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in request.tools
    ]
    if request.has_answer_tool and request.response_schema is not None:
        schema = request.response_schema
        functions.insert(
            0,
            {
                "name": ANSWER_TOOL,
                "description": TOOL_DESCRIPTION,
                "parameters": schema,
                "strict": takes_strict(schema),
            },
        )
    if not functions:
        return {}
    named = {"type": "function", "function": {"name": ANSWER_TOOL}}
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": {"": "auto", "answer": named, "any": "required"}[request.demanded_call],
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
    """Yield `schema` and every schema inside it; names and data are skipped."""
    yield schema
    for keyword in ("properties", "$defs", "definitions"):
        for child in schema.get(keyword, {}).values():
            yield from _nested(child)
    for child in schema.get("anyOf", ()):
        yield from _nested(child)
    if isinstance(schema.get("items"), Mapping):
        yield from _nested(schema["items"])


_CALLS = frozenset({"tool_calls", "function_call"})
_BROKEN_OFF = frozenset({"abort", "error"})  # vLLM's and some routers' words for an answer that was given up


class _Logprob(BaseModel, frozen=True):
    logprob: float


class _Logprobs(BaseModel, frozen=True):
    content: list[_Logprob] | None = None


class _Message(BaseModel, frozen=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: Any = None


class _Choice(BaseModel, frozen=True):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chat(BaseModel, frozen=True):
    """A chat completion as far as it is used; servers leave out and add what they like."""

    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: Any = None
    id: str | None = None
    model: str | None = None
    service_tier: str | None = None


def model_response(
    answered: HttpReply, *, offers_tools: bool = False, bill_unit: BillUnit = "known"
) -> ModelResponse:
    """Return the answer that a body holds; its stop reason is the API's own word, or `refusal` for a refusal.

    `offers_tools` says that tools were offered: the text is then the input of the call, where there is one,
    whatever the stop reason (a demanded call ends in `stop`). An answer that says that it calls a tool, and holds no
    call that was offered, has no text. `bill_unit` is how the server's own bill is read (see `bill_of`). Raises `ProviderError`, with the request sent, for a body that is no chat
    completion, an answer that was broken off, and one with a usage that no bill can be made from.
    """
    request_id = answered.request_id
    chat, bill = _read(answered, bill_unit)
    choice = chat.choices[0]
    reason = choice.finish_reason or ""
    if not reason or reason in _BROKEN_OFF:
        message = f"the answer was broken off (finish_reason {reason!r})"
        _fail(FailureKind.SERVER_ERROR, message, request_id, bill)
    refusal = choice.message.refusal
    called, beside = _text(choice, reason, offers_tools=offers_tools)
    has_answer = bool(refusal or choice.message.content or choice.message.tool_calls)
    try:
        tier = chat.service_tier or ""
        usage = billed_usage(chat.usage, service_tier=tier, has_answer=has_answer, bill=bill)
    except UnmeteredError as e:
        message = f"the call cannot be metered, and is charged at what was set aside for it: {e}"
        _fail(FailureKind.INTERNAL_ERROR, message, request_id, bill)
    return ModelResponse(
        text=refusal or called.text,
        stop_reason="refusal" if refusal else reason,
        usage=usage,
        model=chat.model or "",
        provider_request_id=request_id,
        provider_response_id=chat.id or "",
        logprobs=_logprobs(choice),
        beside=beside,
        tool_called="" if refusal else called.tool_called,
    )


def _text(choice: _Choice, reason: str, *, offers_tools: bool) -> tuple[CallsText, str]:
    """Return the answer's text and what stands beside it."""
    content, calls = choice.message.content or "", choice.message.tool_calls
    if offers_tools and calls:
        return text_of_calls([_call(one) for one in (calls if isinstance(calls, list) else [calls])]), content
    return (CallsText(""), content) if reason in _CALLS else (CallsText(content), "")


def _call(call: Any) -> ToolCall:
    """Return a call as the API spells it; one in another form than the API's is a call of nothing that was offered."""
    function = call.get("function") if isinstance(call, dict) else None
    match function:
        case {"name": str(name), "arguments": str(arguments)}:
            return ToolCall(name, arguments)
        case _:
            return ToolCall("", json.dumps(call))


def _read(answered: HttpReply, bill_unit: BillUnit) -> tuple[_Chat, Bill]:
    bill = NO_BILL
    try:  # not pydantic's own reader: it refuses half a surrogate pair, which an answer may end in
        page = json.loads(answered.body)
        bill = bill_of(page.get("usage") if isinstance(page, dict) else None, bill_unit)
        return _Chat.model_validate(page), bill
    except (ValidationError, ValueError, RecursionError):
        message = "what came back is no chat completion; check the base URL"
        _fail(FailureKind.SERVER_ERROR, message, answered.request_id, bill)


def _logprobs(choice: _Choice) -> tuple[float, ...]:
    """Return those that are numbers: an impossible token is reported as minus infinity, which no record spells."""
    content = choice.logprobs.content if choice.logprobs else None
    return tuple(token.logprob for token in content or () if math.isfinite(token.logprob))


def _fail(kind: FailureKind, message: str, request_id: str, bill: Bill = NO_BILL) -> Never:
    billed = bill.nusd or 0
    raise ProviderError(kind, message, sent=True, provider_request_id=request_id, bill_nusd=billed)
