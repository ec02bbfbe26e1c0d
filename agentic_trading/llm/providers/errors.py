"""The failure kind of an error, by the words of its body or by its status."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import UnusableAnswerError
from agentic_trading.llm.providers import hosted
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import Usage

Vendor = Literal["anthropic", "openai"]
"""The vendor whose request and error format a server uses."""

MESSAGE_CHARS: Final = 500
"""The maximum length of a server's message. Some servers answer with a page."""

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
    ("openai", "unavailable_error"): FailureKind.SERVER_ERROR,  # llama.cpp while it loads its model
}
"""The kind of an error by its code or type.

A word is more exact than a status, which a proxy may have set. For other words, the status decides. Whether a
request was processed depends on the status too, except for `_TURNED_AWAY`.
"""

STATUS_BY_WORD: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "content_policy_violation": 400,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "UNAUTHENTICATED": 401,
    "billing_error": 402,
    "permission_error": 403,
    "PERMISSION_DENIED": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "NOT_FOUND": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "billing_hard_limit_reached": 429,
    "billing_not_active": 429,
    "RESOURCE_EXHAUSTED": 429,
    "api_error": 500,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "timeout_error": 504,
    "DEADLINE_EXCEEDED": 504,
    "overloaded_error": 529,
}
"""The documented status of an error code or type of Anthropic, OpenAI and Google.

It is used if an error comes with another status, such as 200, and without a number.
"""

FREE_IN_AN_ANSWER: Final = frozenset({400, 401, 402, 403, 404, 429})
"""Codes of an error within an answer of status 200 that was not billed.

If it comes with a usage, it was billed.
"""

_SPEND_LIMIT: Final = re.compile(
    r"\bspend(?:ing)?[ _-](?:limit|cap)|\binsufficient[ _-](?:quota|credits?|balance|funds)"
    r"|\b(?:out of|no|not enough) credits\b|\bcredit balance\b",
    re.IGNORECASE,
)
"""Words of a rate limit that does not end by waiting."""

_TURNED_AWAY: Final = frozenset(word for vendor, word in KINDS_BY_WORD if vendor == "openai")
"""Words of an error before any work on the request, whatever the status."""

