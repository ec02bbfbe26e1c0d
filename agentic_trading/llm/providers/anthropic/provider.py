"""Claude models as a `Provider`; the SDK is loaded when the first request is made."""

from collections.abc import Mapping
from typing import Any, Protocol

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, checked_address
from agentic_trading.llm.providers.hosted import PrefixTtl, nothing_sent
from agentic_trading.llm.providers.keys import ClientPerKey, Keys

API = "https://api.anthropic.com"


class KeyedClient(Provider, Protocol):
    """What speaks to the API with one key."""

    async def describe_model(self, model: str) -> Mapping[str, Any]:
        """Return the API's own entry of a model as JSON; raises `ProviderError`."""
        ...


class AnthropicProvider:
    """Ask the Messages API once a request: no retries, no telemetry, no key or address from the environment.

    The key is the tenant's (`keys`), looked up for each request. `base_url` is for a gateway or a stub of the same
    API. `stable_prefix_ttl` is how long the provider shall keep the stable part of a request in its cache, see
    `request.py`; empty asks for no caching. `clock` tells what an HTTP date in `Retry-After` is from now.

    Raises `ValueError` for a `base_url` that is no address. A request ends in time by the caller's `asyncio.timeout`;
    the SDK's own limit lies a little behind the envelope's `attempt_timeout_s`.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        stable_prefix_ttl: PrefixTtl = "5m",
        clock: Clock | None = None,
    ) -> None:
        self._base_url = API if base_url is None else checked_address(base_url)
        self._ttl: PrefixTtl = stable_prefix_ttl
        self._clock = clock or SystemClock()
        self._by_key = ClientPerKey[KeyedClient](keys, self._connect)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Ask for one completion; raises `ProviderError` for anything that fails, a cut answer among it."""
        async with self._by_key.lent(request.envelope.tenant_id) as provider:
            return await provider.complete(request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of input tokens; it is not billed. Raises `ProviderError`."""
        async with self._by_key.lent(request.envelope.tenant_id) as provider:
            return await provider.count_tokens(request)

    async def describe_model(self, tenant_id: str, model: str) -> Mapping[str, Any]:
        """Return the API's own entry of a model as JSON; nothing is billed. Raises `ProviderError`."""
        async with self._by_key.lent(tenant_id) as line:
            return await line.describe_model(model)

    async def aclose(self) -> None:
        """Close all connections; harmless twice."""
        await self._by_key.aclose()

    def _connect(self, key: str) -> KeyedClient:
        """Load the SDK, which takes most of a second and reads thousands of files: in a thread, and not before."""
        with nothing_sent():
            from agentic_trading.llm.providers.anthropic.client import AnthropicClient  # noqa: PLC0415 - see above

            return AnthropicClient(key, base_url=self._base_url, ttl=self._ttl, clock=self._clock)
