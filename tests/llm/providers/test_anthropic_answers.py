"""What stands in a message of the API, or in its place."""

import json
from typing import Any

import anthropic
import httpx2
import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.llm.providers.anthropic.messages import count_in, read_message
from agentic_trading.llm.providers.anthropic.sdk import error_of
from agentic_trading.llm.providers.hosted import HttpReply
from agentic_trading.llm.redaction import Redaction
from tests.build import NOW

USED = {"input_tokens": 7, "output_tokens": 3}


def read(**changes: Any) -> ModelResponse:
    """Return what a message with `changes` is read as."""
    fields: dict[str, Any] = {
        "id": "msg_1",
        "model": "claude-sonnet-5-5",
        "content": [{"type": "text", "text": "{}"}],
        "stop_reason": "end_turn",
        "usage": USED,
    }
    return read_message(HttpReply(json.dumps(fields | changes).encode(), "req_1"))


def refused(status: int, error: object) -> anthropic.APIStatusError:
    """Return what the SDK raises for an error's body."""
    body = {"type": "error", "error": error}
    answer = httpx2.Response(status, json=body, request=httpx2.Request("POST", "http://host"))
    client = anthropic.AsyncAnthropic(api_key="good", base_url="http://host")
    return client._make_status_error_from_response(answer)


def meant(e: anthropic.AnthropicError, key: str = "good") -> ProviderError:
    """Return the error that `e` becomes."""
    return error_of(e, redaction=Redaction(key), base_url="http://host", with_schema=False, now=NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"content": ["text"]},
        {"content": [None]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": 5}]},
        {"stop_reason": "pause_turn"},
        {"stop_reason": "tool_use"},
        {"stop_reason": "error"},
        {"content": None},
    ],
)
def test_unusable_answer_usage_is_charged(changes: dict[str, object]) -> None:
    with pytest.raises(UnusableAnswerError) as failed:
        read(**changes)

    assert (failed.value.kind, failed.value.sent) == (FailureKind.SERVER_ERROR, True)
    assert (failed.value.usage.input_tokens, failed.value.usage.output_tokens) == (7, 3)
    assert (failed.value.model, failed.value.provider_request_id) == ("claude-sonnet-5-5", "req_1")


@pytest.mark.parametrize(
    "changes",
    [
        {"stop_reason": "error"},
        {"stop_reason": "error", "content": "long text"},
        {"content": [{"type": "text"}]},
        {"error": {"type": "rate_limit_error"}},
    ],
)
def test_zero_output_usage_is_in_doubt(changes: dict[str, object]) -> None:
    with pytest.raises(ProviderError) as failed:
        read(usage={"input_tokens": 200, "output_tokens": 0}, **changes)

    assert not isinstance(failed.value, UnusableAnswerError)
    assert failed.value.sent


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        ({"type": "invalid_request_error"}, FailureKind.INVALID_REQUEST, False),
        ({"type": "authentication_error"}, FailureKind.AUTH_ERROR, False),
        ({"type": "billing_error"}, FailureKind.BILLING, False),
        ({"type": "permission_error"}, FailureKind.AUTH_ERROR, False),
        ({"type": "not_found_error"}, FailureKind.INVALID_REQUEST, False),
        ({"type": "rate_limit_error"}, FailureKind.RATE_LIMIT, False),
        ({"type": "rate_limit_error", "message": "spend limit reached"}, FailureKind.BILLING, False),
        ({"type": "request_too_large"}, FailureKind.INVALID_REQUEST, True),
        ({"type": "overloaded_error"}, FailureKind.SERVER_ERROR, True),
        ({"type": "api_error"}, FailureKind.SERVER_ERROR, True),
        ({"type": "timeout_error"}, FailureKind.TIMEOUT, True),
        ({"type": "new_error"}, FailureKind.SERVER_ERROR, True),
        ({"code": 429}, FailureKind.RATE_LIMIT, False),
        ({"code": 502}, FailureKind.SERVER_ERROR, True),
        ({}, FailureKind.SERVER_ERROR, True),
    ],
)
def test_error_in_message_maps_by_table(error: dict[str, object], kind: FailureKind, *, sent: bool) -> None:
    body = {"type": "error", "error": {"message": "its words", **error}}

    with pytest.raises(ProviderError, match=r"its words|spend limit") as failed:
        read_message(HttpReply(json.dumps(body).encode(), "req_1"))

    assert (failed.value.kind, failed.value.sent) == (kind, sent)


