"""The port to the providers of models, what goes through it, and the addresses that they may have."""

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, Self, assert_never
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field

from agentic_trading.llm.envelope import Effort, LLMEnvelope
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.fields import JsonObject, json_of
from agentic_trading.llm.result import Usage

Transport = Literal["native_schema", "strict_tool", "json_mode", "prompted", "text"]

ANSWER_TOOL = "answer"
"""The one tool of the `strict_tool` transport: its input is the answer."""


def _tool_name(name: str) -> str:
    if name == ANSWER_TOOL:
        raise ValueError(f"{ANSWER_TOOL!r} is the tool whose input is the answer; allowed is any other name")
    return name


class ToolDefinition(BaseModel, frozen=True, extra="forbid"):
    """A tool that an envelope may name in `tools_allowed`: what the model is sent of it. It is never executed here.

    `parameters` is the JSON Schema of its input, an object. A name stands for one definition for good: the request's
    hash holds the name alone. A call is returned as the answer (`LLMResult.tool_called`); its result goes into the
    evidence of another envelope.
    """

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$"), AfterValidator(_tool_name)]
    description: Annotated[str, Field(min_length=1)]
    parameters: JsonObject

    @property
    def parameters_json(self) -> bytes:
        """The schema in canonical JSON."""
        return json_of(self.parameters)


MAX_ANSWER_BYTES = 1 << 20
"""The largest body of an answer, after decompression, and the most that may be configured: more than any model's output limit.

It is the bus's `largest_answer` for messages of the default size.
"""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One completion to request: `system` and one `user` message, and the envelope that they were made from.

    `max_tokens` is the wire's cap: answer and thinking together. `response_schema` is set when the provider
    shall enforce it (`native_schema`, `strict_tool`); `temperature` is None where it must not be sent.
    `forced_tool` says that the model takes a demand to call the tool of `strict_tool`; others are asked for it in the prompt.
    Of `tools` the model may call one instead of answering.
    `attempt` is 1-based; `answer` counts the answers asked for (1, or 2 and more for re-asks).
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

    @property
    def has_answer_tool(self) -> bool:
        """Whether the answer is to be the input of `ANSWER_TOOL`."""
        return self.transport == "strict_tool" and self.response_schema is not None

    @property
    def demanded_call(self) -> Literal["", "answer", "any"]:
        """Which call is demanded of the model: none, that of the answer tool, or that of any tool that is offered."""
        if not (self.has_answer_tool and self.forced_tool):
            return ""
        return "any" if self.tools else "answer"


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One answer, as it came: the text, why it stopped, what was used, which model served it.

    `text` is the answer digit for digit; over `strict_tool` it is the input of the one call of `ANSWER_TOOL`, and
    `beside` the text that the model wrote with it, which is never read as an answer. Where the model called another
    tool instead, `tool_called` is its name, and `text` the input of the call; of several calls, all names and all calls.
    `stop_reason` is the provider's own word (`end_turn`, `max_tokens`, `refusal`, …).
    `structured` is the object that a native transport hands over already parsed, if it does.
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
    """One attempt was answered by `model`, and the answer cannot be used. Its `usage` is known, and is charged."""

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
    """Answer once. Never retry, parse, meter or cache."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion; raises `ProviderError` with a `FailureKind` for anything that fails."""
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens, or None where it has none to give."""
        ...

    async def aclose(self) -> None:
        """Give back connections and processes; harmless twice."""
        ...


class Providers:
    """The providers that are served, by name: what answers for `openai-eu` is what stands under `openai-eu`."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._by_name: Mapping[str, Provider] = dict(providers)
        self._every: Provider | None = None

    @classmethod
    def every(cls, provider: Provider) -> Self:
        """Let one provider answer to every name, as a recording or a script does."""
        served = cls({})
        served._every = provider
        return served

    @property
    def names(self) -> frozenset[str] | None:
        """The names that are served; None for every one."""
        return None if self._every is not None else frozenset(self._by_name)

    def of(self, name: str) -> Provider:
        """Return the provider of a name; raises `ProviderError`, unsent, for one that is not served."""
        served = self._every or self._by_name.get(str(name))
        if served is None:
            raise ProviderError(FailureKind.NOT_SERVED, unserved_text(name, self._by_name), sent=False)
        return served

    async def aclose(self) -> None:
        """Close every provider, each once; harmless twice."""
        each = {id(one): one for one in (*self._by_name.values(), *filter(None, [self._every]))}
        async with AsyncExitStack() as stack:  # one that fails to close does not keep the others open
            for provider in each.values():
                stack.push_async_callback(provider.aclose)


def unserved_text(name: str, served: Collection[str]) -> str:
    """Return that a provider is not served, and which are."""
    return f"provider {name} is not served here; served are {', '.join(sorted(served)) or 'none'}"


Fault = Literal["", "secret", "no_address"]
"""What is wrong with an address: it holds a user or a password, it is none (or has a query or a fragment), or nothing."""


def fault_of(address: str) -> Fault:
    """Return what is wrong with the address of a server: http or https, a host, and a path at most."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return "no_address"
    if parts.username is not None or parts.password is not None:
        return "secret"
    return "no_address" if not is_address or parts.query or parts.fragment else ""


def address_text(address: str) -> str:
    """Return an address that is none as a message may show it: quoted, or a word where it may hold a secret."""
    return "no address" if {"@", "?", "#"} & set(address) else repr(address)


def check_address(base_url: str) -> str:
    """Return an address that holds no secret; raises `ValueError` for one that may hold one, or is none."""
    match fault_of(base_url):
        case "":
            return base_url
        case "secret":
            was, allowed = "an address with a password in it", "a key from the environment or a file"
        case "no_address":
            was, allowed = address_text(base_url), "http(s)://HOST[:PORT][/PATH]"
        case fault:
            assert_never(fault)
    raise ValueError(f"the base URL is {was}; allowed is {allowed}")
