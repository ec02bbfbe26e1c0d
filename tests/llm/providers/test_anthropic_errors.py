"""Each error of the SDK has one meaning, and each refusal of the API comes out as it."""

import inspect
import traceback
from dataclasses import replace
from typing import get_args

import anthropic
import pytest
from anthropic import _error_classes as statuses
from anthropic.types.shared.error_type import ErrorType

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, Provider
from agentic_trading.llm.providers.anthropic.sdk import MEANINGS, error_of
from agentic_trading.llm.providers.errors import KINDS_BY_WORD, meaning_of_error
from agentic_trading.llm.providers.hosted import StatusMapping
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.redaction import Redaction
from tests.build import NOW
from tests.llm.providers.conftest import Adapter
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


async def failure(claude: Provider, made: ModelRequest) -> ProviderError:
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


REFUSED = StatusMapping(K.INVALID_REQUEST, sent=False)
FORBIDDEN = StatusMapping(K.AUTH_ERROR, sent=False)
UNPAID = StatusMapping(K.BILLING, sent=False)
LIMITED = StatusMapping(K.RATE_LIMIT, sent=False)
TIMED_OUT = StatusMapping(K.TIMEOUT, sent=True)
FAILED = StatusMapping(K.SERVER_ERROR, sent=True)
TURNED_AWAY = StatusMapping(K.SERVER_ERROR, sent=False)
BY_CLASS: dict[type[anthropic.APIStatusError], StatusMapping] = {
    anthropic.BadRequestError: REFUSED,
    anthropic.CMEKKeyDisabledError: REFUSED,
    anthropic.CMEKKeyNetworkBlockedError: REFUSED,
    anthropic.ClaudeCodeKeyCreatorNotMemberError: REFUSED,
    anthropic.ClaudeCodeVersionTooOldError: REFUSED,
    anthropic.OrganizationOnHoldError: REFUSED,
    anthropic.OrganizationTypeNotSupportedError: REFUSED,
    anthropic.ParentOrganizationRequiredError: REFUSED,
    anthropic.RequestBodyEncodingInvalidError: REFUSED,
    anthropic.RequestBodyEncodingUnsupportedError: REFUSED,
    anthropic.NotFoundError: REFUSED,
    anthropic.PreconditionFailedError: REFUSED,
    anthropic.ContentTooLargeError: REFUSED,
    anthropic.RequestBodyTooLargeAfterDecodingError: REFUSED,
    anthropic.UnprocessableEntityError: REFUSED,
    anthropic.RequestHeaderFieldsTooLargeError: REFUSED,
    anthropic.AuthenticationError: FORBIDDEN,
    anthropic.PermissionDeniedError: FORBIDDEN,
    anthropic.SandboxEgressRestrictedError: FORBIDDEN,
    anthropic.PaymentRequiredError: UNPAID,
    anthropic.LinkedOrganizationBillingUnavailableError: UNPAID,
    anthropic.LinkedOrganizationSpendLimitReachedError: UNPAID,
    anthropic.ContractSpendLimitReachedError: UNPAID,
    anthropic.EnforcedSpendLimitReachedError: UNPAID,
    anthropic.RateLimitError: LIMITED,
    anthropic.RampLimitExceededError: LIMITED,
    anthropic.OverloadedError: TURNED_AWAY,
    anthropic.RequestTimeoutError: TIMED_OUT,
    anthropic.GatewayTimeoutError: TIMED_OUT,
    anthropic.ClientClosedRequestError: TIMED_OUT,
    anthropic.ConflictError: FAILED,
    anthropic.InternalServerError: FAILED,
    anthropic.ServiceUnavailableError: FAILED,
    anthropic.CMEKContextUnavailableError: FAILED,
    anthropic.CMEKKeyUnreachableError: FAILED,
    anthropic.HTTPNotImplementedError: FAILED,
}
"""What each error that the SDK makes of an answer means: what our table says of its status and its code."""

WITHOUT_AN_ANSWER = {
    anthropic.RetryableError,
    anthropic.APIConnectionError,
    anthropic.APIResponseValidationError,
}
"""Errors of the SDK that mean what the class above them means."""


def test_every_public_sdk_error_has_meaning() -> None:
    assert public_errors() == {*BY_CLASS, *MEANINGS, *WITHOUT_AN_ANSWER, anthropic.APIStatusError}


@pytest.mark.parametrize(("answer", "made"), statuses.ERROR_CLASSES.items())
def test_sdk_error_class_gives_meaning(
    answer: tuple[int, str | None], made: type[anthropic.APIStatusError]
) -> None:
    status, code = answer

    meant = meaning_of_error("anthropic", status, iter([code or ""]))

    assert meant == next(BY_CLASS[one] for one in made.__mro__ if one in BY_CLASS)


