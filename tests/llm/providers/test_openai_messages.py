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


def test_instructions_are_system_data_is_user() -> None:
    made = request()

    assert completion_body(made, "openai", logprobs=False)["messages"] == [
        {"role": "system", "content": made.system},
        {"role": "user", "content": made.user},
    ]


def test_openai_body_uses_openai_only_fields() -> None:
    body = sent("openai")

    assert (body["max_completion_tokens"], body["store"], body["service_tier"]) == (
        request().max_tokens,
        False,
        "default",
    )
    assert "max_tokens" not in body


def test_compatible_body_omits_openai_fields() -> None:
    body = sent("compatible")

    assert body["max_tokens"] == request().max_tokens
    assert {"max_completion_tokens", "store", "service_tier"}.isdisjoint(body)


def test_unset_request_options_are_not_sent() -> None:
    body = sent(transport="prompted", response_schema=None, temperature=None, effort=None)

    assert {"temperature", "reasoning_effort", "response_format", "logprobs"}.isdisjoint(body)


def test_effort_temperature_and_logprobs_are_sent() -> None:
    body = sent(temperature=0.0, effort="high", logprobs=True)

    assert (body["temperature"], body["reasoning_effort"], body["logprobs"]) == (0.0, "high", True)


@pytest.mark.parametrize("capabilities", [None, Capabilities([])])
def test_unknown_model_gets_no_logprobs(capabilities: Capabilities | None) -> None:
    provider = OpenAIProvider(OneKey("none"), capabilities=capabilities)

    assert provider._offers_logprobs(request()) is False


def test_native_schema_is_named_by_id() -> None:
    form = sent(transport="native_schema", response_schema=ANSWER)["response_format"]

    assert form == {
        "type": "json_schema",
        "json_schema": {"name": "answer_v1", "schema": ANSWER, "strict": True},
    }


def test_schema_without_id_is_named_answer() -> None:
    nameless = {name: value for name, value in ANSWER.items() if name != "$id"}

    form = completion_body(request(expected_output_schema=nameless), "openai", logprobs=False)[
        "response_format"
    ]

    assert form["json_schema"]["name"] == "answer"


def test_json_mode_requests_json_object() -> None:
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
def test_schema_outside_strict_subset_is_detected(schema: dict[str, Any]) -> None:
    assert takes_strict(schema) is False


def test_property_may_be_named_like_keyword() -> None:
    assert takes_strict({"properties": {"allOf": OPEN, "$ref": OPEN}, "required": ["allOf", "$ref"]})


def test_answer_keeps_text_reason_and_ids() -> None:
    answer = read({"message": {"content": "hi"}})

    assert (answer.text, answer.stop_reason, answer.model) == ("hi", "stop", "m-1")
    assert (answer.provider_request_id, answer.provider_response_id) == ("r-1", "c-1")


def test_null_usage_details_count_zero() -> None:
    usage = read(
        usage={"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": None}}
    ).usage

    assert (usage.input_tokens, usage.cache_read_tokens, usage.thinking_tokens) == (3, 0, 0)


def test_refusal_sets_reason_and_text() -> None:
    answer = read({"message": {"content": None, "refusal": "No."}})

    assert (answer.stop_reason, answer.text) == ("refusal", "No.")


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_unoffered_tool_call_has_no_text(reason: str) -> None:
    answer = read({"finish_reason": reason, "message": {"content": '{"action":"buy"}'}})

    assert (answer.stop_reason, answer.text) == (reason, "")


def test_lone_surrogate_is_read_unchanged() -> None:
    assert read({"message": {"content": "\ud83d"}}).text == "\ud83d"


def test_optional_answer_fields_may_be_missing() -> None:
    answer = read(id=None, model=None, service_tier=None)

    assert (answer.model, answer.provider_response_id, answer.usage.service_tier) == ("", "", "")


@pytest.mark.parametrize("reason", ["abort", "error", "ERROR", "insufficient_system_resource"])
def test_broken_off_answer_is_server_error(reason: str) -> None:
    completion = {"choices": [{"message": {"content": "{}"}, "finish_reason": reason}]}

    assert failure(json.dumps(completion).encode()).kind is FailureKind.SERVER_ERROR


@pytest.mark.parametrize(("reason", "word"), [(None, ""), ("", ""), ("MAX_TOKENS", "MAX_TOKENS"), (7, "7")])
def test_finish_reason_is_kept_as_spelled(reason: object, word: str) -> None:
    assert read({"finish_reason": reason}).stop_reason == word


def test_non_finite_logprobs_are_dropped() -> None:
    tokens = [{"logprob": -0.5}, {"logprob": float("-inf")}, {"logprob": float("nan")}]

    assert read({"logprobs": {"content": tokens}}).logprobs == (-0.5,)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"\xff", b"[" * 10**6],
)
def test_invalid_completion_is_server_error(body: bytes) -> None:
    assert failure(body).kind is FailureKind.SERVER_ERROR


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_server_error(body: bytes) -> None:
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
def test_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="Allowed: "):
        OpenAIProvider(OneKey("none"), base_url=url)


def test_base_url_password_error_hides_password() -> None:
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
def test_host_determines_api_dialect(url: str | None, dialect: str) -> None:
    assert OpenAIProvider(OneKey("none"), base_url=url)._dialect == dialect


def test_error_with_usage_names_serving_model() -> None:
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
def test_key_is_redacted_before_error_truncation(page: dict[str, Any]) -> None:
    for before in (*range(160, 200, 4), *range(440, 500, 4)):
        body = json.dumps(page).replace("@", f"{'.' * before}{KEY}").encode()
        with pytest.raises(ProviderError) as failed:
            model_response(HttpReply(body, "r-1", redaction=Redaction(KEY)))

        assert "sk-" not in failed.value.message


NO_ERROR = {"message": "", "type": "", "param": "", "code": None}


def test_empty_error_object_is_no_error() -> None:
    assert read(error=NO_ERROR).text == "{}"
    assert read({"error": NO_ERROR}).text == "{}"


def test_extreme_fields_do_not_fail_answer() -> None:
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
def test_list_or_root_error_is_read(
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
