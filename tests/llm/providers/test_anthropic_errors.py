"""Each error of the SDK has one meaning, and each refusal of the API comes out as it."""

import inspect
import traceback
from dataclasses import replace

import anthropic
import pytest
from anthropic import _error_classes as statuses

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.anthropic.errors import MEANINGS, error_of
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.redaction import Redaction
from tests.build import NOW
from tests.structured.asking import request
from tests.stubs.messages_api import FAILURES, REFUSED_SCHEMAS

K = FailureKind
OUTCOMES: dict[str, tuple[FailureKind, bool, float | None]] = {
    "rate_limit": (K.RATE_LIMIT, False, None),
    "rate_limit_ms": (K.RATE_LIMIT, False, 1.5),
    "rate_limit_s": (K.RATE_LIMIT, False, 2.0),
    "rate_limit_date": (K.RATE_LIMIT, False, 86_400.0),
    "ramp_limit": (K.RATE_LIMIT, False, None),
    "spend_limit": (K.BILLING, False, None),
    "contract_limit": (K.BILLING, False, None),
    "overloaded": (K.SERVER_ERROR, False, None),
    "error_500": (K.SERVER_ERROR, True, None),
    "error_502": (K.SERVER_ERROR, True, None),
    "error_503": (K.SERVER_ERROR, True, None),
    "error_504": (K.TIMEOUT, True, None),
    "error_408": (K.TIMEOUT, True, None),
    "conflict": (K.SERVER_ERROR, True, None),
    "unauthorised": (K.AUTH_ERROR, False, None),
    "forbidden": (K.AUTH_ERROR, False, None),
    "unpaid": (K.BILLING, False, None),
    "bad_request": (K.INVALID_REQUEST, False, None),
    "not_found": (K.INVALID_REQUEST, False, None),
    "too_large": (K.INVALID_REQUEST, False, None),
    "unprocessable": (K.INVALID_REQUEST, False, None),
    "teapot": (K.INVALID_REQUEST, True, None),
    "redirect": (K.INVALID_REQUEST, True, None),
    **dict.fromkeys(REFUSED_SCHEMAS, (K.SCHEMA_REFUSED, False, None)),
}


def playing(words: str) -> ModelRequest:
    return request(instructions=f"play: {words}")


async def failure(claude: AnthropicProvider, made: ModelRequest) -> ProviderError:
    """Return the error that a request ends in."""
    with pytest.raises(ProviderError) as caught:
        await claude.complete(made)
    return caught.value


def public_errors() -> set[type[anthropic.AnthropicError]]:
    """Return every error class that the installed SDK offers at its front door."""
    return {
        one
        for _, one in inspect.getmembers(anthropic, inspect.isclass)
        if issubclass(one, anthropic.AnthropicError)
    }


def test_every_public_error_of_the_sdk_has_a_row() -> None:
    like_the_one_above = {anthropic.HTTPNotImplementedError}

    assert public_errors() - set(MEANINGS) == like_the_one_above


def test_every_error_that_a_status_becomes_has_a_row_or_the_row_of_its_status() -> None:
    plain = {status: one for (status, code), one in statuses.ERROR_CLASSES.items() if code is None}
    coded = {one for (_, code), one in statuses.ERROR_CLASSES.items() if code is not None}

    assert {one for status, one in plain.items() if status != 501} <= set(MEANINGS)
    assert [
        one.__name__ for one in coded - set(MEANINGS) if not set(one.__bases__) & set(plain.values())
    ] == []


def test_the_table_of_outcomes_is_that_of_the_stub() -> None:
    assert set(OUTCOMES) == set(FAILURES)


@pytest.mark.parametrize("word", OUTCOMES)
async def test_a_refusal_has_a_kind_of_its_own(claude: AnthropicProvider, word: str) -> None:
    error = await failure(claude, playing(word))

    assert (error.kind, error.sent, error.retry_after_s) == OUTCOMES[word]
    assert str(FAILURES[word].status) in error.message
    assert error.provider_request_id == "req_1"


