"""The Messages API: request arguments, enforceable schemas, and answers."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import ValidationError

from agentic_trading.canonical import member_of, members_of, quoted
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.fields import json_of
from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest, ModelResponse
from agentic_trading.llm.providers import hosted
from agentic_trading.llm.providers.errors import (
    ErrorForm,
    body_text,
    error_in,
    error_in_answer,
    page_in,
    unusable_answer,
)
from agentic_trading.llm.providers.folds import stream_fields
from agentic_trading.llm.result import Usage
from agentic_trading.llm.verbatim import ASKED, VerbatimRequest

_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_FORMATS: Final = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
})  # fmt: skip


def enforceable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` as the vendor's own SDK rewrites it.

    Objects are closed, and bounds become text in the description.

    Raises:
        ValueError: If a part has neither a type nor a choice.
        ProviderError: Of kind `schema_refused`, not sent, if a part has a type that the API does not support,
            such as several types, `true` or `false`.

    """
    if not isinstance(schema, Mapping):
        raise _unspelled(f"a schema that is {quoted(schema, 200)}")
    rest = dict(schema)
    made: dict[str, Any] = {}
    if (definitions := rest.pop("$defs", None)) is not None:
        made["$defs"] = _each(definitions)
    if (reference := rest.pop("$ref", None)) is not None:
        return made | {"$ref": reference}
    kind = _take_literals(rest, made, rest.pop("type", None))
    _take_choices(rest, made, kind)
    if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
        raise _unspelled(f"the type {quoted(kind, 200)}")
    texts = {name: text for name in ("description", "title") if (text := rest.pop(name, None)) is not None}
    if kind in _TAKEN_BY:
        _TAKEN_BY[kind](rest, made)
    if rest:
        words = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        texts["description"] = f"{texts['description']}\n\n{words}" if "description" in texts else words
    return made | texts


def _take_literals(rest: dict[str, Any], made: dict[str, Any], kind: Any) -> Any:
    """Move `enum` and `const`. Return the type, or None if they replace it."""
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_primitive, values)):
        made["enum"] = rest.pop("enum")
    if "const" in rest and _is_primitive(rest["const"]):
        made["const"] = rest.pop("const")
    return None if made.keys() & {"enum", "const"} else kind


def _take_choices(rest: dict[str, Any], made: dict[str, Any], kind: Any) -> None:
    """Move the choices, as one of the two that the API supports, or the type."""
    found = [(name, rest.pop(name, None)) for name in ("anyOf", "oneOf", "allOf")]
    choice, variants = next(((name, each) for name, each in found if isinstance(each, list)), ("", []))
    if choice:
        made["allOf" if choice == "allOf" else "anyOf"] = [enforceable_schema(one) for one in variants]
    elif kind is not None:
        made["type"] = kind
    elif not made.keys() & {"enum", "const"}:
        raise ValueError("a schema has a type, anyOf, oneOf, allOf, or an enum or const of plain values")


def _take_format(rest: dict[str, Any], made: dict[str, Any]) -> None:
    form = rest.pop("format", None)
    if isinstance(form, str) and form in _FORMATS:
        made["format"] = form
    elif form:
        rest["format"] = form


def _take_properties(rest: dict[str, Any], made: dict[str, Any]) -> None:
    made["properties"] = _each(rest.pop("properties", {}))
    rest.pop("additionalProperties", None)
    made["additionalProperties"] = False
    if (required := rest.pop("required", None)) is not None:
        made["required"] = required


def _take_items(rest: dict[str, Any], made: dict[str, Any]) -> None:
    if (items := rest.pop("items", None)) is not None:
        made["items"] = enforceable_schema(items)
    least = rest.pop("minItems", None)
    if least == 0 or least == 1:
        made["minItems"] = least
    elif least is not None:
        rest["minItems"] = least


_TAKEN_BY: Final = {"object": _take_properties, "array": _take_items, "string": _take_format}


def _each(schemas: Any) -> dict[str, Any]:
    if not isinstance(schemas, Mapping):
        raise _unspelled(f"schemas that are {quoted(schemas, 200)}")
    return {name: enforceable_schema(schema) for name, schema in schemas.items()}