def test_error_usage_in_message_is_charged() -> None:
    with pytest.raises(UnusableAnswerError) as failed:
        read(error={"type": "rate_limit_error"})

    assert (failed.value.kind, failed.value.model) == (FailureKind.RATE_LIMIT, "claude-sonnet-5-5")
    assert failed.value.usage.input_tokens == 7


@pytest.mark.parametrize(
    "page", [b"[[", b"[" * 100_000, b"5", b'{"input_tokens": -1}', b'{"input_tokens": true}']
)
def test_page_without_count_returns_no_count(page: bytes) -> None:
    assert count_in(HttpReply(page, "")) is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [(None, ""), ("", ""), (5, "5"), (["end_turn"], '["end_turn"]'), ("END_TURN", "END_TURN")],
)
def test_stop_reason_is_kept_as_spelled(reason: object, word: str) -> None:
    assert read(stop_reason=reason).stop_reason == word


@pytest.mark.parametrize(
    "content", ["{}", {"type": "text", "text": "{}"}, [{"type": "thinking"}, {"type": "text", "text": "{}"}]]
)
def test_message_text_comes_from_parts(content: object) -> None:
    assert read(content=content).text == "{}"


@pytest.mark.parametrize("nonsense", [None, 5, {}])
def test_invalid_model_name_becomes_empty(nonsense: object) -> None:
    answer = read(id=nonsense, model=nonsense)

    assert (answer.model, answer.provider_response_id) == ("", "5" if nonsense == 5 else "")


@pytest.mark.parametrize("count", [True, "7", 7.5, 7.0, -7, None, 2**60])
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_invalid_token_count_is_unmetered(name: str, count: object) -> None:
    answer = read(usage=USED | {name: count})

    assert answer.text == "{}"
    assert "no usage that can be read" in answer.usage.unmetered


@pytest.mark.parametrize(
    "nothing", [{"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}, {"input_tokens": 0}]
)
def test_zero_usage_for_answer_is_unmetered(nothing: dict[str, int]) -> None:
    usage = read(
        usage=USED | {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0} | nothing
    ).usage

    assert "for a call that it answered" in usage.unmetered


@pytest.mark.parametrize(
    ("told", "by_kind", "counted"),
    [
        (None, {"ephemeral_5m_input_tokens": 31, "ephemeral_1h_input_tokens": 17}, (31, 17)),
        (48, {"ephemeral_5m_input_tokens": 31, "ephemeral_1h_input_tokens": 17}, (31, 17)),
        (48, {"ephemeral_5m_input_tokens": 31}, (31, 17)),
        (48, {"ephemeral_5m_input_tokens": None, "ephemeral_1h_input_tokens": None}, (0, 48)),
        (48, None, (0, 48)),
    ],
)
def test_cache_writes_use_sum_or_parts(
    told: int | None, by_kind: dict[str, int | None] | None, counted: tuple[int, int]
) -> None:
    usage = read(usage=USED | {"cache_creation_input_tokens": told, "cache_creation": by_kind}).usage

    assert (usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == counted


def test_negative_cache_write_is_unmetered() -> None:
    assert read(usage=USED | {"cache_creation_input_tokens": -5}).usage.unmetered


@pytest.mark.parametrize(
    "error",
    [{"type": ["x"], "message": "m"}, {"type": "t", "message": {"a": 1}}, {"type": "t", "message": 5}, "no"],
)
def test_unusual_error_form_follows_status(error: object) -> None:
    turned_away, failed = meant(refused(429, error)), meant(refused(500, error))

    assert (turned_away.kind, turned_away.sent) == (FailureKind.RATE_LIMIT, False)
    assert (failed.kind, failed.sent) == (FailureKind.SERVER_ERROR, True)


def test_key_in_unusual_error_is_redacted() -> None:
    error = meant(refused(401, {"type": "t", "message": ["sk-secret-1"]}), "sk-secret-1")

    assert "['***']" in error.message


def test_unrelated_connect_error_context_is_ignored() -> None:
    lost = httpx2.ReadError("lost")
    lost.__context__ = httpx2.ConnectTimeout("another call of the caller's, being handled")
    e = anthropic.APIConnectionError(request=httpx2.Request("POST", "http://host"))
    e.__cause__ = lost

    assert meant(e).sent
