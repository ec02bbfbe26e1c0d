"""Claude models as a `Provider`: over HTTP of our own, or through the vendor's SDK, which signs in elsewhere, too."""

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


class AnthropicProvider:
    """Call the Messages API once a request: no retries, no telemetry, no key or address from the environment.

    The key is the tenant's (`keys`), looked up for each request. `base_url` is for a gateway or a stub of the same
    API. `stable_prefix_ttl` is how long the provider shall keep the stable part of a request in its cache; empty
    requests no caching. `clock` gives the time against which an HTTP date in `Retry-After` is read.
    An answer is read up to `max_answer_bytes`, after decompression; a longer one fails, charged.
    `proxy` is the only one that is used.

    Raises `ValueError` for a `base_url` or a `proxy` that is no address. A request ends in time by the caller's `asyncio.timeout`;
    the limit on each read lies a little behind the envelope's `attempt_timeout_s`.
    """

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
        """Return one completion; raises `ProviderError` for anything that fails, a cut answer among it."""
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        arguments = messages.sendable(lambda: messages.create_arguments(request, ttl=self._ttl))
        headers = {"anthropic-version": messages.VERSION, **arguments.pop("extra_headers", {})}
        arguments |= arguments.pop("extra_body", {})
        has_schema = request.response_schema is not None
        reply = await self._session.post(request, "/v1/messages", arguments, headers, with_schema=has_schema)
        return messages.read_message(reply, offers_tools="tools" in arguments)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens; it is not billed. Raises `ProviderError`."""
        body = messages.sendable(lambda: messages.count_arguments(request, ttl=self._ttl))
        headers = {"anthropic-version": messages.VERSION}
        try:
            return messages.count_in(
                await self._session.post(request, "/v1/messages/count_tokens", body, headers)
            )
        except ProviderError as e:
            e.sent = False  # a count is free
            raise

    async def aclose(self) -> None:
        """Close all connections; harmless twice."""
        await self._session.aclose()


class AnthropicSdkProvider:
    """Call the Messages API through the vendor's SDK: for its sign-ins, such as Bedrock and Vertex.

    As `AnthropicProvider`, but that proxies of the environment are used, and one client of the SDK a key. `client` is the
    name of the SDK's class and `arguments` its own: `AsyncAnthropic` sends the tenant's key, and any other signs in by itself.
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
        """Return one completion; raises `ProviderError` for anything that fails, a cut answer among it."""
        async with self._by_key.lend(request.envelope.tenant_id) as client:
            return await client.complete(request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens; it is not billed. Raises `ProviderError`."""
        async with self._by_key.lend(request.envelope.tenant_id) as client:
            return await client.count_tokens(request)

    async def aclose(self) -> None:
        """Close all connections; harmless twice."""
        await self._by_key.aclose()

    def _connect(self, key: str) -> Provider:
        """Load the SDK, which takes most of a second and reads thousands of files: in a thread, and not before."""
        with nothing_sent():
            from agentic_trading.llm.providers.anthropic.sdk import (  # noqa: PLC0415 - see above
                AnthropicSdkClient,
            )

            return AnthropicSdkClient(key, **self._options)