def _is_primitive(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _unspelled(what: str) -> ProviderError:
    message = f"the API does not enforce {what}; allowed is one of {', '.join(sorted(_TYPES))}"
    return ProviderError(FailureKind.SCHEMA_REFUSED, message, sent=False)


API = "https://api.anthropic.com"
VERSION = "2026-10-21"
WITH_SAMPLING = "2023-06-01"
"""The last API version with a temperature. Later versions refuse it."""

ERRORS = ErrorForm(
    vendor="anthropic",
    request_id="request-id",
    # By words, because the API has no code for it: "The compiled grammar is too large", "Schema is too
    # complex", "Schemas contains too many optional parameters (31)", "too many parameters with union types",
    # "tools.0.custom.input_schema: ...".
    schema_words=re.compile(
        r"grammar|schemas? (?:is|are|contains?) too|too many (?:\w+ )?parameters|output_config\.format"
        r"|\btools?\b|\btool_choice\b|\binput_schema\b|\bstrict\b",
        re.IGNORECASE,
    ),
    hints={
        FailureKind.AUTH_ERROR: "allowed is a valid key with access to the model",
        FailureKind.BILLING: "asking again does not help; raise the limit or pay",
        FailureKind.INVALID_REQUEST: "the same request will be refused again",
    },
)


def create_arguments(request: ModelRequest, *, ttl: hosted.PromptCacheTtl) -> dict[str, Any]:
    """Return the arguments of `messages.create`.

    Raises:
        ValueError: If the schema cannot be sent.

    """
    return {
        **count_arguments(request, ttl=ttl),
        "max_tokens": request.max_tokens,
        "service_tier": "standard_only",  # because another tier has another price than the reserved one
        **_sampling(request),
    }


def count_arguments(request: ModelRequest, *, ttl: hosted.PromptCacheTtl) -> dict[str, Any]:
    """Return the arguments of `messages.count_tokens`: all that is billed as input."""
    return {
        "model": request.envelope.model,
        "system": [_marked({"type": "text", "text": request.system}, ttl)],
        "messages": [{"role": "user", "content": request.user}],
        **_output(request),
        **_tools(request),
        **_thinking(request),
    }


def sendable(arguments: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of a request.

    Raises:
        ProviderError: Not sent, if the schema cannot be sent.

    """
    try:
        return arguments()
    except ValueError as e:
        message = f"the request cannot be sent: {e}"
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from e


_FREE = frozenset({"stop_sequences", "temperature", "top_k", "top_p", "cache_control"})
"""The fields that add no input tokens. The endpoint for counts refuses some of them."""

# Without the known free ones, so that a new field is counted. A count that left it out would be too low.
_COUNTED = ASKED["messages"] - _FREE


def verbatim_message(request: ModelRequest, asked: VerbatimRequest) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a client's own request, with model, cap and tier of the envelope."""
    fields = {
        "model": request.envelope.model,
        "max_tokens": request.max_tokens,
        "service_tier": "standard_only",
        **stream_fields(request),
    }
    return asked.with_fields(fields), _client_headers(asked)


def verbatim_count(request: ModelRequest, asked: VerbatimRequest) -> tuple[bytes, dict[str, str]]:
    """Return the same for a count of its input tokens, with the fields that are counted."""
    body = asked.only(_COUNTED).with_fields({"model": request.envelope.model})
    return body, _client_headers(asked)


def _client_headers(asked: VerbatimRequest) -> dict[str, str]:
    # Without a version, the one that the vendor's SDK names: the request was written for it.
    headers = {"anthropic-version": asked.version or WITH_SAMPLING}
    return headers | ({"anthropic-beta": asked.betas} if asked.betas else {})


def _marked(block: dict[str, Any], ttl: hosted.PromptCacheTtl) -> dict[str, Any]:
    return block | {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else block


def _output(request: ModelRequest) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.transport == "native_schema" and request.response_schema is not None:
        schema = _enforceable(json_of(request.response_schema))
        config["format"] = {"type": "json_schema", "schema": schema}
    if request.effort is not None:
        config["effort"] = request.effort
    return {"output_config": config} if config else {}


def _tools(request: ModelRequest) -> dict[str, Any]:
    """Offer the tools, for one call in total.

    The call is required if the answer is a call and the model allows it.
    """
    tools: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in request.tools
    ]
    if request.has_answer_tool and request.response_schema is not None:
        schema = _enforceable(json_of(request.response_schema))
        answer = {
            "name": ANSWER_TOOL,
            "description": hosted.TOOL_DESCRIPTION,
            "strict": True,
            "input_schema": schema,
        }
        tools.insert(0, answer)
    if not tools:
        return {}
    # With a thinking budget, a call cannot be forced, because the API refuses the request.
    demanded = request.demanded_call if request.thinking_budget == 0 else ""
    choices = {"": {"type": "auto"}, "answer": {"type": "tool", "name": ANSWER_TOOL}, "any": {"type": "any"}}
    return {"tools": tools, "tool_choice": {**choices[demanded], "disable_parallel_tool_use": True}}


@lru_cache(maxsize=256)
def _enforceable(schema_json: bytes) -> dict[str, Any]:
    return enforceable_schema(orjson.loads(schema_json))


def _thinking(request: ModelRequest) -> dict[str, Any]:
    """Request thinking if the envelope does: with the request's budget, else adaptive.

    Otherwise the field is left out, because some models always think and refuse to turn it off.
    """
    if request.thinking_budget > 0:
        return {"thinking": {"type": "enabled", "budget_tokens": request.thinking_budget}}
    if request.envelope.budget.thinking_budget > 0 and request.effort is not None:
        return {"thinking": {"type": "adaptive", "display": "omitted"}}
    return {}


def _sampling(request: ModelRequest) -> dict[str, Any]:
    """Send a temperature with the old API version.

    The SDK has no parameter for it any more.
    """
    if request.temperature is None:
        return {}
    return {
        "extra_body": {"temperature": request.temperature},
        "extra_headers": {"anthropic-version": WITH_SAMPLING},
    }


def read_message(reply: hosted.HttpReply, *, offers_tools: bool = False) -> ModelResponse:
    """Return the answer in a body: all its text, without thinking.

    Refusals and answers that were cut at the cap are returned too, with their stop reason. A usage that
    cannot be read makes the answer unmetered.

    Args:
        reply: The reply.
        offers_tools: Tools were offered. If there is a call, its input is then the text, with all digits. If
            the stop reason is a call and there is none, the text is empty.

    Raises:
        ProviderError: If the answer waits for a tool that was not offered or is incomplete, or the body is an
            error or not a message. The request was sent. The usage is charged if it can be read.

    """
    message = _message(reply)
    bill = hosted.bill_of(message.get("usage"))
    served = message.get("model")
    model = served if isinstance(served, str) else ""
    says_any = bool(message.get("content"))  # in any form, because all of it is billed as output

    def failed(kind: FailureKind, why: str) -> ProviderError:
        usage = _usage(message, bill, has_answer=says_any)
        return unusable_answer(kind, why, reply, usage, bill, model=model)

    if (error := error_in(message)) is not None:
        usage = (
            _usage(message, bill, has_answer=says_any) if hosted.counts_any(message.get("usage")) else None
        )
        raise error_in_answer(ERRORS, error, reply, usage, bill, model=model)
    if not isinstance(message.get("content"), list | str | dict):
        why = "the answer is no message; is this the address of the Messages API?"
        raise failed(FailureKind.SERVER_ERROR, why)
    reason = hosted.word_of(message.get("stop_reason"))
    try:
        called, beside = _text(message, reply, reason, offers_tools=offers_tools)
    except (ValueError, RecursionError) as e:
        raise failed(FailureKind.SERVER_ERROR, f"the answer cannot be read: {e}") from e
    return ModelResponse(
        text=called.text,
        stop_reason=reason,
        usage=_usage(message, bill, has_answer=bool(called.text)),
        model=model,
        provider_request_id=reply.request_id,
        provider_response_id=hosted.response_id_of(message.get("id")),
        beside=beside,
        tool_called=called.tool_called,
    )


def whole_message(reply: hosted.HttpReply) -> ModelResponse:
    """Return the whole body of a message as the answer, with its usage.

    Refusals, cut answers and calls are returned too, because their client reads them.

    Raises:
        ProviderError: If the body is an error, or not a message. The request was sent. The usage is charged
            if it can be read.

    """
    message = _message(reply)
    bill = hosted.bill_of(message.get("usage"))
    model = hosted.word_of(message.get("model"))
    usage = _usage(message, bill, has_answer=bool(message.get("content")))
    if (error := error_in(message)) is not None:
        said = usage if hosted.counts_any(message.get("usage")) else None
        raise error_in_answer(ERRORS, error, reply, said, bill, model=model)
    if not isinstance(message.get("content"), list):
        why = "the answer is no message; is this the address of the Messages API?"
        raise unusable_answer(FailureKind.SERVER_ERROR, why, reply, usage, bill, model=model)
    return ModelResponse(
        text=body_text(reply, usage, bill, model=model),
        stop_reason=hosted.word_of(message.get("stop_reason")),
        usage=usage,
        model=model,
        provider_request_id=reply.request_id,
        provider_response_id=hosted.response_id_of(message.get("id")),
    )


def _text(
    message: Mapping[str, Any], reply: hosted.HttpReply, reason: str, *, offers_tools: bool
) -> tuple[hosted.CallsText, str]:
    """Return the text of the answer, and the text next to its calls.

    Raises `ValueError` if it is unusable.
    """
    content, word = message["content"], reason.lower()
    text = hosted.text_of_parts(content).text
    has_call = isinstance(content, list) and any(block.get("type") == "tool_use" for block in content)
    calls_tool = word == "tool_use" or has_call
    if word in hosted.GIVEN_UP:
        raise ValueError(f"it was broken off (stop_reason {reason!r})")
    if word == "pause_turn" or (calls_tool and not offers_tools):
        raise ValueError(f"it waits for a tool ({reason}), and none was offered")
    if not calls_tool or word == "refusal":
        return hosted.CallsText(text), ""
    calls = calls_in(reply.body)
    return hosted.text_of_calls(calls) if calls else hosted.CallsText(""), text


def _message(reply: hosted.HttpReply) -> Mapping[str, Any]:
    try:
        message = page_in(reply.body)
    except (ValueError, RecursionError) as e:
        raise unusable_answer(
            FailureKind.SERVER_ERROR, f"the answer is no JSON: {e}", reply, None, hosted.NO_BILL
        ) from e
    if not isinstance(message, dict):
        why = "the answer is no message; is this the address of the Messages API?"
        raise unusable_answer(FailureKind.SERVER_ERROR, why, reply, None, hosted.NO_BILL)
    return message


def _usage(message: Mapping[str, Any], bill: hosted.Bill, *, has_answer: bool) -> Usage:
    """Return the usage of a message. If it cannot be read, `unmetered` is the reason."""
    try:
        usage = usage_of(message["usage"], bill)
    except (AttributeError, KeyError, TypeError, ValidationError):
        why = "the server reports no usage that can be read"
        return Usage(unmetered=why, bill_nusd=bill.nusd, bill_problem=bill.problem)
    if usage.total_input_tokens and (usage.output_tokens or not has_answer):
        return usage
    why = f"the server reports {usage.total_input_tokens} tokens in and {usage.output_tokens} out for a call that it answered"
    return Usage(unmetered=why, bill_nusd=bill.nusd, bill_problem=bill.problem)


def count_in(reply: hosted.HttpReply) -> int | None:
    """Return the count of input tokens in a body, or None."""
    try:
        count = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    tokens = count.get("input_tokens") if isinstance(count, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


def usage_of(billed: Mapping[str, Any], bill: hosted.Bill = hosted.NO_BILL) -> Usage:
    """Return the tokens by price class. Thinking is part of the output.

    Cache writes without a duration count as the more expensive kind. If there is more thinking than output,
    the output is the sum of both.

    Raises:
        ValidationError: If a count is not a whole number.
        KeyError: If a count is missing.

    """
    for_5m, for_1h = _written(billed)
    details = billed.get("output_tokens_details")
    output, thinking = billed["output_tokens"], (details.get("thinking_tokens") or 0) if details else 0
    counted = {
        "input_tokens": billed["input_tokens"],
        "output_tokens": output + thinking if thinking > output else output,
        "thinking_tokens": thinking,
        "cache_read_tokens": billed.get("cache_read_input_tokens") or 0,
        "cache_write_5m_tokens": for_5m,
        "cache_write_1h_tokens": for_1h,
        "service_tier": billed.get("service_tier") or "",
        "speed": billed.get("speed") or "",
        "inference_geo": billed.get("inference_geo") or "",
        "bill_nusd": bill.nusd,
        "bill_problem": bill.problem,
    }
    return Usage.model_validate(counted, strict=True)


def _written(billed: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens written to the cache for five minutes and for an hour.

    The API reports the sum, or both parts.
    """
    written = billed.get("cache_creation_input_tokens") or 0
    parts = billed.get("cache_creation")
    if parts is None:
        return 0, written
    for_5m = parts.get("ephemeral_5m_input_tokens") or 0
    return for_5m, max(written - for_5m, parts.get("ephemeral_1h_input_tokens") or 0)


def calls_in(body: bytes) -> list[hosted.ToolCall]:
    """Return the tool calls of a message in their order, with their unparsed input.

    Raises:
        ValueError: If it is not a message, or has a needed part twice.
        RecursionError: If it is nested too deeply.

    """
    # Cut out of the body, because a parsed number has lost digits.
    message = body.decode(json.detect_encoding(body), "surrogatepass")
    blocks = [block for _, block in members_of(member_of(message, "content"))]
    return [
        hosted.ToolCall(name=str(json.loads(member_of(block, "name"))), arguments=member_of(block, "input"))
        for block in blocks
        if json.loads(member_of(block, "type")) == "tool_use"
    ]
