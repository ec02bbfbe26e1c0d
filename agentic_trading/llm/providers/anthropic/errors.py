"""What an error of the SDK means for a call: one table, by class, and what a body says before its status."""

import re
from collections.abc import Iterator
from datetime import datetime

import aiohttp
import anthropic
import httpx2

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status, retry_after_s
from agentic_trading.llm.redaction import Redaction

_MESSAGE_CHARS = 500

_REFUSED = StatusMapping(FailureKind.INVALID_REQUEST, sent=False)
_FORBIDDEN = StatusMapping(FailureKind.AUTH_ERROR, sent=False)
_UNPAID = StatusMapping(FailureKind.BILLING, sent=False)
_LIMITED = StatusMapping(FailureKind.RATE_LIMIT, sent=False)
_TIMED_OUT = StatusMapping(FailureKind.TIMEOUT, sent=True)
_FAILED = StatusMapping(FailureKind.SERVER_ERROR, sent=True)
_TURNED_AWAY = StatusMapping(FailureKind.SERVER_ERROR, sent=False)
_OURS = StatusMapping(FailureKind.INTERNAL_ERROR, sent=True)

MEANINGS: dict[type[anthropic.AnthropicError], StatusMapping | None] = {
    anthropic.AnthropicError: _OURS,
    anthropic.RetryableError: _OURS,
    anthropic.CredentialsError: _FORBIDDEN,
    anthropic.IdentityTokenFileError: _FORBIDDEN,
    anthropic.WorkloadIdentityError: _FORBIDDEN,
    anthropic.APIError: _FAILED,
    anthropic.APIConnectionError: _FAILED,
    anthropic.APITimeoutError: _TIMED_OUT,
    anthropic.APIResponseValidationError: _FAILED,
    anthropic.APIWebhookValidationError: _OURS,
    anthropic.APIStatusError: None,
    anthropic.BadRequestError: _REFUSED,
    anthropic.CMEKKeyDisabledError: _REFUSED,
    anthropic.CMEKKeyNetworkBlockedError: _REFUSED,
    anthropic.ClaudeCodeKeyCreatorNotMemberError: _REFUSED,
    anthropic.ClaudeCodeVersionTooOldError: _REFUSED,
    anthropic.OrganizationOnHoldError: _REFUSED,
    anthropic.OrganizationTypeNotSupportedError: _REFUSED,
    anthropic.ParentOrganizationRequiredError: _REFUSED,
    anthropic.RequestBodyEncodingInvalidError: _REFUSED,
    anthropic.RequestBodyEncodingUnsupportedError: _REFUSED,
    anthropic.NotFoundError: _REFUSED,
    anthropic.PreconditionFailedError: _REFUSED,
    anthropic.ContentTooLargeError: _REFUSED,
    anthropic.RequestBodyTooLargeAfterDecodingError: _REFUSED,
    anthropic.UnprocessableEntityError: _REFUSED,
    anthropic.RequestHeaderFieldsTooLargeError: _REFUSED,
    anthropic.AuthenticationError: _FORBIDDEN,
    anthropic.PermissionDeniedError: _FORBIDDEN,
    anthropic.SandboxEgressRestrictedError: _FORBIDDEN,
    anthropic.PaymentRequiredError: _UNPAID,
    anthropic.LinkedOrganizationBillingUnavailableError: _UNPAID,
    anthropic.LinkedOrganizationSpendLimitReachedError: _UNPAID,
    anthropic.ContractSpendLimitReachedError: _UNPAID,
    anthropic.EnforcedSpendLimitReachedError: _UNPAID,
    anthropic.RateLimitError: _LIMITED,
    anthropic.RampLimitExceededError: _LIMITED,
    anthropic.OverloadedError: _TURNED_AWAY,
    anthropic.RequestTimeoutError: _TIMED_OUT,
    anthropic.GatewayTimeoutError: _TIMED_OUT,
    anthropic.ClientClosedRequestError: _TIMED_OUT,
    anthropic.ConflictError: _FAILED,
    anthropic.InternalServerError: _FAILED,
    anthropic.ServiceUnavailableError: _FAILED,
    anthropic.CMEKContextUnavailableError: _FAILED,
    anthropic.CMEKKeyUnreachableError: _FAILED,
}
"""The public error classes of the SDK; one that is not here (501) has the meaning of the class above it.

None: the status decides (`meaning_of_status`). The rows follow the same rule: a limit (429) and an overload (529) turn
a request away before it is processed, and so does a refusal. A conflict, a failure inside and a time-out say nothing
about that: it may have been processed.
"""

