"""The body that is sent and the body that comes back, without a server."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.llm.providers.anthropic.messages import read_message
from agentic_trading.llm.providers.hosted import HttpReply
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.openai.provider import (
    Dialect,
    OpenAIProvider,
    completion_body,
    model_response,
    takes_strict,
)
from agentic_trading.llm.redaction import Redaction
from tests.structured.asking import ANSWER, ORDER, request

OPEN = {"type": "string"}
TOKENS = st.integers(0, 10**6)


def sent(dialect: Dialect = "openai", *, logprobs: bool = False, **changes: Any) -> dict[str, Any]:
    """Return the body of a request; `changes` are fields of `ModelRequest`."""
    return completion_body(replace(request(), **changes), dialect, logprobs=logprobs)


def read(choice: dict[str, Any] | None = None, **changes: Any) -> ModelResponse:
    """Return what a completion is read as; `changes` are its fields, one that is None is left out."""
    completion = {
        "id": "c-1",
        "model": "m-1",
        "choices": [{"message": {"content": "{}"}, "finish_reason": "stop", **(choice or {})}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        **changes,
    }
    body = {name: value for name, value in completion.items() if value is not None}
    return model_response(HttpReply(json.dumps(body).encode(), "r-1"))


def failure(body: bytes) -> ProviderError:
    """Return why a body is not taken."""
    with pytest.raises(ProviderError) as failed:
        model_response(HttpReply(body, "r-1"))
    assert (failed.value.sent, failed.value.provider_request_id) == (True, "r-1")
    return failed.value


def test_instructions_are_the_system_text_and_data_is_the_users() -> None:
    made = request()

    assert completion_body(made, "openai", logprobs=False)["messages"] == [
        {"role": "system", "content": made.system},
        {"role": "user", "content": made.user},
    ]


def test_openai_gets_the_cap_in_its_own_field_and_to_keep_no_copy_and_to_bill_at_the_standard_tier() -> None:
    body = sent("openai")

    assert (body["max_completion_tokens"], body["store"], body["service_tier"]) == (
        request().max_tokens,
        False,
        "default",
    )
    assert "max_tokens" not in body


def test_another_server_gets_the_cap_in_the_older_word_and_nothing_that_only_openai_knows() -> None:
    body = sent("compatible")

    assert body["max_tokens"] == request().max_tokens
    assert {"max_completion_tokens", "store", "service_tier"}.isdisjoint(body)


def test_what_a_request_leaves_open_is_not_sent() -> None:
    body = sent(transport="prompted", response_schema=None, temperature=None, effort=None)

    assert {"temperature", "reasoning_effort", "response_format", "logprobs"}.isdisjoint(body)


def test_effort_temperature_and_logprobs_are_sent_where_they_are_asked_for() -> None:
    body = sent(temperature=0.0, effort="high", logprobs=True)

    assert (body["temperature"], body["reasoning_effort"], body["logprobs"]) == (0.0, "high", True)


@pytest.mark.parametrize("capabilities", [None, Capabilities([])])
def test_no_logprobs_are_asked_of_a_model_that_nothing_is_known_of(capabilities: Capabilities | None) -> None:
    provider = OpenAIProvider(OneKey("none"), capabilities=capabilities)

    assert provider._offers_logprobs(request()) is False


def test_a_native_schema_is_sent_under_the_letters_of_its_id() -> None:
    form = sent(transport="native_schema", response_schema=ANSWER)["response_format"]

    assert form == {
        "type": "json_schema",
        "json_schema": {"name": "answer_v1", "schema": ANSWER, "strict": True},
    }


def test_a_schema_without_an_id_is_called_answer() -> None:
    nameless = {name: value for name, value in ANSWER.items() if name != "$id"}

    form = completion_body(request(expected_output_schema=nameless), "openai", logprobs=False)[
        "response_format"
    ]

    assert form["json_schema"]["name"] == "answer"


def test_json_mode_asks_for_an_object() -> None:
    assert sent(transport="json_mode")["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    "schema",
    [
        ORDER,
        {"type": "object", "anyOf": [OPEN]},
        {"properties": {"a": {"allOf": [OPEN]}}, "required": ["a"]},
        {
            "properties": {"a": {"$ref": "#/$defs/b", "description": "a"}},
            "required": ["a"],
            "$defs": {"b": OPEN},
        },
        {"properties": {"a": {"items": {"properties": {"b": OPEN}}}}, "required": ["a"]},
        {"properties": {"a": {"anyOf": [{"properties": {"b": OPEN}}]}}, "required": ["a"]},
    ],
)
def test_a_schema_that_strict_does_not_take_is_sent_as_a_wish(schema: dict[str, Any]) -> None:
    assert takes_strict(schema) is False


def test_a_property_may_be_called_like_a_keyword() -> None:
    assert takes_strict({"properties": {"allOf": OPEN, "$ref": OPEN}, "required": ["allOf", "$ref"]})


def test_an_answer_keeps_its_text_its_reason_and_its_ids() -> None:
    answer = read({"message": {"content": "hi"}})

    assert (answer.text, answer.stop_reason, answer.model) == ("hi", "stop", "m-1")
    assert (answer.provider_request_id, answer.provider_response_id) == ("r-1", "c-1")


def test_details_that_are_null_count_nothing() -> None:
    usage = read(
        usage={"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": None}}
    ).usage

    assert (usage.input_tokens, usage.cache_read_tokens, usage.thinking_tokens) == (3, 0, 0)


def test_a_refusal_is_the_reason_and_the_text() -> None:
    answer = read({"message": {"content": None, "refusal": "No."}})

    assert (answer.stop_reason, answer.text) == ("refusal", "No.")


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_an_answer_that_calls_a_tool_that_was_not_offered_has_no_text(reason: str) -> None:
    answer = read({"finish_reason": reason, "message": {"content": '{"action":"buy"}'}})

    assert (answer.stop_reason, answer.text) == (reason, "")


def test_half_a_surrogate_pair_is_read_as_it_is() -> None:
    assert read({"message": {"content": "\ud83d"}}).text == "\ud83d"


def test_a_server_may_leave_out_what_is_not_needed() -> None:
    answer = read(id=None, model=None, service_tier=None)

    assert (answer.model, answer.provider_response_id, answer.usage.service_tier) == ("", "", "")


@pytest.mark.parametrize("reason", ["abort", "error", "ERROR", "insufficient_system_resource"])
def test_an_answer_that_was_broken_off_is_a_servers_error(reason: str) -> None:
    completion = {"choices": [{"message": {"content": "{}"}, "finish_reason": reason}]}

    assert failure(json.dumps(completion).encode()).kind is FailureKind.SERVER_ERROR


@pytest.mark.parametrize(("reason", "word"), [(None, ""), ("", ""), ("MAX_TOKENS", "MAX_TOKENS"), (7, "7")])
def test_stop_reason_is_kept_as_it_is_spelled(reason: object, word: str) -> None:
    assert read({"finish_reason": reason}).stop_reason == word


def test_a_logprob_that_no_record_can_spell_is_left_out() -> None:
    tokens = [{"logprob": -0.5}, {"logprob": float("-inf")}, {"logprob": float("nan")}]

    assert read({"logprobs": {"content": tokens}}).logprobs == (-0.5,)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"\xff", b"[" * 10**6],
)
def test_a_body_that_is_no_completion_is_a_servers_error(body: bytes) -> None:
    assert failure(body).kind is FailureKind.SERVER_ERROR


@given(st.binary(max_size=80))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    assert failure(body).kind is FailureKind.SERVER_ERROR


@pytest.mark.parametrize(
    "url",
    [
        "api.openai.com",
        "ftp://host/v1",
        "http://",
        "https://h/v1?key=1",
        "https://h/v1#x",
        "http://[::1",
        "http://h:99999",
    ],
)
def test_a_base_url_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="Allowed: "):
        OpenAIProvider(OneKey("none"), base_url=url)


def test_a_base_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="with a password in it") as refused:
        OpenAIProvider(OneKey("none"), base_url="https://me:secret@host/v1")

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        (None, "openai"),
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://openai.com.evil.example/v1", "compatible"),
        ("https://myopenai.com/v1", "compatible"),
        ("http://127.0.0.1:8080/v1", "compatible"),
    ],
)
def test_the_host_says_which_dialect_is_spoken(url: str | None, dialect: str) -> None:
    assert OpenAIProvider(OneKey("none"), base_url=url)._dialect == dialect


def test_error_with_a_usage_names_the_model_that_served() -> None:
    used = {"prompt_tokens": 10, "completion_tokens": 5}
    failed = failure(json.dumps({"error": {"message": "m"}, "model": "big", "usage": used}).encode())

    assert isinstance(failed, UnusableAnswerError)
    assert failed.model == "big"


KEY = "sk-stub-0123456789"


@pytest.mark.parametrize(
    "page",
    [
        {"error": {"message": "@", "code": 401}},
        {"choices": [{"error": {"message": "@", "code": 401}}]},
        {"text": "@"},
    ],
)
def test_key_in_an_error_is_taken_out_before_its_message_is_shortened(page: dict[str, Any]) -> None:
    for before in (*range(160, 200, 4), *range(440, 500, 4)):
        body = json.dumps(page).replace("@", f"{'.' * before}{KEY}").encode()
        with pytest.raises(ProviderError) as failed:
            model_response(HttpReply(body, "r-1", redaction=Redaction(KEY)))

        assert "sk-" not in failed.value.message


NO_ERROR = {"message": "", "type": "", "param": "", "code": None}


def test_error_of_nulls_and_empty_texts_is_no_error() -> None:
    assert read(error=NO_ERROR).text == "{}"
    assert read({"error": NO_ERROR}).text == "{}"


def test_field_of_any_size_or_depth_fails_no_answer() -> None:
    each = [{"logprob": one} for one in (10**400, True, -0.5, -2)]
    usage = "[" * 900 + "1" + "]" * 900

    assert read({"logprobs": {"content": each}}).logprobs == (-0.5, -2.0)
    error = failure(b'{"error": {"message": "m"}, "usage": {"a": %b}}' % usage.encode())
    assert error.message == "HTTP 200 with an error: m"


@pytest.mark.parametrize(
    ("page", "kind", "sent", "wait_s"),
    [
        (
            [{"error": {"code": 429, "message": "m", "details": [{"retryDelay": "7s"}]}}],
            FailureKind.RATE_LIMIT,
            False,
            7,
        ),
        ({"message": "m", "code": 401}, FailureKind.AUTH_ERROR, False, None),
        ({"detail": "m", "status_code": 404}, FailureKind.INVALID_REQUEST, False, None),
    ],
)
@pytest.mark.parametrize("reader", [model_response, read_message])
def test_error_in_a_list_or_at_the_root_is_read(
    reader: Callable[[HttpReply], ModelResponse],
    page: Any,
    kind: FailureKind,
    wait_s: float | None,
    *,
    sent: bool,
) -> None:
    with pytest.raises(ProviderError, match=": m") as failed:
        reader(HttpReply(json.dumps(page).encode(), "r-1"))

    e = failed.value
    assert (e.kind, e.sent, e.retry_after_s) == (kind, sent, wait_s)
