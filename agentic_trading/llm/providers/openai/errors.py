"""Turn what the SDK raises into a `ProviderError`: by type first, then by code, then by status."""

import re
from datetime import datetime
from typing import Final

import openai

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status, retry_after_s

MESSAGE_CHARS = 500
"""A server's message is kept up to this length: some answer with a page."""


_UNSEEN: Final = StatusMapping(FailureKind.INTERNAL_ERROR, sent=True)

BY_TYPE: Final[dict[type[Exception], StatusMapping | None]] = {
    openai.AuthenticationError: StatusMapping(FailureKind.AUTH_ERROR, sent=False),
    openai.OAuthError: StatusMapping(FailureKind.AUTH_ERROR, sent=False),
    openai.PermissionDeniedError: StatusMapping(FailureKind.AUTH_ERROR, sent=False),
    openai.BadRequestError: StatusMapping(FailureKind.INVALID_REQUEST, sent=False),
    openai.NotFoundError: StatusMapping(FailureKind.INVALID_REQUEST, sent=False),
    openai.UnprocessableEntityError: StatusMapping(FailureKind.INVALID_REQUEST, sent=False),
    openai.RateLimitError: StatusMapping(FailureKind.RATE_LIMIT, sent=False),
    openai.ConflictError: StatusMapping(FailureKind.SERVER_ERROR, sent=True),
    openai.InternalServerError: None,
    openai.APIStatusError: None,
    openai.APITimeoutError: StatusMapping(FailureKind.TIMEOUT, sent=True),
    openai.APIConnectionError: StatusMapping(FailureKind.SERVER_ERROR, sent=True),
    openai.APIResponseValidationError: StatusMapping(FailureKind.SERVER_ERROR, sent=True),
    # Raised by parts of the SDK that this adapter does not use: streams, its own parsing, web sockets, web hooks.
    openai.APIError: _UNSEEN,
    openai.OpenAIError: _UNSEEN,
    openai.LengthFinishReasonError: _UNSEEN,
    openai.ContentFilterFinishReasonError: _UNSEEN,
    openai.InvalidWebhookSignatureError: _UNSEEN,
    openai.WebSocketConnectionClosedError: _UNSEEN,
    openai.WebSocketQueueFullError: _UNSEEN,
}
"""Every public error class of the SDK; None where the status decides."""

BY_CODE: Final = {
    "insufficient_quota": StatusMapping(FailureKind.BILLING, sent=False),
    "billing_hard_limit_reached": StatusMapping(FailureKind.BILLING, sent=False),
    "billing_not_active": StatusMapping(FailureKind.BILLING, sent=False),
    "invalid_api_key": StatusMapping(FailureKind.AUTH_ERROR, sent=False),
    "content_filter": StatusMapping(FailureKind.REFUSAL, sent=False),
    "content_policy_violation": StatusMapping(FailureKind.REFUSAL, sent=False),
    "unavailable_error": StatusMapping(
        FailureKind.SERVER_ERROR, sent=False
    ),  # llama.cpp while it loads its model
}
"""Words in an error's `code` or `type` that say more than its class."""

_SHORTEST_SECRET = 8  # a shorter key is a word for a server that wants none, and may stand in any message
_NEVER_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})
_OF_THE_SCHEMA = re.compile(
    r"response_format|json[_ ]schema|invalid schema|grammar|\btools?\b|\btool_choice\b|\bstrict\b",
    re.IGNORECASE,
)


def provider_error(
    e: openai.OpenAIError, *, base_url: str, key: str, with_schema: bool, now: datetime
) -> ProviderError:
    """Return what `e` means for the call. The message never holds `key`, even where the server repeats it.

    `with_schema` says that the request held a schema: a refusal of that has a kind of its own.
    """
    if isinstance(e, openai.APIConnectionError):
        return _unconnected(e, base_url)
    kind, sent = classify_openai_error(e)
    message = _message(e)
    if len(key) >= _SHORTEST_SECRET:
        message = message.replace(key, "***")
    message = message[:MESSAGE_CHARS]
    if with_schema and refuses_the_schema(e):
        kind, sent = FailureKind.SCHEMA_REFUSED, False
    if not isinstance(e, openai.APIStatusError):
        return ProviderError(kind, message, sent=sent)
    return ProviderError(
        kind,
        message,
        sent=sent,
        retry_after_s=retry_after_s(e.response.headers, now=now),
        provider_request_id=e.request_id or "",
    )


def classify_openai_error(e: openai.OpenAIError) -> StatusMapping:
    """Return what `e` means: the nearest class in the table, unless its code says more or its status decides."""
    by_type = next(BY_TYPE[kind] for kind in type(e).__mro__ if kind in BY_TYPE)
    if not isinstance(e, openai.APIStatusError):
        return by_type or _UNSEEN
    for word in (e.code, e.type):
        if isinstance(word, str) and word in BY_CODE:
            return BY_CODE[word]
    return by_type or meaning_of_status(e.status_code)


def refuses_the_schema(e: openai.OpenAIError) -> bool:
    """Say whether the server refuses the schema itself: it does not know the feature, or finds the schema too much."""
    if not isinstance(e, openai.BadRequestError | openai.UnprocessableEntityError):
        return False
    return _OF_THE_SCHEMA.search(f"{e.param} {_message(e)}") is not None


def _unconnected(e: openai.APIConnectionError, base_url: str) -> ProviderError:
    cause = type(e.__cause__).__name__
    if cause in _NEVER_CONNECTED:
        message = f"cannot connect to {base_url} ({cause}); check the base URL and that the server runs"
        return ProviderError(FailureKind.SERVER_ERROR, message, sent=False)
    kind, sent = classify_openai_error(e)
    return ProviderError(kind, f"the connection to {base_url} was lost ({cause})", sent=sent)


def _message(e: openai.OpenAIError) -> str:
    """Return the server's own message, in any of the forms that servers have for it."""
    if not isinstance(e, openai.APIStatusError):
        return str(e)
    body = e.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or ""
    return f"HTTP {e.status_code}: {body or 'no message'}"
