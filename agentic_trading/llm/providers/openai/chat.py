"""Chat completions: the body of a request, and the body of an answer read as a `ModelResponse`."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.fields import LARGEST_COUNT
from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest, ModelResponse
from agentic_trading.llm.providers.bills import Bill, BillUnit, bill_of
from agentic_trading.llm.providers.errors import (
    ErrorForm,
    error_in,
    error_in_answer,
    page_in,
    unusable_answer,
)
from agentic_trading.llm.providers.hosted import (
    GIVEN_UP,
    TOOL_DESCRIPTION,
    CallsText,
    HttpReply,
    ToolCall,
    counts_any,
    member_of,
    members_of,
    response_id_of,
    text_of_calls,
    text_of_parts,
    word_of,
)
from agentic_trading.llm.providers.openai.usage import UnmeteredError, billed_usage
from agentic_trading.llm.result import Usage

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
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARS] or "answer"


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

ERRORS = ErrorForm(
    vendor="openai",
    request_id="x-request-id",
    schema_words=re.compile(
        r"response_format|json[_ ]schema|invalid schema|grammar|\btools?\b|\btool_choice\b|\bstrict\b",
        re.IGNORECASE,
    ),
)


@dataclass(frozen=True, slots=True)
class _Completion:
    """The body of an answer: its first choice and the message in that, empty where there is none, and the server's bill.

    Only what an answer needs is looked at; servers leave out, add and spell the rest as they like.
    """

    reply: HttpReply
    page: Mapping[str, Any]
    bill: Bill

    @property
    def choice(self) -> Mapping[str, Any]:
        choices = self.page.get("choices")
        return _object(choices[0]) if isinstance(choices, list) and choices else {}

    @property
    def message(self) -> Mapping[str, Any]:
        return _object(self.choice.get("message"))

    @property
    def model(self) -> str:
        model = self.page.get("model")
        return model if isinstance(model, str) else ""

    @property
    def says_any(self) -> bool:
        """Whether the message holds anything that the model wrote, of whatever form: that is billed as output."""
        return any(self.message.get(name) for name in _WRITTEN)

    def usage(self, *, has_answer: bool) -> Usage:
        """Return the usage; one that no bill can be made from says why."""
        tier, bill = word_of(self.page.get("service_tier")), self.bill
        try:
            return billed_usage(self.page.get("usage"), service_tier=tier, has_answer=has_answer, bill=bill)
        except UnmeteredError as e:
            why, nusd, problem = str(e), bill.nusd, bill.problem
            return Usage(unmetered=why, service_tier=tier, bill_nusd=nusd, bill_problem=problem)

    def unusable(self, message: str) -> ProviderError:
        """Return the error of an answer that cannot be used."""
        usage = self.usage(has_answer=self.says_any)
        kind = FailureKind.SERVER_ERROR
        return unusable_answer(kind, message, self.reply, usage, self.bill, model=self.model)

    def error(self) -> ProviderError | None:
        """Return the error that the body holds in the place of an answer."""
        error = error_in(self.page)
        if error is None and counts_any(self.choice.get("error")):
            error = self.choice
        if error is None:
            return None
        usage = self.usage(has_answer=self.says_any) if counts_any(self.page.get("usage")) else None
        return error_in_answer(ERRORS, error, self.reply, usage, self.bill, model=self.model)


def model_response(
    answered: HttpReply, *, offers_tools: bool = False, bill_unit: BillUnit = "known"
) -> ModelResponse:
    """Return the answer that a body holds; its stop reason is the API's own word, or `refusal` for a refusal.

    `offers_tools` says that tools were offered: the text is then the input of the call, where there is one,
    whatever the stop reason (a demanded call ends in `stop`). An answer that says that it calls a tool, and holds no
    call that was offered, has no text. `bill_unit` is how the server's own bill is read (see `bill_of`). A usage that no
    bill can be made from is unmetered. Raises `ProviderError`, with the request sent, for an answer that was broken off, and
    for a body that is an error or no chat completion. Its usage is charged, if that can be read.
    """
    completion = _read(answered, bill_unit)
    if (error := completion.error()) is not None:
        raise error
    message, reason = completion.message, word_of(completion.choice.get("finish_reason"))
    if not message:
        page = answered.redaction.text(answered.body.decode("utf-8", errors="replace"))
        raise completion.unusable(f"{_NO_COMPLETION}: {page[:_EXCERPT_CHARS]}")
    if reason.lower() in GIVEN_UP:
        raise completion.unusable(f"the answer was broken off (finish_reason {reason!r})")
    try:
        said = text_of_parts(message.get("content"))
        calls = _calls(completion)
    except (ValueError, RecursionError) as e:
        raise completion.unusable(f"the answer cannot be read: {e}") from e
    refusal = _refusal(message) or said.refusal
    called, beside = _text(said.text, calls, reason, offers_tools=offers_tools)
    return ModelResponse(
        text=refusal or called.text,
        stop_reason="refusal" if refusal else reason,
        usage=completion.usage(has_answer=bool(refusal or said.text or calls)),
        model=completion.model,
        provider_request_id=answered.request_id,
        provider_response_id=response_id_of(completion.page.get("id")),
        logprobs=_logprobs(completion.choice),
        beside=beside,
        tool_called="" if refusal else called.tool_called,
    )


_WRITTEN = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")
_EXCERPT_CHARS = 200
_NO_COMPLETION = "what came back is no chat completion; check the base URL"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _refusal(message: Mapping[str, Any]) -> str:
    """Return the text by which the model refuses; servers that have none spell that as null, false or empty."""
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        return refusal
    return json.dumps(refusal) if refusal else ""


def _text(
    content: str, calls: Sequence[ToolCall], reason: str, *, offers_tools: bool
) -> tuple[CallsText, str]:
    """Return the answer's text and what stands beside it."""
    if offers_tools and calls:
        return text_of_calls(calls), content
    return (CallsText(""), content) if reason.lower() in _CALLS else (CallsText(content), "")


