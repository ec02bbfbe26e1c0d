"""A status means the same whichever adapter it comes to."""

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.anthropic import errors as of_anthropic
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status
from agentic_trading.llm.providers.openai import errors as of_openai

STATUSES = st.integers(300, 599)
CLAUDE = anthropic.AsyncAnthropic(api_key="good", base_url="http://host")
CHAT = openai.AsyncOpenAI(api_key="good", base_url="http://host")


def answer(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("POST", "http://host"))


@given(STATUSES)
def test_both_adapters_tell_a_status_alike(status: int) -> None:
    meant = meaning_of_status(status)

    assert (
        of_anthropic.classify_anthropic_error(CLAUDE._make_status_error_from_response(answer(status)))
        == meant
    )
    assert of_openai.classify_openai_error(CHAT._make_status_error_from_response(answer(status))) == meant


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 418, 451, 499, 500, 503, 599])
def test_what_no_document_calls_a_refusal_may_have_been_billed(status: int) -> None:
    assert meaning_of_status(status).sent


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422, 429, 529])
def test_a_refusal_was_not_processed(status: int) -> None:
    assert not meaning_of_status(status).sent


def test_what_is_unknown_is_the_servers_error_from_500_on_and_ours_below() -> None:
    assert meaning_of_status(598) == StatusMapping(FailureKind.SERVER_ERROR, sent=True)
    assert meaning_of_status(498) == StatusMapping(FailureKind.INVALID_REQUEST, sent=True)
