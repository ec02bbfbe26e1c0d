"""The interface of model providers, its requests and responses, and checks of URLs."""

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, Self, assert_never
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field

from agentic_trading.canonical import quoted
from agentic_trading.llm.envelope import Effort, LLMEnvelope, ResponseFormat
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.fields import JsonObject, json_of
from agentic_trading.llm.result import Usage
from agentic_trading.llm.taps import Tap
from agentic_trading.llm.verbatim import Api, VerbatimRequest

Transport = Literal["native_schema", "strict_tool", "json_mode", "prompted", "text", "verbatim"]

ANSWER_TOOL = "answer"
"""The only tool of the `strict_tool` transport. Its input is the answer."""


def _tool_name(name: str) -> str:
    if name == ANSWER_TOOL:
        raise ValueError(f"{ANSWER_TOOL!r} is the tool whose input is the answer. Choose another name")
    return name


class ToolDefinition(BaseModel, frozen=True, extra="forbid"):
    """A tool that an envelope may name in `tools_allowed`. It is never executed here.

    A name must always mean the same definition, because the request hash contains only the name. If the model
    calls the tool, the call is returned as the answer (`LLMResult.tool_called`). Put the result of the tool
    into the evidence of another envelope.

    Attributes:
        parameters: The JSON Schema of its input, an object.

    """

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$"), AfterValidator(_tool_name)]
    description: Annotated[str, Field(min_length=1)]
    parameters: JsonObject

    @property
    def parameters_json(self) -> bytes:
        """The schema in canonical JSON."""
        return json_of(self.parameters)


MAX_ANSWER_BYTES = 1 << 20
"""The maximum size of an answer after decompression, and of its configured limit.

It is larger than any model's output limit, and equals the bus's `largest_answer` for the default message
size.
"""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for one completion: a system text and one user message.

    Attributes:
        envelope: The envelope that the request is made from.
        attempt: The number of the attempt, from 1.
        answer: The number of the answer, from 1. Re-asks have higher numbers.
        max_tokens: The cap of answer and thinking together.
        response_schema: The schema that the provider must enforce (`native_schema`, `strict_tool`), otherwise
            None.
        temperature: None if it must not be sent.
        forced_tool: The model can be forced to call the tool of `strict_tool`. For others, the prompt asks
            for the call.
        tools: Tools that the model may call instead of answering.
        tap: The client that gets the events of the answer as they come. None asks for the answer as a whole.

    """

    envelope: LLMEnvelope
    attempt: int
    answer: int
    system: str
    user: str
    transport: Transport
    max_tokens: int
    response_schema: Mapping[str, Any] | None = None
    thinking_budget: int = 0
    effort: Effort | None = None
    temperature: float | None = None
    forced_tool: bool = False
    tools: tuple[ToolDefinition, ...] = ()
    tap: Tap | None = field(default=None, compare=False, repr=False)

    @property
    def verbatim(self) -> VerbatimRequest | None:
        """The client's own request, if it is passed on. `user` is its body, which a re-ask has made longer."""
        if self.transport != "verbatim":
            return None
        return VerbatimRequest.of({**self.envelope.context, "body": self.user})

    @property
    def max_choice_tokens(self) -> int:
        """The cap of one answer. A request that is passed on may ask for several, within `max_tokens`."""
        asked = self.verbatim
        return self.max_tokens if asked is None else self.max_tokens // asked.choices

    @property
    def has_answer_tool(self) -> bool:
        """Whether the answer is the input of `ANSWER_TOOL`."""
        return self.transport == "strict_tool" and self.response_schema is not None

    @property
    def demanded_call(self) -> Literal["", "answer", "any"]:
        """The required call: empty for none, `answer` for the answer tool, or `any`."""
        if not (self.has_answer_tool and self.forced_tool):
            return ""
        return "any" if self.tools else "answer"


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One answer of a model, unchanged.

    Attributes:
        text: The answer with all digits. Over `strict_tool`, it is the input of the call of `ANSWER_TOOL`. If
            the model called another tool, it is the input of that call. If there are several calls, it is a
            list of all of them.
        stop_reason: The provider's own word, such as `end_turn`, `max_tokens` or `refusal`.
        model: The model that answered.
        structured: The answer as an object, if the transport returns one.
        beside: The text that the model wrote with a call. It is never read as an answer.
        tool_called: The name of another tool that the model called instead of answering, or the names of
            several calls.

    """

    text: str
    stop_reason: str
    usage: Usage
    model: str
    provider_request_id: str = ""
    provider_response_id: str = ""
    structured: Mapping[str, Any] | None = None
    logprobs: tuple[float, ...] = field(default=())
    beside: str = ""
    tool_called: str = ""


class UnusableAnswerError(ProviderError):
    """One attempt was answered by `model`, but the answer cannot be used.

    Its `usage` is charged.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        usage: Usage,
        model: str = "",
        retry_after_s: float | None = None,
        provider_request_id: str = "",
        text: str = "",
    ) -> None:
        super().__init__(
            kind,
            message,
            sent=True,
            retry_after_s=retry_after_s,
            provider_request_id=provider_request_id,
            text=text,
            bill_nusd=usage.bill_nusd or 0,
        )
        self.usage = usage
        self.model = model


