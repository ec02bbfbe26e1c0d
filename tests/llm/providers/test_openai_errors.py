"""What each answer that is an error means, at OpenAI and at servers that speak alike."""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import openai
import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.errors import MESSAGE_CHARS, provider_error
from agentic_trading.llm.providers.openai.provider import ERRORS
from agentic_trading.llm.redaction import Redaction

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CLASSES: dict[type[openai.APIStatusError], tuple[int, FailureKind, bool]] = {
    openai.BadRequestError: (400, FailureKind.INVALID_REQUEST, False),
    openai.AuthenticationError: (401, FailureKind.AUTH_ERROR, False),
    openai.OAuthError: (401, FailureKind.AUTH_ERROR, False),
    openai.PermissionDeniedError: (403, FailureKind.AUTH_ERROR, False),
    openai.NotFoundError: (404, FailureKind.INVALID_REQUEST, False),
    openai.ConflictError: (409, FailureKind.SERVER_ERROR, True),
    openai.UnprocessableEntityError: (422, FailureKind.INVALID_REQUEST, False),
    openai.RateLimitError: (429, FailureKind.RATE_LIMIT, False),
    openai.InternalServerError: (500, FailureKind.SERVER_ERROR, True),
}
"""Each error that the SDK makes of an answer, the status of that, and what it means."""


class Refused(NamedTuple):
    """An answer that is an error."""

    status: int
    body: bytes
    headers: dict[str, str]


def refused(status: int, error: object = None, **headers: str) -> Refused:
    """Return an answer whose body holds `error`."""
    return Refused(status, json.dumps({"error": error}).encode(), headers)


def mapped(
    answer: Refused, *, redaction: Redaction | None = None, with_schema: bool = False
) -> ProviderError:
    """Return what an answer means for a call."""
    return provider_error(
        ERRORS,
        answer.status,
        answer.headers,
        answer.body,
        redaction=redaction or Redaction("sk-secret"),
        with_schema=with_schema,
        now=NOW,
    )


def test_every_sdk_status_error_has_meaning() -> None:
    # By `type`: the SDK's proxies load most of it when they are asked for their class.
    offered = {thing for thing in list(vars(openai).values()) if type(thing) is type}

    assert {one for one in offered if issubclass(one, openai.APIStatusError)} == {
        *CLASSES,
        openai.APIStatusError,
    }


@pytest.mark.parametrize("made", CLASSES)
def test_sdk_error_class_matches_status_meaning(
    made: type[openai.APIStatusError],
) -> None:
    status, kind, sent = CLASSES[made]

    error = mapped(refused(status))

    assert (error.kind, error.sent) == (kind, sent)


@pytest.mark.parametrize(
    ("status", "kind", "sent"),
    [
        (307, FailureKind.INVALID_REQUEST, True),
        (400, FailureKind.INVALID_REQUEST, False),
        (401, FailureKind.AUTH_ERROR, False),
        (402, FailureKind.BILLING, False),
        (403, FailureKind.AUTH_ERROR, False),
        (404, FailureKind.INVALID_REQUEST, False),
        (408, FailureKind.TIMEOUT, True),
        (409, FailureKind.SERVER_ERROR, True),
        (413, FailureKind.INVALID_REQUEST, False),
        (418, FailureKind.INVALID_REQUEST, True),
        (422, FailureKind.INVALID_REQUEST, False),
        (429, FailureKind.RATE_LIMIT, False),
        (500, FailureKind.SERVER_ERROR, True),
        (502, FailureKind.SERVER_ERROR, True),
        (503, FailureKind.SERVER_ERROR, True),
        (504, FailureKind.TIMEOUT, True),
        (529, FailureKind.SERVER_ERROR, False),
        (599, FailureKind.SERVER_ERROR, True),
    ],
)
def test_status_meaning_ignores_body(status: int, kind: FailureKind, *, sent: bool) -> None:
    bodies: list[object] = [None, "", "<html>", [], {}, {"message": 7, "code": 1, "type": None, "param": []}]
    for body in bodies:
        error = mapped(refused(status, body))
        assert (error.kind, error.sent) == (kind, sent)


@pytest.mark.parametrize("field", ["code", "type"])
def test_spent_quota_is_billing_failure(field: str) -> None:
    e = mapped(refused(429, {"message": "You exceeded your current quota", field: "insufficient_quota"}))

    assert (e.kind, e.sent) == (FailureKind.BILLING, False)


def test_filtered_prompt_is_refusal() -> None:
    assert mapped(refused(400, {"code": "content_filter"})).kind is FailureKind.REFUSAL