_BY_CODE = {
    "contract_spend_limit_reached": FailureKind.BILLING,
    "enforced_spend_limit_reached": FailureKind.BILLING,
    "linked_organization_billing_unavailable": FailureKind.BILLING,
    "linked_organization_spend_limit_reached": FailureKind.BILLING,
}
_BY_TYPE = {
    "rate_limit_error": FailureKind.RATE_LIMIT,
    "overloaded_error": FailureKind.SERVER_ERROR,
    "api_error": FailureKind.SERVER_ERROR,
    "conflict_error": FailureKind.SERVER_ERROR,
    "timeout_error": FailureKind.TIMEOUT,
    "authentication_error": FailureKind.AUTH_ERROR,
    "permission_error": FailureKind.AUTH_ERROR,
    "billing_error": FailureKind.BILLING,
    "invalid_request_error": FailureKind.INVALID_REQUEST,
    "not_found_error": FailureKind.INVALID_REQUEST,
    "request_too_large": FailureKind.INVALID_REQUEST,
}
# The API has no code for it. Its words: "The compiled grammar is too large", "Schema is too complex", "Schemas contains
# too many optional parameters (31)", "too many parameters with union types", "tools.0.custom.input_schema: ...".
_SCHEMA_PROBLEM = re.compile(
    r"grammar|schemas? (?:is|are|contains?) too|too many (?:\w+ )?parameters|output_config\.format"
    r"|\btools?\b|\btool_choice\b|\binput_schema\b|\bstrict\b",
    re.IGNORECASE,
)
_NEVER_CONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    httpx2.ConnectTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
_WHAT_HELPS = {
    FailureKind.AUTH_ERROR: "allowed is a valid key with access to the model",
    FailureKind.BILLING: "asking again does not help; raise the limit or pay",
    FailureKind.INVALID_REQUEST: "the same request will be refused again",
}


def error_of(
    e: anthropic.AnthropicError, *, redaction: Redaction, base_url: str, with_schema: bool, now: datetime
) -> ProviderError:
    """Return what `e` means; what `redaction` knows is taken out of the message, before it is shortened.

    `with_schema` says that the request held a schema to be enforced: a refusal of that has a kind of its own.
    """
    match e:
        case anthropic.APIStatusError():
            return _refused(e, redaction, with_schema=with_schema, now=now)
        case anthropic.APIConnectionError() if any(isinstance(c, _NEVER_CONNECTED) for c in _causes(e)):
            message = f"no connection to {base_url}: {_message(_last(e), redaction)}; check the address and the network"
            return ProviderError(FailureKind.SERVER_ERROR, message, sent=False)
        case anthropic.APIConnectionError():
            meaning = classify_anthropic_error(e)
            message = f"the connection to {base_url} ended without an answer: {_message(_last(e), redaction)}"
            return ProviderError(meaning.kind, message, sent=meaning.sent)
        case _:
            meaning = classify_anthropic_error(e)
            return ProviderError(meaning.kind, _message(e, redaction), sent=meaning.sent)


def classify_anthropic_error(e: anthropic.AnthropicError) -> StatusMapping:
    """Return the row of the class of `e`, or of the nearest class above it; without one its status decides."""
    row = next(MEANINGS[kind] for kind in type(e).__mro__ if kind in MEANINGS)
    if row is None and isinstance(e, anthropic.APIStatusError):
        return meaning_of_status(e.status_code)
    return row or _OURS


def _refused(
    e: anthropic.APIStatusError, redaction: Redaction, *, with_schema: bool, now: datetime
) -> ProviderError:
    """Read an answer that is an error; its type goes before its status, which a proxy may have set."""
    meaning = classify_anthropic_error(e)
    kind = _BY_CODE.get(_word(e.error_code)) or _BY_TYPE.get(_word(e.type)) or meaning.kind
    reported = redaction.text(f"{e.api_message or e.message}")[:_MESSAGE_CHARS]
    message = f"{e.status_code} {_word(e.type)}: {reported}"
    if with_schema and kind is FailureKind.INVALID_REQUEST and _SCHEMA_PROBLEM.search(reported):
        kind = FailureKind.SCHEMA_REFUSED
    if kind in _WHAT_HELPS:
        message = f"{message}; {_WHAT_HELPS[kind]}"
    return ProviderError(
        kind,
        message,
        sent=meaning.sent,
        retry_after_s=retry_after_s(e.response.headers, now=now),
        provider_request_id=e.request_id or "",
    )


def _word(value: object) -> str:
    """Return a word of an error's body, which the SDK hands on unread."""
    return value if isinstance(value, str) else ""


def _causes(e: BaseException) -> Iterator[BaseException]:
    """Yield `e` and what it was made of; not its context, which may be an earlier failure of the caller's."""
    cause: BaseException | None = e
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _last(e: BaseException) -> BaseException:
    *_, last = _causes(e)
    return last


def _message(e: BaseException, redaction: Redaction) -> str:
    return redaction.text(f"{type(e).__name__}: {e}")[:_MESSAGE_CHARS]
