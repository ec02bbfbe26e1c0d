"""What each error of the SDK means: a table that names them all."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import openai
import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.providers.openai.errors import (
    BY_TYPE,
    MESSAGE_CHARS,
    classify_openai_error,
    provider_error,
)
from agentic_trading.llm.redaction import Redaction

NOW = datetime(2026, 1, 2, tzinfo=UTC)
REQUEST = httpx2.Request("POST", "http://127.0.0.1:1/v1/chat/completions")
CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def refused(status: int, body: object = None, **headers: str) -> openai.APIStatusError:
    """Return the error that the SDK makes of a status."""
    response = httpx2.Response(status, headers=headers, request=REQUEST)
    by_status = CLASSES.get(status, openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return by_status("no", response=response, body=body)


def mapped(e: openai.OpenAIError, **changes: Any) -> ProviderError:
    """Return what an error means for a call."""
    call = {
        "base_url": "http://127.0.0.1:1/v1",
        "redaction": Redaction("sk-secret"),
        "with_schema": False,
        "now": NOW,
        **changes,
    }
    return provider_error(e, **call)


def public_errors() -> set[type[Exception]]:
    """Return the error classes that the SDK offers."""
    # By `type`: the SDK's proxies load most of it when they are asked for their class.
    offered = [
        thing
        for name, thing in list(vars(openai).items())
        if not name.startswith("_") and type(thing) is type
    ]
    return {thing for thing in offered if issubclass(thing, Exception)}


def test_every_public_error_class_of_the_sdk_stands_in_the_table() -> None:
    assert public_errors() - set(BY_TYPE) == set()


def test_the_table_holds_no_class_that_the_sdk_has_dropped() -> None:
    assert set(BY_TYPE) - public_errors() == set()


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
def test_a_status_means_the_same_whatever_the_body(status: int, kind: FailureKind, *, sent: bool) -> None:
    bodies: list[object] = [None, "", "<html>", [], {}, {"message": 7, "code": 1, "type": None, "param": []}]
    for body in bodies:
        assert classify_openai_error(refused(status, body)) == (kind, sent)


@pytest.mark.parametrize("field", ["code", "type"])
def test_a_spent_quota_is_billing_though_its_status_is_that_of_a_rate_limit(field: str) -> None:
    e = mapped(refused(429, {"message": "You exceeded your current quota", field: "insufficient_quota"}))

    assert (e.kind, e.sent) == (FailureKind.BILLING, False)


def test_a_filtered_prompt_is_a_refusal() -> None:
    assert mapped(refused(400, {"code": "content_filter"})).kind is FailureKind.REFUSAL


@pytest.mark.parametrize("cause", [httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout])
def test_a_request_that_never_left_was_not_sent(cause: type[httpx2.TransportError]) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause("refused")

    e = mapped(error)

    assert (e.kind, e.sent) == (FailureKind.SERVER_ERROR, False)
    assert "http://127.0.0.1:1/v1" in e.message


@pytest.mark.parametrize("cause", [httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError])
def test_a_connection_that_was_lost_may_have_been_billed(cause: type[httpx2.TransportError]) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause("Bearer sk-secret")

    e = mapped(error)

    assert (e.kind, e.sent) == (FailureKind.SERVER_ERROR, True)
    assert "sk-secret" not in e.message


def test_a_read_that_timed_out_may_have_been_billed() -> None:
    error = openai.APITimeoutError(request=REQUEST)
    error.__cause__ = httpx2.ReadTimeout("slow")

    assert (mapped(error).kind, mapped(error).sent) == (FailureKind.TIMEOUT, True)


def test_an_error_of_a_part_of_the_sdk_that_is_not_used_counts_as_sent() -> None:
    e = mapped(openai.OpenAIError("Missing credentials"))

    assert (e.kind, e.sent, e.message) == (FailureKind.INTERNAL_ERROR, True, "Missing credentials")


def test_a_class_that_the_table_does_not_know_counts_as_its_nearest_parent() -> None:
    class Newer(openai.RateLimitError):
        pass

    response = httpx2.Response(429, request=REQUEST)

    assert classify_openai_error(Newer("no", response=response, body=None)) == (FailureKind.RATE_LIMIT, False)


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
def test_a_server_that_does_not_take_the_schema_has_a_kind_of_its_own(body: dict[str, Any]) -> None:
    for status in (400, 422):
        error = mapped(refused(status, body), with_schema=True)
        assert (error.kind, error.sent) == (FailureKind.SCHEMA_REFUSED, False)
        assert mapped(refused(status, body)).kind is FailureKind.INVALID_REQUEST


@pytest.mark.parametrize("message", ["context too long", "the account is restricted"])
def test_another_bad_request_with_a_schema_is_not_blamed_on_it(message: str) -> None:
    e = mapped(refused(400, {"message": message, "param": "messages"}), with_schema=True)

    assert (e.kind, e.message) == (FailureKind.INVALID_REQUEST, f"HTTP 400: {message}")


def test_a_message_is_cut_and_never_shows_the_key() -> None:
    e = mapped(refused(500, {"message": "key sk-secret " + "x" * 10_000}))

    assert "sk-secret" not in e.message
    assert len(e.message) == MESSAGE_CHARS


def test_a_word_in_place_of_a_key_is_left_where_it_stands_in_a_message() -> None:
    assert (
        mapped(refused(500, {"message": "none left"}), redaction=Redaction("none")).message
        == "HTTP 500: none left"
    )


def test_a_server_that_says_nothing_is_quoted_by_its_status() -> None:
    assert mapped(refused(500, {})).message == "HTTP 500: no message"


def test_the_id_and_the_wait_of_an_error_are_kept() -> None:
    e = mapped(refused(429, None, **{"x-request-id": "req-9", "retry-after": "3"}))

    assert (e.provider_request_id, e.retry_after_s) == ("req-9", 3)