_SCHEMA_STATUSES: Final = frozenset({400, 422})


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """The vendor-specific parts of errors.

    Attributes:
        request_id: The header with the id of a request.
        schema_words: Words in a message about a schema that the vendor refuses, because there is no code for
            it.
        hints: Texts that are added to a message.

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
    """Return the error of an answer with an error status.

    Args:
        form: The vendor's format.
        status: The HTTP status.
        headers: The headers, with names in any case.
        body: The body.
        redaction: Secrets that are removed from the message.
        with_schema: The request had a schema to enforce. A refusal of the schema has its own kind.
        now: The time, for an HTTP date in `Retry-After`.

    """
    error = _error_in(body)
    meaning = meaning_of_error(form.vendor, status, _words(error))
    # Redacted before it is shortened, because a secret that is cut in two would not be found.
    said = redaction.text(f"HTTP {status}: {_said(error)}")
    kind = _exact_kind(form, meaning.kind, status, error, said, with_schema=with_schema)
    return ProviderError(
        kind,
        _message(form, kind, said),
        sent=meaning.sent,
        retry_after_s=_longer(hosted.retry_after_s(headers, now=now), _wait_in(error)),
        provider_request_id=headers.get(form.request_id, ""),
    )


def error_in_answer(
    form: ErrorForm,
    page: Any,
    reply: hosted.HttpReply,
    usage: Usage | None,
    bill: hosted.Bill,
    *,
    model: str = "",
) -> ProviderError:
    """Return the error in an answer of status 200.

    It has the same kind as an answer with its status. A `usage` is charged at the price of `model`. Without a
    usage, codes in `FREE_IN_AN_ANSWER` were not billed, unless the server reports a bill. Others are in
    doubt.

    Args:
        form: The vendor's format.
        page: The body, or the part of it that is the error.
        reply: The reply.
        usage: The usage in it, if there is one.
        bill: The server's own bill.
        model: The model that served the request.

    """
    error = _error_of(page)
    code = _code(error, page)
    words = tuple(_words(error))
    kind = meaning_of_error(form.vendor, code or _UNKNOWN, iter(words)).kind
    said = reply.redaction.text(f"HTTP 200 with an error{f' {code}' if code else ''}: {_said(error)}")
    kind = _exact_kind(form, kind, code, error, said, with_schema=reply.with_schema)
    return unusable_answer(
        kind,
        _message(form, kind, said),
        reply,
        usage,
        bill,
        model=model,
        # A usage or a bill shows that the server charges for it. Otherwise only these codes are free
        # (decision 64).
        sent=code not in FREE_IN_AN_ANSWER or usage is not None or bool(bill.nusd),
        wait_s=_wait_in(error),
    )


def unusable_answer(
    kind: FailureKind,
    message: str,
    reply: hosted.HttpReply,
    usage: Usage | None,
    bill: hosted.Bill,
    *,
    sent: bool = True,
    model: str = "",
    wait_s: float | None = None,
) -> ProviderError:
    """Return the error of an answer that cannot be used.

    Its usage is charged if it can be read.

    `wait_s` is the wait in the body. The longer of it and the wait in the headers counts.
    """
    request_id, wait_s = reply.request_id, _longer(reply.retry_after_s, wait_s)
    if usage is not None and not usage.unmetered:
        return UnusableAnswerError(
            kind, message, usage=usage, model=model, retry_after_s=wait_s, provider_request_id=request_id
        )
    return ProviderError(
        kind,
        message,
        sent=sent,
        retry_after_s=wait_s,
        provider_request_id=request_id,
        bill_nusd=bill.nusd or 0,
    )


def body_text(reply: hosted.HttpReply, usage: Usage, bill: hosted.Bill, *, model: str) -> str:
    """Return the body of an answer that is passed on, byte for byte.

    Raises:
        ProviderError: If it is not UTF-8. The usage is charged if it can be read.

    """
    try:
        return reply.body.decode()
    except UnicodeDecodeError as e:
        why = f"the answer cannot be passed on: {e}"
        raise unusable_answer(FailureKind.SERVER_ERROR, why, reply, usage, bill, model=model) from e


def error_in(page: Mapping[str, Any]) -> Any:
    """Return the error in the body of an answer, or None.

    It is an `error` that is not empty, or the body itself: with a message or a detail, and without an answer.
    An object of nulls and empty texts is empty.
    """
    if hosted.counts_any(page.get("error")):
        return page
    has_answer = page.get("content") is not None or page.get("choices")
    is_error = page.get("object") == "error" or page.get("type") == "error"
    return page if is_error or (not has_answer and {"message", "detail"} & page.keys()) else None


def page_in(body: bytes) -> Any:
    """Return the JSON of an answer's body. A list of one error becomes that error.

    Raises:
        ValueError: If the body is not JSON.
        RecursionError: If it is nested too deeply.

    """
    # Not by orjson or pydantic, because they refuse half a surrogate pair, and a cut answer may end in one.
    page = json.loads(body)
    item = _item_of(page)
    return item if isinstance(item, dict) and error_in(item) is not None else page


_UNKNOWN: Final = 500
"""The status of an error without a known code. It counts as the server's fault."""


def meaning_of_error(vendor: Vendor, status: int, words: Iterator[str]) -> hosted.StatusMapping:
    """Return the kind of the first known word of an error, or of its status."""
    meaning = hosted.meaning_of_status(status)
    for word in words:
        if (kind := KINDS_BY_WORD.get((vendor, word))) is not None:
            # Whether it was processed follows from the status, unless the word itself shows that it was not.
            return hosted.StatusMapping(kind, sent=meaning.sent and word not in _TURNED_AWAY)
    return meaning


