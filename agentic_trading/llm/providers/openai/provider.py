"""The adapter for OpenAI's chat completions, and for any server that speaks them."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import MAX_ANSWER_BYTES, ModelRequest, ModelResponse, check_address
from agentic_trading.llm.providers.hosted import nothing_sent
from agentic_trading.llm.providers.keys import Keys
from agentic_trading.llm.providers.openai.chat import (
    CompletionReply,
    Dialect,
    completion_body,
    model_response,
)
from agentic_trading.llm.redaction import Redaction

OPENAI_URL = "https://api.openai.com/v1"

_system_clock = SystemClock()


class CompletionClient(Protocol):
    """Connections to one server; the SDK that holds them is not loaded before it is needed."""

    async def ask(self, key: str, body: Mapping[str, Any]) -> CompletionReply:
        """Send `body` once; raises `ProviderError`, which does not repeat the key, for any answer but a good one."""
        ...

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        ...


class OpenAIProvider:
    """Call a model over chat completions: at OpenAI, or at the server (llama.cpp, vLLM, …) behind `base_url`.

    A server that wants no key gets any (`OneKey("none")`). Logprobs are requested where `capabilities` say that the
    model offers them, and nowhere without. `clock` shows real time: a server may name the hour of the next try.
    An answer is read up to `max_answer_bytes`, after decompression; a longer one fails, charged.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        clock: Clock = _system_clock,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Raise `ValueError` for a base URL that is no plain http or https address."""
        self._keys = keys
        self._base_url = OPENAI_URL if base_url is None else check_address(base_url)
        self._dialect = _dialect_of(self._base_url)
        self._capabilities = capabilities
        self._clock = clock
        self._max_answer_bytes = max_answer_bytes
        self._redaction = Redaction()
        self._opening = asyncio.Lock()
        self._client: CompletionClient | None = None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion, which does not repeat the key; raises `ProviderError` for anything that fails."""
        key = await self._keys.key_of(request.envelope.tenant_id)
        self._redaction.add(key)
        return await self._redaction.guard(self._complete(request, key))

    async def _complete(self, request: ModelRequest, key: str) -> ModelResponse:
        body = completion_body(request, self._dialect, logprobs=self._offers_logprobs(request))
        client = await self._open_client()
        return model_response(await client.ask(key, body), offers_tools="tools" in body)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: chat completions have no count to give."""
        return None

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _offers_logprobs(self, request: ModelRequest) -> bool:
        if self._capabilities is None:
            return False
        try:
            return self._capabilities.of(request.envelope.provider, request.envelope.model).logprobs
        except UnknownModelError:
            return False

    async def _open_client(self) -> CompletionClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(
                    _open, self._base_url, self._clock, self._max_answer_bytes
                )
            return self._client


def _open(base_url: str, clock: Clock, max_answer_bytes: int) -> CompletionClient:
    with nothing_sent():
        from agentic_trading.llm.providers.openai.client import (  # noqa: PLC0415 - loads the SDK: most of a second
            OpenAIClient,
        )

        return OpenAIClient(base_url, clock, max_answer_bytes=max_answer_bytes)


def _dialect_of(base_url: str) -> Dialect:
    """Return `openai` for the vendor's own hosts (a region has one of its own), else `compatible`."""
    host = urlsplit(base_url).hostname or ""
    return "openai" if host == "openai.com" or host.endswith(".openai.com") else "compatible"
