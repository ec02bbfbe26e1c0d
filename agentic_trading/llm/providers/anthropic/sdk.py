"""One client of the Anthropic SDK, for its sign-ins.

Importing this module loads the SDK.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import datetime
from typing import Any

import anthropic
import httpx2

from agentic_trading.clock import Clock
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.anthropic import messages
from agentic_trading.llm.providers.errors import MESSAGE_CHARS, provider_error
from agentic_trading.llm.providers.hosted import (
    ACCEPT_ENCODING,
    HttpReply,
    PromptCacheTtl,
    StatusMapping,
    read_up_to,
    reply_of,
)
from agentic_trading.llm.providers.http import CONNECT_S, GRACE_S, meaning_of_client_error
from agentic_trading.llm.redaction import Redaction

_NEVER_CONNECTED = (httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.InvalidURL)
_FORBIDDEN = StatusMapping(FailureKind.AUTH_ERROR, sent=False)
_OURS = StatusMapping(FailureKind.INTERNAL_ERROR, sent=True)

MEANINGS: Mapping[type[anthropic.AnthropicError], StatusMapping] = {
    anthropic.AnthropicError: _OURS,
    anthropic.CredentialsError: _FORBIDDEN,
    anthropic.IdentityTokenFileError: _FORBIDDEN,
    anthropic.WorkloadIdentityError: _FORBIDDEN,
    anthropic.APIError: StatusMapping(FailureKind.SERVER_ERROR, sent=True),
    anthropic.APITimeoutError: StatusMapping(FailureKind.TIMEOUT, sent=True),
    anthropic.APIWebhookValidationError: _OURS,
}
"""The failure of an SDK error without an answer, by its class or the nearest base class."""


class AnthropicSdkClient:
    """Call the API through the SDK with one key, over connections that are kept open.

    Create it in a thread, because it reads certificates. `client` is the SDK's class, such as
    `AsyncAnthropicBedrock`, and `arguments` are those of the class. All classes but `AsyncAnthropic` sign in
    without the key.
    """

    def __init__(
        self,
        key: str,
        *,
        client: str,
        arguments: Mapping[str, Any],
        base_url: str | None,
        ttl: PromptCacheTtl,
        clock: Clock,
        max_answer_bytes: int,
    ) -> None:
        self._redaction = Redaction(key)
        self._base_url = base_url or (messages.API if client == "AsyncAnthropic" else client)
        self._ttl: PromptCacheTtl = ttl
        self._clock = clock
        if client == "AsyncAnthropic":
            arguments = {**arguments, "api_key": key, "base_url": self._base_url}
        elif base_url is not None:
            arguments = {**arguments, "base_url": base_url}
        self._client = getattr(anthropic, client)(
            **arguments,
            max_retries=0,  # because every retry is paid, and must be admitted by the gateway
            http_client=anthropic.DefaultAioHttpClient(
                follow_redirects=False,
                headers={"accept-encoding": ACCEPT_ENCODING},
                event_hooks={"response": [bounded(max_answer_bytes)]},
            ),
            open_telemetry={"propagation": False, "traces": False},
        )
        # Cleared, because `ANTHROPIC_CUSTOM_HEADERS` of the environment would replace the tenant's key.
        self._client._custom_headers = {}  # noqa: SLF001 - the SDK reads the variable in its constructor alone
        # Created here, in the thread, because the first time takes a tenth of a second and would block the
        # loop.
        self._messages = self._client.messages.with_raw_response

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one completion, which never contains the key."""
        return await self._redaction.guard(self._complete(request))

    async def _complete(self, request: ModelRequest) -> ModelResponse:
        arguments = messages.sendable(lambda: messages.create_arguments(request, ttl=self._ttl))
        has_schema = request.response_schema is not None
        reply = await self._asked(self._messages.create, arguments, request, with_schema=has_schema)
        return messages.read_message(reply, offers_tools="tools" in arguments)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the count of input tokens, or None if the server gives none."""
        arguments = messages.sendable(lambda: messages.count_arguments(request, ttl=self._ttl))
        try:
            return messages.count_in(await self._asked(self._messages.count_tokens, arguments, request))
        except ProviderError as e:
            e.sent = False  # because a count is free
            raise

    async def aclose(self) -> None:
        """Close the connections. You may call it twice."""
        await self._client.close()

    async def _asked(
        self,
        ask: Callable[..., Awaitable[Any]],
        arguments: Mapping[str, Any],
        request: ModelRequest,
        *,
        with_schema: bool = False,
    ) -> HttpReply:
        """Return the reply.

        Reads have a limit, because the SDK refuses long answers without one.
        """
        read_s = request.envelope.retry_policy.attempt_timeout_s + GRACE_S
        with self._errors_mapped(with_schema=with_schema):
            reply = await ask(**arguments, timeout=anthropic.Timeout(read_s, connect=CONNECT_S))
            return reply_of(
                await reply.read(),
                reply.headers,
                messages.ERRORS.request_id,
                with_schema=with_schema,
                redaction=self._redaction,
                now=self._clock.now(),
            )

    @contextmanager
    def _errors_mapped(self, *, with_schema: bool) -> Iterator[None]:
        """Raise an error of the SDK as a `ProviderError` that never contains the key."""
        try:
            yield
        except anthropic.AnthropicError as e:
            ours = next((cause for cause in _causes(e) if isinstance(cause, ProviderError)), None)
            if ours is not None:  # raised by `bounded`
                raise ours from None
            now = self._clock.now()
            error = error_of(
                e, redaction=self._redaction, base_url=self._base_url, with_schema=with_schema, now=now
            )
            error.__cause__ = e
            raise self._redaction.error(error) from error.__cause__


def error_of(
    e: anthropic.AnthropicError, *, redaction: Redaction, base_url: str, with_schema: bool, now: datetime
) -> ProviderError:
    """Return the `ProviderError` of an SDK error, without secrets of `redaction`."""
    if isinstance(e, anthropic.APIStatusError):
        reply = e.response
        return provider_error(
            messages.ERRORS, reply.status_code, reply.headers, reply.content,
            redaction=redaction, with_schema=with_schema, now=now,
        )  # fmt: skip
    last = list(_causes(e))[-1]
    message = redaction.text(f"{type(last).__name__}: {last}")[:MESSAGE_CHARS]
    kind, sent = next(MEANINGS[one] for one in type(e).__mro__ if one in MEANINGS)
    if isinstance(e, anthropic.APIConnectionError):
        if any(_never_connected(cause) for cause in _causes(e)):
            kind, sent = FailureKind.SERVER_ERROR, False
        was = "ended" if sent else "was not made"
        message = f"the connection to {base_url} {was} ({message}); check the address and the network"
    return ProviderError(kind, message, sent=sent)


def _never_connected(cause: BaseException) -> bool:
    if isinstance(cause, _NEVER_CONNECTED):
        return True
    return isinstance(cause, OSError) and not meaning_of_client_error(cause).sent


def _causes(e: BaseException) -> Iterator[BaseException]:
    """Yield `e` and its causes.

    Its context is left out, because it may be an unrelated error of the caller.
    """
    cause: BaseException | None = e
    while cause is not None:
        yield cause
        cause = cause.__cause__


def bounded(max_bytes: int) -> Callable[[Any], Awaitable[None]]:
    """Return a hook of the SDK's HTTP client that reads each response up to a limit."""

    async def read(response: Any) -> None:
        packing, is_answer = response.headers.get("content-encoding", ""), response.is_success
        async with aclosing(response.aiter_raw()) as pieces:
            body = await read_up_to(
                pieces, packing, max_bytes, is_answer=is_answer, breaks_off=(httpx2.TransportError,)
            )
        response._content = body  # noqa: SLF001 - where the client looks before it reads on

    return read