def test_every_api_error_type_has_row() -> None:
    of_other_apis = {"memory_precondition_failed_error", "memory_path_conflict_error"}

    assert set(get_args(ErrorType)) - of_other_apis <= {word for _, word in KINDS_BY_WORD}


def test_outcome_table_matches_stub() -> None:
    assert set(OUTCOMES) == set(FAILURES)


@pytest.mark.parametrize("word", OUTCOMES)
async def test_each_refusal_has_expected_kind(claude: Provider, word: str) -> None:
    error = await failure(claude, playing(word))

    assert (error.kind, error.sent, error.retry_after_s) == OUTCOMES[word]
    assert str(FAILURES[word].status) in error.message
    assert error.provider_request_id == "req_1"


async def test_schemaless_grammar_error_is_invalid_request(claude: Provider) -> None:
    error = await failure(claude, request(instructions="play: grammar", expected_output_schema={}))

    assert error.kind is K.INVALID_REQUEST


async def test_oversized_schema_differs_from_bad_request(
    claude: Provider,
) -> None:
    refused = [await failure(claude, playing(word)) for word in ("grammar", "bad_request")]

    assert [error.kind for error in refused] == [K.SCHEMA_REFUSED, K.INVALID_REQUEST]


@pytest.mark.parametrize(
    "word",
    [
        "paused",
        "tool",
        "no_message",
        "page",
        "broken_json",
        "nested",
        "cut",
        "hangs_up",
    ],
)
async def test_incomplete_answer_may_be_billed(claude: Provider, word: str) -> None:
    error = await failure(claude, playing(word))

    assert (error.kind, error.sent) == (K.SERVER_ERROR, True)


async def test_answer_lacking_stop_or_usage_accepted(claude: Provider) -> None:
    answers = [await claude.complete(playing(word)) for word in ("no_stop", "no_usage", "broken_usage")]

    assert [one.stop_reason for one in answers] == ["", "end_turn", "end_turn"]
    assert [bool(one.usage.unmetered) for one in answers] == [False, True, True]


@pytest.mark.parametrize("nowhere", ["http://127.0.0.1:1", "http://nowhere.invalid"])
async def test_failed_connection_counts_as_unsent(nowhere: str, adapter: Adapter) -> None:
    provider = adapter(OneKey("good"), base_url=nowhere)

    error = await failure(provider, playing("answer"))
    await provider.aclose()

    assert (error.kind, error.sent) == (K.SERVER_ERROR, False)
    assert nowhere in error.message


async def test_unknown_model_is_invalid_request(claude: Provider) -> None:
    error = await failure(claude, request(instructions="play: answer", model="claude-none"))

    assert (error.kind, error.sent) == (K.INVALID_REQUEST, False)
    assert "claude-none" in error.message


async def test_wrong_key_error_hides_key(claude_stub: str, adapter: Adapter) -> None:
    provider = adapter(OneKey("sk-wrong-key"), base_url=claude_stub)

    error = await failure(provider, playing("answer"))
    await provider.aclose()

    assert (error.kind, error.sent) == (K.AUTH_ERROR, False)
    assert "invalid key ***" in error.message
    assert "sk-wrong-key" not in "".join(traceback.format_exception(error))


async def test_failed_token_count_is_never_billed(claude_stub: str, adapter: Adapter) -> None:
    provider = adapter(OneKey("sk-wrong-key"), base_url=claude_stub)

    with pytest.raises(ProviderError) as caught:
        await provider.count_tokens(playing("answer"))
    await provider.aclose()

    assert caught.value.sent is False


async def test_unsendable_schema_is_invalid_request(claude: Provider) -> None:
    error = await failure(claude, replace(playing("answer"), response_schema={"properties": {"a": {}}}))

    assert (error.kind, error.sent) == (K.INVALID_REQUEST, False)
    assert "cannot be sent" in error.message


def test_sdk_internal_error_keeps_class_name() -> None:
    e = anthropic.CredentialsError("no profile")

    error = error_of(e, redaction=Redaction("good"), base_url="http://host", with_schema=False, now=NOW)

    assert (error.kind, error.sent) == (K.AUTH_ERROR, False)
    assert error.message == "CredentialsError: no profile"


async def test_inexpressible_schema_is_refused_unsent(
    claude: Provider,
) -> None:
    several_types = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}

    error = await failure(claude, replace(playing("answer"), response_schema=several_types))

    assert (error.kind, error.sent) == (K.SCHEMA_REFUSED, False)
