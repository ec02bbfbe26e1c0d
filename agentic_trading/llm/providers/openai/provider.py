"""The adapter for OpenAI's chat completions, and for compatible servers."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from agentic_trading.canonical import member_of, members_of, quoted
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.errors import FailureKind, ProviderError, UnknownModelError
from agentic_trading.llm.fields import LARGEST_COUNT
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import (
    ANSWER_TOOL,
    MAX_ANSWER_BYTES,
    ModelRequest,
    ModelResponse,
    check_address,
)
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
from agentic_trading.llm.providers.http import HttpSession
from agentic_trading.llm.providers.keys import Keys
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import Usage
from agentic_trading.llm.verbatim import Api, VerbatimRequest

_READS = (
    "cached_tokens",
    "prompt_cache_hit_tokens",
    "cache_read_tokens",
    "cache_read_input_tokens",
    "cached_read_tokens",
    "cached_input_tokens",
    "num_cached_tokens",
)
_WRITES = (
    "cache_write_tokens",
    "cache_write_input_tokens",
    "cache_creation_tokens",
    "cache_creation_input_tokens",
    "cached_write_tokens",
    "cached_creation_tokens",
)
_THOUGHTS = ("reasoning_tokens", "thinking_tokens")
_LIFETIMES = ("cache_creation", "cache_creation_token_details")
"""Objects that split cache writes by how long they are kept."""


class UnmeteredError(ValueError):
    """A usage from which no bill can be computed. The text is the reason."""


def billed_usage(
    reported: Any, *, service_tier: str, has_answer: bool, bill: hosted.Bill = hosted.NO_BILL
) -> Usage:
    """Return the tokens of an answer by price class.

    Vendors use the same names for different sums, and different names for the same count. The most expensive
    reading counts:

    - Output is `completion_tokens`. OpenAI, Azure, DeepSeek and Groq include thinking in it, xAI and Gemini
      add it. Thinking counts as included only if `total_tokens` shows it, and never if it is larger than
      `completion_tokens`. Output is never less than the rest of the total.
    - The smallest of several counts of cache reads counts, and the largest of several counts of cache writes.
    - The rest of the prompt is plain input, and never less than `prompt_cache_miss_tokens`.
    - Writes have the price of five-minute writes, unless the server reports how many are kept for an hour.

    `has_answer`: a text or a call came with the usage.

    Raises:
        UnmeteredError: If the usage is missing or counts nothing for an answered call, if a count is not a
            whole number from 0 to `LARGEST_COUNT`, or if sums contradict their parts.

    """
    if not isinstance(reported, Mapping):
        raise UnmeteredError("the server reports no usage")
    inward = [
        reported,
        *(_part(reported, name) for name in ("prompt_tokens_details", "input_tokens_details")),
    ]
    outward = [
        reported,
        *(_part(reported, name) for name in ("completion_tokens_details", "output_tokens_details")),
    ]
    prompt, completion = _needed(reported, "prompt_tokens"), _needed(reported, "completion_tokens")
    reasoning = max(_counts(outward, _THOUGHTS), default=0)
    output = _output(prompt, completion, reasoning, _counts((reported,), ("total_tokens",)))
    if not prompt or (has_answer and not output):
        raise UnmeteredError(
            f"the server reports {prompt} tokens in and {output} out for a call that it answered"
        )
    read = min(_counts(inward, _READS), default=0)
    for_5m, for_1h = _written(inward)
    rest = prompt - read - for_5m - for_1h
    if rest < 0:
        raise UnmeteredError(
            f"the server reports {prompt - rest} tokens of {prompt} as read from or written to its cache"
        )
    missed = max(_counts(inward, ("prompt_cache_miss_tokens",)), default=0)
    return Usage(
        input_tokens=max(rest, missed - for_5m - for_1h),
        output_tokens=output,
        thinking_tokens=min(reasoning, output),
        cache_read_tokens=read,
        cache_write_5m_tokens=for_5m,
        cache_write_1h_tokens=for_1h,
        service_tier=service_tier,
        bill_nusd=bill.nusd,
        bill_problem=bill.problem,
    )


def _output(prompt: int, completion: int, reasoning: int, totals: Sequence[int]) -> int:
    """Return the largest reading of the output.

    Raises `UnmeteredError` if the total is too small.
    """
    if not totals:
        return completion + reasoning
    left = totals[0] - prompt
    if left < completion:
        raise UnmeteredError(
            f"the server reports {totals[0]} tokens in all, of which {prompt} went in and {completion} out"
        )
    is_inside = left == completion and reasoning <= completion
    return completion if is_inside else max(left, completion + reasoning)


def _written(places: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the tokens written to the cache for five minutes and for an hour."""
    parts = [_part(place, name) for place in places for name in _LIFETIMES]
    for_5m = max(_counts(parts, ("ephemeral_5m_input_tokens",)), default=0)
    for_1h = max(_counts(parts, ("ephemeral_1h_input_tokens",)), default=0)
    return max(for_5m, max(_counts(places, _WRITES), default=0) - for_1h), for_1h


