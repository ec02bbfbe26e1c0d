"""A status means the same whichever adapter it comes to."""

from datetime import UTC, datetime

import anthropic
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.providers.anthropic.messages import ERRORS as OF_ANTHROPIC
from agentic_trading.llm.providers.anthropic.sdk import error_of
from agentic_trading.llm.providers.errors import provider_error
from agentic_trading.llm.providers.hosted import StatusMapping, meaning_of_status
from agentic_trading.llm.providers.openai.provider import ERRORS as OF_OPENAI
from agentic_trading.llm.redaction import Redaction

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CLAUDE = anthropic.AsyncAnthropic(api_key="good", base_url="http://host")
NOTHING = Redaction()


@given(st.integers(300, 599))
def test_adapters_agree_on_every_status(status: int) -> None:
    answer = httpx2.Response(status, request=httpx2.Request("POST", "http://host"))
    made = CLAUDE._make_status_error_from_response(answer)

    through_the_sdk = error_of(made, redaction=NOTHING, base_url="http://host", with_schema=False, now=NOW)
    own = [
        provider_error(form, status, {}, b"", redaction=NOTHING, with_schema=False, now=NOW)
        for form in (OF_ANTHROPIC, OF_OPENAI)
    ]

    assert {(e.kind, e.sent) for e in (*own, through_the_sdk)} == {meaning_of_status(status)}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 418, 451, 499, 500, 503, 599])
def test_undocumented_status_may_be_billed(status: int) -> None:
    assert meaning_of_status(status).sent


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422, 429, 529])
def test_refusal_status_counts_as_unsent(status: int) -> None:
    assert not meaning_of_status(status).sent


def test_unknown_status_kind_splits_at_500() -> None:
    assert meaning_of_status(598) == StatusMapping(FailureKind.SERVER_ERROR, sent=True)
    assert meaning_of_status(498) == StatusMapping(FailureKind.INVALID_REQUEST, sent=True)