@pytest.mark.parametrize("page", [b"", b"<html>", b"[[", b"5", b"\xff"])
def test_error_page_follows_status(page: bytes) -> None:
    error = mapped(Refused(503, page, {}))

    assert (error.kind, error.sent) == (FailureKind.SERVER_ERROR, True)


@pytest.mark.parametrize(
    "body",
    [
        {"message": "x", "param": "response_format"},
        {"message": "x", "param": "response_format.json_schema"},
        {"message": "Invalid schema for response_format 'a': too many properties"},
        {"message": "Failed to parse grammar"},
        {"message": "x", "param": "tools[0].function.parameters"},
        {"message": '"auto" tool choice requires --enable-auto-tool-choice'},  # vLLM's
        {
            "message": "Automatic parser generation failed: JSON schema error at #: unrecognized type"
        },  # llama.cpp's
        {"detail": [{"loc": ["body", "response_format"], "msg": "extra fields not permitted"}]},
    ],
)
def test_schema_rejection_requires_sent_schema(body: dict[str, Any]) -> None:
    for status in (400, 422):
        error = mapped(refused(status, body), with_schema=True)
        assert (error.kind, error.sent) == (FailureKind.SCHEMA_REFUSED, False)
        assert mapped(refused(status, body)).kind is FailureKind.INVALID_REQUEST


@pytest.mark.parametrize("message", ["context too long", "the account is restricted"])
def test_unrelated_bad_request_keeps_own_kind(message: str) -> None:
    e = mapped(refused(400, {"message": message, "param": "messages"}), with_schema=True)

    assert (e.kind, e.message) == (FailureKind.INVALID_REQUEST, f"HTTP 400: {message}")


def test_error_message_is_cut_and_redacted() -> None:
    e = mapped(refused(500, {"message": "key sk-secret " + "x" * 10_000}))

    assert "sk-secret" not in e.message
    assert len(e.message) == MESSAGE_CHARS


def test_common_word_key_is_not_redacted() -> None:
    assert (
        mapped(refused(500, {"message": "none left"}), redaction=Redaction("none")).message
        == "HTTP 500: none left"
    )


def test_empty_error_shows_status() -> None:
    assert mapped(refused(500, {})).message == "HTTP 500: no message"


def test_error_keeps_id_and_wait() -> None:
    e = mapped(refused(429, None, **{"x-request-id": "req-9", "retry-after": "3"}))

    assert (e.provider_request_id, e.retry_after_s) == ("req-9", 3)


def google(delay: object) -> dict[str, Any]:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    return {"code": 429, "message": "m", "details": [{"@type": "QuotaFailure"}, info]}


@pytest.mark.parametrize(
    ("delay", "wait_s"),
    [
        ("3s", 3),
        ("3.5s", 3.5),
        ("0s", 0),
        ({"seconds": 3, "nanos": 500_000_000}, 3.5),
        ({"seconds": "3"}, 3),
        ("9999999s", 86_400),
        ("3", None),
        ("-3s", None),
        ("nans", None),
        ({"seconds": -3}, None),
        (3.25, None),
        (None, None),
    ],
)
def test_wait_in_the_body_is_kept(delay: object, wait_s: float | None) -> None:
    error = google(delay)

    for page in ({"error": error}, [{"error": error}], {"error": {**error, "details": error["details"][1]}}):
        answer = Refused(429, json.dumps(page).encode(), {})
        assert mapped(answer).retry_after_s == wait_s
        assert mapped(answer).kind is FailureKind.RATE_LIMIT


@pytest.mark.parametrize(("header", "wait_s"), [("1", 3), ("7", 7)])
def test_longer_retry_wait_wins(header: str, wait_s: float) -> None:
    assert mapped(refused(429, google("3s"), **{"retry-after": header})).retry_after_s == wait_s


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("You have reached your monthly spend limit", FailureKind.BILLING),
        ("Insufficient credits. Add more", FailureKind.BILLING),
        ("insufficient_quota", FailureKind.BILLING),
        ("Your credit balance is too low", FailureKind.BILLING),
        ("Quota of this minute is used up", FailureKind.RATE_LIMIT),
        ("You exceeded your current quota, please check your plan and billing details", FailureKind.RATE_LIMIT),
        ("rate limit of tokens per minute", FailureKind.RATE_LIMIT),
    ],
)  # fmt: skip
def test_rate_limit_message_can_mean_billing(message: str, kind: FailureKind) -> None:
    assert mapped(refused(429, {"message": message})).kind is kind
