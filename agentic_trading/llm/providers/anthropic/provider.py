"""Claude models as a `Provider`; the SDK is loaded when the first request is made."""

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.llm.provider import (
    MAX_ANSWER_BYTES,
    ModelRequest,
    ModelResponse,
    Provider,
    check_address,
)
from agentic_trading.llm.providers.hosted import PromptCacheTtl, nothing_sent
from agentic_trading.llm.providers.keys import ClientPerKey, Keys

API = "https://api.anthropic.com"


class AnthropicProvider:
    """Call the Messages API once a request: no retries, no telemetry, no key or address from the environment.

    The key is the tenant's (`keys`), looked up for each request. `base_url` is for a gateway or a stub of the same
    API. `stable_prefix_ttl` is how long the provider shall keep the stable part of a request in its cache; empty
    requests no caching. `clock` gives the time against which an HTTP date in `Retry-After` is read.
    An answer is read up to `max_answer_bytes`, after decompression; a longer one fails, charged.

    Raises `ValueError` for a `base_url` that is no address. A request ends in time by the caller's `asyncio.timeout`;
    the SDK's own limit lies a little behind the envelope's `attempt_timeout_s`.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        base_url: str | None = None,
        stable_prefix_ttl: PromptCacheTtl = "5m",
        clock: Clock | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._base_url = API if base_url is None else check_address(base_url)
        self._ttl: PromptCacheTtl = stable_prefix_ttl
        self._clock = clock or SystemClock()
        self._max_answer_bytes = max_answer_bytes
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
            from agentic_trading.llm.providers.anthropic.client import AnthropicClient  # noqa: PLC0415 - see above

            return AnthropicClient(
                key,
                base_url=self._base_url,
                ttl=self._ttl,
                clock=self._clock,
                max_answer_bytes=self._max_answer_bytes,
            )
