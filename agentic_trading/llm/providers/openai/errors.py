"""Turn what the SDK raises into a `ProviderError`: by its code, else by its class, else by its status."""

import re
from datetime import datetime
from typing import Final

import openai

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status, retry_after_s
from agentic_trading.llm.redaction import Redaction

MESSAGE_CHARS = 500
"""A server's message is kept up to this length: some answer with a page."""

_UNEXPECTED: Final = StatusMapping(FailureKind.INTERNAL_ERROR, sent=True)

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
    openai.APIError: _UNEXPECTED,
    openai.OpenAIError: _UNEXPECTED,
    openai.LengthFinishReasonError: _UNEXPECTED,
    openai.ContentFilterFinishReasonError: _UNEXPECTED,
    openai.InvalidWebhookSignatureError: _UNEXPECTED,
    openai.WebSocketConnectionClosedError: _UNEXPECTED,
    openai.WebSocketQueueFullError: _UNEXPECTED,
}
"""Every public error class of the SDK; None where the status decides."""

_BY_CODE: Final = {
    "insufficient_quota": StatusMapping(FailureKind.BILLING, sent=False),
    "billing_hard_limit_reached": StatusMapping(FailureKind.BILLING, sent=False),
    "billing_not_active": StatusMapping(FailureKind.BILLING, sent=False),
    "invalid_api_key": StatusMapping(FailureKind.AUTH_ERROR, sent=False),
    "content_filter": StatusMapping(FailureKind.REFUSAL, sent=False),
    "content_policy_violation": StatusMapping(FailureKind.REFUSAL, sent=False),
    # llama.cpp, while it loads its model
    "unavailable_error": StatusMapping(FailureKind.SERVER_ERROR, sent=False),
}
"""By an error's `code` or `type`, where that says more than its class."""

# Names of httpx errors after which nothing can have been sent.
_NEVER_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})
_SCHEMA_WORDS = re.compile(
    r"response_format|json[_ ]schema|invalid schema|grammar|\btools?\b|\btool_choice\b|\bstrict\b",
    re.IGNORECASE,
)


def provider_error(
    e: openai.OpenAIError, *, base_url: str, redaction: Redaction, with_schema: bool, now: datetime
) -> ProviderError:
    """Return the error of the call. What `redaction` knows is taken out of its message, before it is shortened.

    `with_schema`: the request held a schema, and the refusal of a schema has a `FailureKind` of its own.
    """
    if isinstance(e, openai.APIConnectionError):
        return _connection_error(e, base_url)
    kind, sent = classify_openai_error(e)
    message = redaction.text(_message(e))[:MESSAGE_CHARS]
    if with_schema and _is_schema_refused(e):
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
    """Return the kind of `e`: by its code; else by the nearest class in `BY_TYPE`; else by its status."""
    by_type = next(BY_TYPE[error_type] for error_type in type(e).__mro__ if error_type in BY_TYPE)
    if not isinstance(e, openai.APIStatusError):
        return by_type or _UNEXPECTED
    for code in (e.code, e.type):
        if isinstance(code, str) and code in _BY_CODE:
            return _BY_CODE[code]
    return by_type or meaning_of_status(e.status_code)


def _is_schema_refused(e: openai.OpenAIError) -> bool:
    """Whether the server refuses the schema itself: it does not know the feature, or finds the schema too complex."""
    if not isinstance(e, openai.BadRequestError | openai.UnprocessableEntityError):
        return False
    return _SCHEMA_WORDS.search(f"{e.param} {_message(e)}") is not None


def _connection_error(e: openai.APIConnectionError, base_url: str) -> ProviderError:
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