def _part(reported: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = reported.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise UnmeteredError(f"usage.{name} is not an object")
    return part


def _needed(reported: Mapping[str, Any], name: str) -> int:
    counts = _counts((reported,), (name,))
    if not counts:
        raise UnmeteredError(f"the server reports no {name}")
    return counts[0]


def _counts(places: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[int]:
    """Return the counts with these names in these places. Null is not a count."""
    return [
        _count(name, value) for place in places for name in names if (value := place.get(name)) is not None
    ]


def _count(name: str, value: Any) -> int:
    if type(value) is int and 0 <= value <= LARGEST_COUNT:
        return value
    raise UnmeteredError(f"usage.{name} is {quoted(value)}. Allowed: whole numbers from 0 to {LARGEST_COUNT}")


Dialect = Literal["openai", "compatible"]
"""OpenAI's own API, or an older form of it (llama.cpp, vLLM and others)."""

_NAME_CHARS = 64
# No copy is stored, and the tier is fixed, because the project's setting would otherwise change the price.
_FIXED: Final[dict[str, object]] = {"store": False, "service_tier": "default"}


def completion_body(request: ModelRequest, dialect: Dialect, *, logprobs: bool) -> dict[str, Any]:
    """Return the body of `request`, without fields that it leaves open."""
    # OpenAI's reasoning models refuse the older name. Other servers get it, because one that ignores an
    # unknown cap would write, and bill, without end.
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
        body |= _FIXED
    return {name: value for name, value in body.items() if value is not None}


_PATHS: Final[Mapping[Api, str]] = {"chat_completions": "/chat/completions", "responses": "/responses"}


def verbatim_body(request: ModelRequest, asked: VerbatimRequest, dialect: Dialect) -> bytes:
    """Return the body of a client's own request, with model, cap and tier of the envelope."""
    cap = "max_completion_tokens" if dialect == "openai" else "max_tokens"
    fields = {
        "model": request.envelope.model,
        "max_output_tokens" if asked.api == "responses" else cap: request.max_choice_tokens,
    }
    return asked.with_fields(fields | (_FIXED if dialect == "openai" else {}) | stream_fields(request))


def _response_format(request: ModelRequest) -> dict[str, Any] | None:
    if request.transport == "json_mode":
        return {"type": "json_object"}
    if request.transport != "native_schema" or request.response_schema is None:
        return None
    schema = request.response_schema
    form = {"name": _name(request), "schema": schema, "strict": takes_strict(schema)}
    return {"type": "json_schema", "json_schema": form}


def _tools(request: ModelRequest) -> dict[str, Any]:
    """Offer the tools, for one call in total.

    The call is required if the answer is a call and the model allows it.
    """
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
                "description": hosted.TOOL_DESCRIPTION,
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
    """Return the schema's `$id` in the characters that the API allows."""
    name = str(request.envelope.expected_output_schema.get("$id", ""))
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARS] or "answer"


def takes_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether the API enforces `schema` strictly.

    It refuses `strict` for optional properties, `allOf`, a choice at the root, and keywords next to a `$ref`.
    Such a schema is sent without it. In both cases, the answer is checked against the original schema here.
    """
    return "anyOf" not in schema and all(map(_is_strict, _nested(schema)))


def _is_strict(schema: Mapping[str, Any]) -> bool:
    if "allOf" in schema or ("$ref" in schema and len(schema) > 1):
        return False
    return set(schema.get("properties", ())) == set(schema.get("required", ()))


def _nested(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and all schemas in it."""
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
    """The body of an answer, with its first choice and message, and the server's bill.

    Only the needed fields are read, because servers omit, add and rename others.
    """

    reply: hosted.HttpReply
    page: Mapping[str, Any]
    bill: hosted.Bill

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
        """Whether the model wrote anything, in any form. This is billed as output."""
        return any(self.message.get(name) for name in _WRITTEN)

    def usage(self, *, has_answer: bool) -> Usage:
        """Return the usage. If no bill can be computed from it, it has the reason."""
        tier, bill = hosted.word_of(self.page.get("service_tier")), self.bill
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
        """Return the error in the body, if it has one instead of an answer."""
        error = error_in(self.page)
        if error is None and hosted.counts_any(self.choice.get("error")):
            error = self.choice
        if error is None:
            return None
        usage = self.usage(has_answer=self.says_any) if hosted.counts_any(self.page.get("usage")) else None
        return error_in_answer(ERRORS, error, self.reply, usage, self.bill, model=self.model)


def model_response(
    answered: hosted.HttpReply, *, offers_tools: bool = False, bill_unit: hosted.BillUnit = "known"
) -> ModelResponse:
    """Return the answer in a body.

    The stop reason is the API's own word, or `refusal` if the model refuses. A usage from which no bill can
    be computed makes the answer unmetered.

    Args:
        answered: The reply.
        offers_tools: Tools were offered. If there is a call, its input is then the text, whatever the stop
            reason: a forced call ends with `stop`. If the stop reason is a call and no offered tool is
            called, the text is empty.
        bill_unit: How the server's own bill is read, see `bill_of`.

    Raises:
        ProviderError: If the answer is incomplete, or the body is an error or not a chat completion. The
            request was sent. The usage is charged if it can be read.

    """
    completion = _read(answered, bill_unit)
    if (error := completion.error()) is not None:
        raise error
    message, reason = completion.message, hosted.word_of(completion.choice.get("finish_reason"))
    if not message:
        page = answered.redaction.text(answered.body.decode("utf-8", errors="replace"))
        raise completion.unusable(f"{_NO_COMPLETION}: {page[:_EXCERPT_CHARS]}")
    if reason.lower() in hosted.GIVEN_UP:
        raise completion.unusable(f"the answer was broken off (finish_reason {reason!r})")
    # Errors of these steps are raised with the usage, because the answer was billed all the same.
    try:
        said = hosted.text_of_parts(message.get("content"))
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
        provider_response_id=hosted.response_id_of(completion.page.get("id")),
        logprobs=_logprobs(completion.choice),
        beside=beside,
        tool_called="" if refusal else called.tool_called,
    )


