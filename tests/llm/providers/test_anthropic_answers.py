"""What stands in a message of the API, or in its place."""

import json
from typing import Any

import anthropic
import httpx2
import pytest

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelResponse
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


@pytest.mark.parametrize("content", [["text"], [None], [{"type": "text"}], [{"type": "text", "text": 5}]])
def test_blocks_that_are_none_are_no_answer(content: list[object]) -> None:
    with pytest.raises(ProviderError, match="other blocks") as failed:
        read(content=content)

    assert (failed.value.kind, failed.value.sent) == (FailureKind.SERVER_ERROR, True)


@pytest.mark.parametrize(
    "page", [b"[[", b"[" * 100_000, b"5", b'{"input_tokens": -1}', b'{"input_tokens": true}']
)
def test_a_page_without_a_count_has_none(page: bytes) -> None:
    assert count_in(HttpReply(page, "")) is None


@pytest.mark.parametrize("reason", [None, "", 5, ["end_turn"]])
def test_an_answer_without_a_word_for_its_end_was_cut(reason: object) -> None:
    with pytest.raises(ProviderError, match="no stop reason"):
        read(stop_reason=reason)


@pytest.mark.parametrize("nonsense", [None, 5, {}])
def test_a_server_that_does_not_say_who_it_is_has_no_name(nonsense: object) -> None:
    answer = read(id=nonsense, model=nonsense)

    assert (answer.model, answer.provider_response_id) == ("", "")


@pytest.mark.parametrize("count", [True, "7", 7.5, 7.0, -7, None, 2**60])
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_a_count_that_is_no_whole_number_is_no_usage(name: str, count: object) -> None:
    with pytest.raises(ProviderError, match="what it used") as failed:
        read(usage=USED | {name: count})

    assert (failed.value.sent, failed.value.kind) == (True, FailureKind.INTERNAL_ERROR)


@pytest.mark.parametrize(
    "nothing", [{"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}, {"input_tokens": 0}]
)
def test_an_answer_that_used_nothing_does_not_say_what_it_used(nothing: dict[str, int]) -> None:
    with pytest.raises(ProviderError, match="charged at what was set aside"):
        read(usage=USED | {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0} | nothing)


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
def test_what_was_written_to_the_cache_is_counted_by_sum_or_by_parts(
    told: int | None, by_kind: dict[str, int | None] | None, counted: tuple[int, int]
) -> None:
    usage = read(usage=USED | {"cache_creation_input_tokens": told, "cache_creation": by_kind}).usage

    assert (usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == counted


def test_a_negative_write_to_the_cache_is_no_usage() -> None:
    with pytest.raises(ProviderError, match="what it used"):
        read(usage=USED | {"cache_creation_input_tokens": -5})


@pytest.mark.parametrize(
    "error",
    [{"type": ["x"], "message": "m"}, {"type": "t", "message": {"a": 1}}, {"type": "t", "message": 5}, "no"],
)
def test_an_error_in_a_form_of_its_own_means_what_its_status_means(error: object) -> None:
    turned_away, failed = meant(refused(429, error)), meant(refused(500, error))

    assert (turned_away.kind, turned_away.sent) == (FailureKind.RATE_LIMIT, False)
    assert (failed.kind, failed.sent) == (FailureKind.SERVER_ERROR, True)


def test_a_key_that_is_repeated_in_another_form_is_not_shown() -> None:
    error = meant(refused(401, {"type": "t", "message": ["sk-secret-1"]}), "sk-secret-1")

    assert "['***']" in error.message


def test_a_connection_that_failed_before_says_nothing_about_this_one() -> None:
    lost = httpx2.ReadError("lost")
    lost.__context__ = httpx2.ConnectTimeout("another call of the caller's, being handled")
    e = anthropic.APIConnectionError(request=httpx2.Request("POST", "http://host"))
    e.__cause__ = lost

    assert meant(e).sent
