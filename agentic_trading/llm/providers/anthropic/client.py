"""One client of the Anthropic SDK for one key; the SDK is loaded with this module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anthropic import AnthropicError, AsyncAnthropic, DefaultAioHttpClient, Timeout
from anthropic.types import Message

from agentic_trading.clock import Clock
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.anthropic.errors import error_of
from agentic_trading.llm.providers.anthropic.messages import count_arguments, create_arguments, read_message
from agentic_trading.llm.providers.hosted import ACCEPT_ENCODING, PromptCacheTtl, bounded, error_behind
from agentic_trading.llm.redaction import Redaction

CONNECT_S = 5.0
GRACE_S = 5.0
"""How much longer the SDK waits than the caller, whose limit is over the whole call and not between two bytes."""


class AnthropicClient:
    """Speak to the API with one key, over connections that are kept open. Made in a thread: certificates are read."""

    def __init__(
        self, key: str, *, base_url: str, ttl: PromptCacheTtl, clock: Clock, max_answer_bytes: int
    ) -> None:
        self._redaction = Redaction(key)
        self._base_url = base_url
        self._ttl: PromptCacheTtl = ttl
        self._clock = clock
        self._client = AsyncAnthropic(
            api_key=key,
            base_url=base_url,
            max_retries=0,  # every retry is paid, so each passes the gate
            http_client=DefaultAioHttpClient(
                follow_redirects=False,
                headers={"accept-encoding": ACCEPT_ENCODING},
                event_hooks={"response": [bounded(max_answer_bytes)]},
            ),
            open_telemetry={"propagation": False, "traces": False},
        )
        # Read from the environment otherwise, where they would go before the tenant's key.
        self._client._custom_headers = {}  # noqa: SLF001 - the SDK reads the variable in its constructor alone
        # Made here, in the thread: the first time takes a tenth of a second, which would hold up the loop.
        self._messages = self._client.messages
        self._raw = self._messages.with_raw_response
        Message.construct(
            content=[{"type": "text", "text": ""}], usage={"input_tokens": 0, "output_tokens": 0}
        )

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion, which does not repeat the key."""
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        arguments = _sendable(lambda: create_arguments(request, ttl=self._ttl))
        with self._sdk_errors_mapped(with_schema=request.response_schema is not None):
            answer: Any = await self._raw.create(**arguments, timeout=_patience(request))
            message, body = await answer.parse(), await answer.read()
        return read_message(message, body=body if "tools" in arguments else None)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the count of input tokens, or None where the address gives none."""
        arguments = _sendable(lambda: count_arguments(request, ttl=self._ttl))
        try:
            with self._sdk_errors_mapped():
                count: Any = await self._messages.count_tokens(**arguments, timeout=_patience(request))
        except ProviderError as e:
            e.sent = False  # a count is free
            raise
        tokens = getattr(count, "input_tokens", None)
        return tokens if isinstance(tokens, int) and tokens >= 0 else None

    async def aclose(self) -> None:
        """Close the connections; harmless twice."""
        await self._client.close()

    @contextmanager
    def _sdk_errors_mapped(self, *, with_schema: bool = False) -> Iterator[None]:
        """Raise an error of the SDK as a `ProviderError`, whose message and cause do not repeat the key."""
        try:
            yield
        except AnthropicError as e:
            if (ours := error_behind(e)) is not None:
                raise ours from None
            error = error_of(
                e,
                redaction=self._redaction,
                base_url=self._base_url,
                with_schema=with_schema,
                now=self._clock.now(),
            )
            error.__cause__ = e
            raise self._redaction.error(error) from error.__cause__
        except (ValueError, RecursionError) as e:  # the SDK lets through what its JSON reader says
            raise ProviderError(FailureKind.SERVER_ERROR, f"the answer is no JSON: {e}", sent=True) from e


def _sendable(spell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return spell()
    except ValueError as e:
        raise ProviderError(
            FailureKind.INVALID_REQUEST, f"the request cannot be sent: {e}", sent=False
        ) from e
    except AssertionError as e:  # the SDK's own check of a schema that it rewrites
        raise ProviderError(
            FailureKind.SCHEMA_REFUSED, f"the SDK cannot spell the schema: {e}", sent=False
        ) from e


def _patience(request: ModelRequest) -> Timeout:
    """Return a finite limit: without one the SDK refuses long answers, with its own it gives up after ten minutes."""
    return Timeout(request.envelope.retry_policy.attempt_timeout_s + GRACE_S, connect=CONNECT_S)