def whole_completion(
    answered: hosted.HttpReply, api: Api, *, bill_unit: hosted.BillUnit = "known"
) -> ModelResponse:
    """Return the whole body of an answer as the answer, with its usage.

    Refusals, cut answers and calls are returned too, because their client reads them.

    Raises:
        ProviderError: If the body is an error, or no answer of this API. The request was sent. The usage is
            charged if it can be read.

    """
    completion = _read(answered, bill_unit)
    if (error := completion.error()) is not None:
        raise error
    page, bill = completion.page, completion.bill
    if not isinstance(page.get("choices" if api == "chat_completions" else "output"), list):
        raise completion.unusable(f"the body is not an answer of {api}. Check the base URL")
    if api == "chat_completions":
        usage, reason = (
            completion.usage(has_answer=completion.says_any),
            completion.choice.get("finish_reason"),
        )
    else:
        usage = replace(completion, page=_in_words_of_chat(page)).usage(has_answer=bool(page["output"]))
        reason = _object(page.get("incomplete_details")).get("reason") or page.get("status")
    return ModelResponse(
        text=body_text(answered, usage, bill, model=completion.model),
        stop_reason=hosted.word_of(reason),
        usage=usage,
        model=completion.model,
        provider_request_id=answered.request_id,
        provider_response_id=hosted.response_id_of(page.get("id")),
    )