def _exact_kind(
    form: ErrorForm, kind: FailureKind, status: int | None, error: Any, said: str, *, with_schema: bool
) -> FailureKind:
    """Return a more exact kind if the message shows one."""
    if kind is FailureKind.RATE_LIMIT and _SPEND_LIMIT.search(said):
        return FailureKind.BILLING
    if with_schema and kind is FailureKind.INVALID_REQUEST and status in _SCHEMA_STATUSES:
        about = f"{error.get('param')} {said}" if isinstance(error, Mapping) else said
        if form.schema_words.search(about):
            return FailureKind.SCHEMA_REFUSED
    return kind


def _message(form: ErrorForm, kind: FailureKind, said: str) -> str:
    message = said[:MESSAGE_CHARS]
    return f"{message}; {form.hints[kind]}" if kind in form.hints else message


def _error_in(body: bytes) -> Any:
    """Return the error in a body, in any form that servers use.

    A page is returned as its text.
    """
    try:
        return _error_of(json.loads(body))
    except (ValueError, RecursionError):
        return body.decode("utf-8", errors="replace")


def _item_of(page: Any) -> Any:
    return page[0] if isinstance(page, list) and len(page) == 1 else page


def _error_of(page: Any) -> Any:
    page = _item_of(page)  # Google's OpenAI endpoint answers with a list of one error
    if not isinstance(page, Mapping):
        return page
    error = page.get("error")
    return error if hosted.counts_any(error) else page


def _wait_in(error: Any) -> float | None:
    """Return the wait in seconds in the details of an error, in Google's form (`RetryInfo`)."""
    details = error.get("details") if isinstance(error, Mapping) else None
    infos = details if isinstance(details, list) else [details]
    waits = [_seconds(info.get("retryDelay")) for info in infos if isinstance(info, Mapping)]
    return max((wait for wait in waits if wait is not None), default=None)


def _seconds(delay: Any) -> float | None:
    """Return a duration in seconds: `3.5s`, or an object of seconds and nanoseconds."""
    if isinstance(delay, Mapping):
        seconds, nanos = delay.get("seconds", 0), delay.get("nanos", 0)
        parts = [str(seconds), str(nanos)]
        if not all(_WHOLE.fullmatch(part) for part in parts):
            return None
        return min(float(parts[0]) + float(parts[1]) / 1e9, hosted.LONGEST_WAIT_S)
    found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
    return None if found is None else min(float(found[1]), hosted.LONGEST_WAIT_S)


_DELAY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")
_WHOLE = re.compile("[0-9]{1,12}")


def _longer(first: float | None, second: float | None) -> float | None:
    return max((wait for wait in (first, second) if wait is not None), default=None)


def _code(error: Any, page: Any) -> int | None:
    """Return the status that an error contains, as a number or a word, or None."""
    places = [place for place in (error, page) if isinstance(place, Mapping)]
    named = [place.get(name) for place in places for name in ("code", "status", "status_code")]
    numbers = (
        int(one) for one in named if type(one) is int or (isinstance(one, str) and _STATUS.fullmatch(one))
    )
    words = [*_words(error), *(one for one in named if isinstance(one, str))]
    return next(
        (one for one in numbers if 400 <= one < 600),
        next((STATUS_BY_WORD[word] for word in words if word in STATUS_BY_WORD), None),
    )


_STATUS = re.compile("[45][0-9]{2}")


def _words(error: Any) -> Iterator[str]:
    """Yield the codes and types of an error, the most exact first."""
    if isinstance(error, Mapping):
        details = error.get("details")
        exact = details.get("error_code") if isinstance(details, Mapping) else None
        yield from (word for word in (exact, error.get("code"), error.get("type")) if isinstance(word, str))


def _said(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error or "no message")
    said = str(error.get("message") or error.get("detail") or "no message")
    metadata = error.get("metadata")
    upstream = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{said} ({upstream})" if isinstance(upstream, str) and upstream else said