class Provider(Protocol):
    """The interface of a provider: answer once.

    It never retries, parses, meters or caches.
    """

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion.

        Raises:
            ProviderError: If the attempt fails, with a `FailureKind`.

        """
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens, or None if it has no count."""
        ...

    async def aclose(self) -> None:
        """Close connections and processes. You may call it twice."""
        ...


class Providers:
    """The providers of a worker, by name."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._by_name: Mapping[str, Provider] = dict(providers)
        self._every: Provider | None = None

    @classmethod
    def every(cls, provider: Provider) -> Self:
        """Use one provider for all names, for example a recording or a script."""
        served = cls({})
        served._every = provider
        return served

    @property
    def names(self) -> frozenset[str] | None:
        """The names that are served, None for all names."""
        return None if self._every is not None else frozenset(self._by_name)

    def of(self, name: str) -> Provider:
        """Return the provider of a name.

        Raises:
            ProviderError: If the name is not served. The request was not sent.

        """
        served = self._every or self._by_name.get(str(name))
        if served is None:
            raise ProviderError(FailureKind.NOT_SERVED, unserved_text(name, self._by_name), sent=False)
        return served

    def verbatim_problem(self, envelope: LLMEnvelope) -> str:
        """Return why the request of an envelope cannot be passed on by its provider, or an empty text.

        Other providers would ask the body as a prompt. For a name that is not served, see `of`.
        """
        provider = self._every or self._by_name.get(str(envelope.provider))
        if envelope.response_format is not ResponseFormat.VERBATIM or provider is None:
            return ""
        speaks: frozenset[Api] = getattr(provider, "speaks", frozenset())
        api = envelope.context.get("api")
        if api in speaks:
            return ""
        allowed = ", ".join(sorted(speaks)) or "requests of other formats"
        return f"provider {envelope.provider} does not speak {quoted(api)}. Allowed: {allowed}"

    async def aclose(self) -> None:
        """Close every provider once. You may call it twice."""
        each = {id(one): one for one in (*self._by_name.values(), *filter(None, [self._every]))}
        # By a stack, so that the others are closed if one fails to close.
        async with AsyncExitStack() as stack:
            for provider in each.values():
                stack.push_async_callback(provider.aclose)


def unserved_text(name: str, served: Collection[str]) -> str:
    """Return the message for a provider that is not served, with the names that are."""
    return f"provider {name} is not served here; served are {', '.join(sorted(served)) or 'none'}"


Fault = Literal["", "secret", "no_address"]
"""The fault of a URL.

`secret`: it has a user or a password. `no_address`: it is invalid, or has a query or a fragment.
"""


def fault_of(address: str) -> Fault:
    """Return the fault of a server's URL.

    It may have http or https, a host and a path.
    """
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return "no_address"
    if parts.username is not None or parts.password is not None:
        return "secret"
    return "no_address" if not is_address or parts.query or parts.fragment else ""


def address_text(address: str) -> str:
    """Return an invalid URL for a message: quoted, or a word if it may hold a secret."""
    return "no address" if {"@", "?", "#"} & set(address) else repr(address)


def check_address(base_url: str) -> str:
    """Return a base URL if it is valid and holds no secret.

    Raises:
        ValueError: If it is invalid, or may hold a secret.

    """
    match fault_of(base_url):
        case "":
            return base_url
        case "secret":
            was, allowed = "an address with a password in it", "a key from the environment or a file"
        case "no_address":
            was, allowed = address_text(base_url), "http(s)://HOST[:PORT][/PATH]"
        case fault:
            assert_never(fault)
    raise ValueError(f"the base URL is {was}. Allowed: {allowed}")