async def test_without_a_schema_none_was_refused(claude: AnthropicProvider) -> None:
    error = await failure(claude, request(instructions="play: grammar", expected_output_schema={}))

    assert error.kind is K.INVALID_REQUEST


async def test_a_schema_that_is_too_large_has_a_kind_of_its_own_from_other_bad_requests(
    claude: AnthropicProvider,
) -> None:
    refused = [await failure(claude, playing(word)) for word in ("grammar", "bad_request")]

    assert [error.kind for error in refused] == [K.SCHEMA_REFUSED, K.INVALID_REQUEST]


@pytest.mark.parametrize(
    "word",
    [
        "no_stop",
        "paused",
        "tool",
        "no_usage",
        "broken_usage",
        "no_message",
        "page",
        "broken_json",
        "nested",
        "cut",
        "hangs_up",
    ],
)
async def test_an_answer_that_is_cut_or_none_may_have_been_billed(
    claude: AnthropicProvider, word: str
) -> None:
    error = await failure(claude, playing(word))

    unmetered = word in {"no_usage", "broken_usage"}
    assert (error.kind, error.sent) == (K.INTERNAL_ERROR if unmetered else K.SERVER_ERROR, True)


@pytest.mark.parametrize("nowhere", ["http://127.0.0.1:1", "http://nowhere.invalid"])
async def test_without_a_connection_nothing_was_sent(nowhere: str) -> None:
    provider = AnthropicProvider(OneKey("good"), base_url=nowhere)

    error = await failure(provider, playing("answer"))
    await provider.aclose()

    assert (error.kind, error.sent) == (K.SERVER_ERROR, False)
    assert nowhere in error.message


async def test_an_unknown_model_is_an_invalid_request(claude: AnthropicProvider) -> None:
    error = await failure(claude, request(instructions="play: answer", model="claude-none"))

    assert (error.kind, error.sent) == (K.INVALID_REQUEST, False)
    assert "claude-none" in error.message


async def test_a_wrong_key_is_reported_without_the_key(claude_stub: str) -> None:
    provider = AnthropicProvider(OneKey("sk-wrong-key"), base_url=claude_stub)

    error = await failure(provider, playing("answer"))
    await provider.aclose()

    assert (error.kind, error.sent) == (K.AUTH_ERROR, False)
    assert "invalid key ***" in error.message
    assert "sk-wrong-key" not in "".join(traceback.format_exception(error))


async def test_a_count_that_fails_was_never_billed(claude_stub: str) -> None:
    provider = AnthropicProvider(OneKey("sk-wrong-key"), base_url=claude_stub)

    with pytest.raises(ProviderError) as caught:
        await provider.count_tokens(playing("answer"))
    await provider.aclose()

    assert caught.value.sent is False


async def test_a_schema_that_the_sdk_cannot_send_is_an_invalid_request(claude: AnthropicProvider) -> None:
    error = await failure(claude, replace(playing("answer"), response_schema={"properties": {"a": {}}}))

    assert (error.kind, error.sent) == (K.INVALID_REQUEST, False)
    assert "cannot be sent" in error.message


def test_an_error_of_the_sdk_itself_is_reported_with_its_class() -> None:
    e = anthropic.CredentialsError("no profile")

    error = error_of(e, redaction=Redaction("good"), base_url="http://host", with_schema=False, now=NOW)

    assert (error.kind, error.sent) == (K.AUTH_ERROR, False)
    assert error.message == "CredentialsError: no profile"


async def test_a_schema_that_the_sdk_cannot_rewrite_is_in_the_prompt_of_the_next_attempt(
    claude: AnthropicProvider,
) -> None:
    several_types = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}

    error = await failure(claude, replace(playing("answer"), response_schema=several_types))

    assert (error.kind, error.sent) == (K.SCHEMA_REFUSED, False)