def _calls(completion: _Completion) -> list[ToolCall]:
    """Return the calls as the model wrote them: `tool_calls`, or the one `function_call` of the older API.

    Arguments are a text. Some servers send them as an object, which is cut out of the body: a parsed one has lost digits.
    Raises `ValueError` for a body that holds a part twice.
    """
    called = completion.message.get("tool_calls") or []
    name = "tool_calls"
    if not called and (old := completion.message.get("function_call")):
        called, name = [{"function": old}], "function_call"
    calls = called if isinstance(called, list) else [called]
    if not any(isinstance(_function(call).get("arguments"), dict) for call in calls):
        return [_call(call) for call in calls]
    body = completion.reply.body
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    _, choice = next(members_of(member_of(text, "choices")))
    written = member_of(member_of(choice, "message"), name)
    functions = (
        [member_of(call, "function") for _, call in _items(written, called)]
        if name == "tool_calls"
        else [written]
    )
    return [
        _call(call, member_of(function, "arguments")) for call, function in zip(calls, functions, strict=True)
    ]


def _items(written: str, called: Any) -> Iterable[tuple[str, str]]:
    return members_of(written) if isinstance(called, list) else [("", written)]


def _function(call: Any) -> Mapping[str, Any]:
    return _object(_object(call).get("function"))


def _call(call: Any, written: str = "") -> ToolCall:
    """Return a call, with its arguments as they are `written`; one in another form is a call of nothing that was offered."""
    match _function(call):
        case {"name": str(name), "arguments": str(arguments)}:
            return ToolCall(name, arguments)
        case {"name": str(name), "arguments": dict()}:
            return ToolCall(name, written)
        case _:
            return ToolCall("", json.dumps(call))


def _read(answered: HttpReply, bill_unit: BillUnit) -> _Completion:
    try:
        page = _object(page_in(answered.body))
    except (ValueError, RecursionError):
        page = {}
    return _Completion(answered, page, bill_of(page.get("usage"), bill_unit))


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...]:
    """Return those that are numbers: an impossible token is reported as minus infinity, which no record spells."""
    content = _object(choice.get("logprobs")).get("content")
    if not isinstance(content, list):
        return ()
    each = [_object(token).get("logprob") for token in content]
    return tuple(
        float(one)
        for one in each
        if (type(one) is int and abs(one) <= LARGEST_COUNT) or (type(one) is float and math.isfinite(one))
    )
