"""What an answer that is an error means: by the words of its body, else by its status."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status, retry_after_s
from agentic_trading.llm.redaction import Redaction

Vendor = Literal["anthropic", "openai"]
"""Whose form of requests and errors a server speaks."""

MESSAGE_CHARS: Final = 500
"""A server's message is kept up to this length: some answer with a page."""

KINDS_BY_WORD: Final[Mapping[tuple[Vendor, str], FailureKind]] = {
    ("anthropic", "contract_spend_limit_reached"): FailureKind.BILLING,
    ("anthropic", "enforced_spend_limit_reached"): FailureKind.BILLING,
    ("anthropic", "linked_organization_billing_unavailable"): FailureKind.BILLING,
    ("anthropic", "linked_organization_spend_limit_reached"): FailureKind.BILLING,
    ("anthropic", "rate_limit_error"): FailureKind.RATE_LIMIT,
    ("anthropic", "overloaded_error"): FailureKind.SERVER_ERROR,
    ("anthropic", "api_error"): FailureKind.SERVER_ERROR,
    ("anthropic", "conflict_error"): FailureKind.SERVER_ERROR,
    ("anthropic", "timeout_error"): FailureKind.TIMEOUT,
    ("anthropic", "authentication_error"): FailureKind.AUTH_ERROR,
    ("anthropic", "permission_error"): FailureKind.AUTH_ERROR,
    ("anthropic", "billing_error"): FailureKind.BILLING,
    ("anthropic", "invalid_request_error"): FailureKind.INVALID_REQUEST,
    ("anthropic", "not_found_error"): FailureKind.INVALID_REQUEST,
    ("anthropic", "request_too_large"): FailureKind.INVALID_REQUEST,
    ("openai", "insufficient_quota"): FailureKind.BILLING,
    ("openai", "billing_hard_limit_reached"): FailureKind.BILLING,
    ("openai", "billing_not_active"): FailureKind.BILLING,
    ("openai", "invalid_api_key"): FailureKind.AUTH_ERROR,
    ("openai", "content_filter"): FailureKind.REFUSAL,
    ("openai", "content_policy_violation"): FailureKind.REFUSAL,
    ("openai", "unavailable_error"): FailureKind.SERVER_ERROR,  # llama.cpp, while it loads its model
}
"""An error's code or type, where that says more than its status, which a proxy may have set.

A word that is not here leaves it to the status. Whether a request was processed is the status' to say as well, but for
`_TURNED_AWAY`.
"""

_TURNED_AWAY: Final = frozenset(word for vendor, word in KINDS_BY_WORD if vendor == "openai")
"""Words by which a server says that it did not work on a request, whatever the status."""

_SCHEMA_STATUSES: Final = frozenset({400, 422})


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """What is a vendor's own in its errors.

    `request_id` is the header with the id of a request; `schema_words` are found in what it says of a schema that it
    refuses, for which it has no code; `hints` are put behind a message.
    """

    vendor: Vendor
    request_id: str
    schema_words: re.Pattern[str]
    hints: Mapping[FailureKind, str] = field(default_factory=dict)


def provider_error(
    form: ErrorForm,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    redaction: Redaction,
    with_schema: bool,
    now: datetime,
) -> ProviderError:
    """Return the error that an answer with this status is; `headers` are read in any case.

    What `redaction` knows is taken out of the message, before it is shortened. `with_schema` says that the request
    held a schema to be enforced: a refusal of that has a kind of its own.
    """
    error = _error_in(body)
    kind, sent = meaning_of_error(form.vendor, status, _words(error))
    said = redaction.text(f"HTTP {status}: {_said(error)}")
    message = said[:MESSAGE_CHARS]
    if with_schema and kind is FailureKind.INVALID_REQUEST and status in _SCHEMA_STATUSES:
        about = f"{error.get('param')} {said}" if isinstance(error, Mapping) else said
        if form.schema_words.search(about):
            kind = FailureKind.SCHEMA_REFUSED
    if kind in form.hints:
        message = f"{message}; {form.hints[kind]}"
    return ProviderError(
        kind,
        message,
        sent=sent,
        retry_after_s=retry_after_s(headers, now=now),
        provider_request_id=headers.get(form.request_id, ""),
    )


def meaning_of_error(vendor: Vendor, status: int, words: Iterator[str]) -> StatusMapping:
    """Return what an error means: the first of its `words` that is known says the kind, else the status does."""
    meaning = meaning_of_status(status)
    for word in words:
        if (kind := KINDS_BY_WORD.get((vendor, word))) is not None:
            return StatusMapping(kind, sent=meaning.sent and word not in _TURNED_AWAY)
    return meaning


def _error_in(body: bytes) -> Any:
    """Return the error that a body holds, in any of the forms that servers have for it; a page as its text."""
    try:
        page = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", errors="replace")
    return page.get("error", page) if isinstance(page, Mapping) else page


def _words(error: Any) -> Iterator[str]:
    """Yield what an error calls itself, the most exact word first."""
    if isinstance(error, Mapping):
        details = error.get("details")
        exact = details.get("error_code") if isinstance(details, Mapping) else None
        yield from (word for word in (exact, error.get("code"), error.get("type")) if isinstance(word, str))


def _said(error: Any) -> str:
    said = (error.get("message") or error.get("detail")) if isinstance(error, Mapping) else error
    return str(said or "no message")
