"""The adapters for Claude: over HTTP, or through the vendor's SDK for its sign-ins."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import (
    MAX_ANSWER_BYTES,
    ModelRequest,
    ModelResponse,
    Provider,
    check_address,
)
from agentic_trading.llm.providers.anthropic import messages
from agentic_trading.llm.providers.hosted import PromptCacheTtl, nothing_sent
from agentic_trading.llm.providers.http import HttpSession
from agentic_trading.llm.providers.keys import ClientPerKey, Keys
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.verbatim import Api


class AnthropicProvider:
    """Call the Messages API, once for each request.

    It does not retry, sends no telemetry, and reads no key or URL from the environment. The key of the tenant
    is looked up for each request. Limit a call with `asyncio.timeout`: each read ends shortly after the
    envelope's `attempt_timeout_s`.

    Args:
        keys: The keys of the tenants.
        base_url: The URL of a gateway or a stub with the same API.
        stable_prefix_ttl: How long the provider caches the stable part of a request. Empty disables caching.
        clock: The time for an HTTP date in `Retry-After`.
        max_answer_bytes: The maximum size of an answer after decompression. A larger one fails and is
            charged.
        proxy: The only proxy that is used.

    Raises:
        ValueError: If the base URL or the proxy is not a plain http or https URL.

    """

    speaks: frozenset[Api] = frozenset({"messages"})

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        stable_prefix_ttl: PromptCacheTtl = "5m",
        clock: Clock | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        proxy: str | None = None,
    ) -> None:
        self._ttl: PromptCacheTtl = stable_prefix_ttl
        self._redaction = Redaction()
        self._session = HttpSession(
            keys,
            messages.API if base_url is None else check_address(base_url),
            messages.ERRORS,
            redaction=self._redaction,
            clock=clock or SystemClock(),
            max_answer_bytes=max_answer_bytes,
            proxy=proxy,
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion.

        Raises:
            ProviderError: If the attempt fails, or the answer is larger than `max_answer_bytes`.

        """
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        if request.verbatim is not None:
            body, headers = messages.verbatim_message(request, request.verbatim)
            reply = await self._session.post(request, "/v1/messages", body, headers)
            return messages.whole_message(reply)
        arguments = messages.sendable(lambda: messages.create_arguments(request, ttl=self._ttl))
        headers = {"anthropic-version": messages.VERSION, **arguments.pop("extra_headers", {})}
        arguments |= arguments.pop("extra_body", {})
        has_schema = request.response_schema is not None
        reply = await self._session.post(request, "/v1/messages", arguments, headers, with_schema=has_schema)
        return messages.read_message(reply, offers_tools="tools" in arguments)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens, which is free.

        Raises:
            ProviderError: If the count fails.

        """
        body: bytes | dict[str, Any]
        if request.verbatim is not None:
            body, headers = messages.verbatim_count(request, request.verbatim)
        else:
            body = messages.sendable(lambda: messages.count_arguments(request, ttl=self._ttl))
            headers = {"anthropic-version": messages.VERSION}
        try:
            return messages.count_in(
                await self._session.post(request, "/v1/messages/count_tokens", body, headers)
            )
        except ProviderError as e:
            e.sent = False  # because a count is free
            raise

    async def aclose(self) -> None:
        """Close all connections. You may call it twice."""
        await self._session.aclose()


class AnthropicSdkProvider:
    """Call the Messages API through the vendor's SDK, for example on Bedrock or Vertex.

    It works like `AnthropicProvider`, but uses proxies of the environment, and has one SDK client for each
    key.

    Args:
        keys: The keys of the tenants.
        client: The name of the SDK's class. `AsyncAnthropic` sends the tenant's key. The others sign in
            without it.
        arguments: Arguments of this class.
        base_url: The URL of a gateway or a stub with the same API.
        stable_prefix_ttl: How long the provider caches the stable part of a request. Empty disables caching.
        clock: The time for an HTTP date in `Retry-After`.
        max_answer_bytes: The maximum size of an answer after decompression. A larger one fails and is
            charged.

    """

    def __init__(
        self,
        keys: Keys,
        *,
        client: str = "AsyncAnthropic",
        arguments: Mapping[str, Any] = MappingProxyType({}),
        base_url: str | None = None,
        stable_prefix_ttl: PromptCacheTtl = "5m",
        clock: Clock | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._options: dict[str, Any] = {
            "client": client,
            "arguments": arguments,
            "base_url": base_url if base_url is None else check_address(base_url),
            "ttl": stable_prefix_ttl,
            "clock": clock or SystemClock(),
            "max_answer_bytes": max_answer_bytes,
        }
        self._by_key = ClientPerKey[Provider](keys, self._connect)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion.

        Raises:
            ProviderError: If the attempt fails, or the answer is larger than `max_answer_bytes`.

        """
        async with self._by_key.lend(request.envelope.tenant_id) as client:
            return await client.complete(request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens, which is free.

        Raises:
            ProviderError: If the count fails.

        """
        async with self._by_key.lend(request.envelope.tenant_id) as client:
            return await client.count_tokens(request)

    async def aclose(self) -> None:
        """Close all connections. You may call it twice."""
        await self._by_key.aclose()

    def _connect(self, key: str) -> Provider:
        """Load the SDK, in a thread: it takes most of a second and reads thousands of files."""
        with nothing_sent():
            from agentic_trading.llm.providers.anthropic.sdk import (  # noqa: PLC0415 - see above
                AnthropicSdkClient,
            )

            return AnthropicSdkClient(key, **self._options)