def _in_words_of_chat(page: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer of the Responses API with its usage in the words of chat completions."""
    usage = page.get("usage")
    if not isinstance(usage, Mapping):
        return page
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    return {**page, "usage": {names.get(name, name): value for name, value in usage.items()}}


_WRITTEN = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")
_EXCERPT_CHARS = 200
_NO_COMPLETION = "what came back is no chat completion; check the base URL"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _refusal(message: Mapping[str, Any]) -> str:
    """Return the text of a refusal.

    Without one, servers send null, false or an empty text.
    """
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        return refusal
    return json.dumps(refusal) if refusal else ""


def _text(
    content: str, calls: Sequence[hosted.ToolCall], reason: str, *, offers_tools: bool
) -> tuple[hosted.CallsText, str]:
    """Return the text of the answer, and the text next to its call."""
    if offers_tools and calls:
        return hosted.text_of_calls(calls), content
    return (hosted.CallsText(""), content) if reason.lower() in _CALLS else (hosted.CallsText(content), "")


def _calls(completion: _Completion) -> list[hosted.ToolCall]:
    """Return the calls as the model wrote them: `tool_calls`, or the `function_call` of the older API.

    Arguments are a text. Some servers send an object.

    Raises:
        ValueError: If the body has one of these parts twice.

    """
    called = completion.message.get("tool_calls") or []
    name = "tool_calls"
    if not called and (old := completion.message.get("function_call")):
        called, name = [{"function": old}], "function_call"
    calls = called if isinstance(called, list) else [called]
    if not any(isinstance(_function(call).get("arguments"), dict) for call in calls):
        return [_call(call) for call in calls]
    # Cut out of the body, because a parsed number has lost digits.
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


def _call(call: Any, written: str = "") -> hosted.ToolCall:
    """Return a call with its `written` arguments. A call in another form has no name."""
    match _function(call):
        case {"name": str(name), "arguments": str(arguments)}:
            return hosted.ToolCall(name, arguments)
        case {"name": str(name), "arguments": dict()}:
            return hosted.ToolCall(name, written)
        case _:
            return hosted.ToolCall("", json.dumps(call))


def _read(answered: hosted.HttpReply, bill_unit: hosted.BillUnit) -> _Completion:
    try:
        page = _object(page_in(answered.body))
    except (ValueError, RecursionError):
        page = {}
    return _Completion(answered, page, hosted.bill_of(page.get("usage"), bill_unit))


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the finite numbers.

    An impossible token is minus infinity, which JSON cannot hold.
    """
    content = _object(choice.get("logprobs")).get("content")
    if not isinstance(content, list):
        return ()
    each = [_object(token).get("logprob") for token in content]
    return tuple(
        float(one)
        for one in each
        if (type(one) is int and abs(one) <= LARGEST_COUNT) or (type(one) is float and math.isfinite(one))
    )


OPENAI_URL = "https://api.openai.com/v1"

_system_clock = SystemClock()


class OpenAIProvider:
    """Call a model over chat completions, at OpenAI or a compatible server.

    Args:
        keys: The keys of the tenants. For a server without keys, use `OneKey("none")`.
        base_url: The URL of the server. Default: OpenAI.
        capabilities: Logprobs are requested from models that offer them here. Without it, they are not
            requested.
        clock: The real time, because a server may give the time of the next attempt.
        max_answer_bytes: The maximum size of an answer after decompression. A larger one fails and is
            charged.
        proxy: The only proxy that is used.
        bill_unit: How the server's own bill is read. Default: by the host.

    Raises:
        ValueError: If the base URL or the proxy is not a plain http or https URL.

    """

    speaks: frozenset[Api] = frozenset(_PATHS)

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        clock: Clock = _system_clock,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        proxy: str | None = None,
        bill_unit: hosted.BillUnit | None = None,
    ) -> None:
        address = OPENAI_URL if base_url is None else check_address(base_url)
        self._dialect = _dialect_of(address)
        self._bill_unit = bill_unit or hosted.unit_at(urlsplit(address).hostname or "")
        self._capabilities = capabilities
        self._redaction = Redaction()
        self._session = HttpSession(
            keys,
            address,
            ERRORS,
            redaction=self._redaction,
            clock=clock,
            max_answer_bytes=max_answer_bytes,
            proxy=proxy,
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion.

        Raises:
            ProviderError: If the attempt fails. It never contains a key.

        """
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        if (asked := request.verbatim) is not None:
            sent = verbatim_body(request, asked, self._dialect)
            reply = await self._session.post(request, _PATHS[asked.api], sent)
            return whole_completion(reply, asked.api, bill_unit=self._bill_unit)
        body = completion_body(request, self._dialect, logprobs=self._offers_logprobs(request))
        has_schema = not body.keys().isdisjoint(("response_format", "tools"))
        reply = await self._session.post(request, "/chat/completions", body, with_schema=has_schema)
        return model_response(reply, offers_tools="tools" in body, bill_unit=self._bill_unit)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: chat completions have no count."""
        return None

    async def aclose(self) -> None:
        """Close the connections. You may call it twice."""
        await self._session.aclose()

    def _offers_logprobs(self, request: ModelRequest) -> bool:
        if self._capabilities is None:
            return False
        try:
            return self._capabilities.of(request.envelope.provider, request.envelope.model).logprobs
        except UnknownModelError:
            return False


def _dialect_of(base_url: str) -> Dialect:
    """Return `openai` for the vendor's hosts, including those of regions, else `compatible`."""
    host = urlsplit(base_url).hostname or ""
    return "openai" if host == "openai.com" or host.endswith(".openai.com") else "compatible"
