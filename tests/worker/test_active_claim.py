"""What an attempt gave is kept as bytes, and read again as it was."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm import FailureKind, ProviderError, Usage
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.worker.active_claim import AbandonedAttempt, StoredAnswer
from agentic_trading.worker.attempt_result import Timing
from tests.build import event, response

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ANY_TEXT = st.text(
    st.characters(codec=None, categories=None), max_size=40
)  # halves of surrogate pairs as well
FACTS: dict[str, Any] = {
    "transport": "strict_tool",
    "price_book": "book",
    "priced_at": NOW,
    "timing": Timing(NOW, NOW + timedelta(seconds=1.5), 1500.25),
}


@pytest.mark.parametrize("bill_nusd", [0, 70_000_000])
def test_bill_of_failed_attempt_is_kept(bill_nusd: int) -> None:
    failure = ProviderError(FailureKind.SERVER_ERROR, "broken off", sent=True, bill_nusd=bill_nusd)

    kept = StoredAnswer(**FACTS, failure=failure)

    read = StoredAnswer.read(kept.spell()).failure
    assert read is not None
    assert read.bill_nusd == bill_nusd


def test_usage_of_unusable_answer_is_kept() -> None:
    usage = Usage(input_tokens=7, output_tokens=3, bill_nusd=5)
    failure = UnusableAnswerError(
        FailureKind.RATE_LIMIT, "m", usage=usage, model="m-1", retry_after_s=3.0, provider_request_id="r"
    )

    read = StoredAnswer.read(StoredAnswer(**FACTS, failure=failure).spell()).failure

    assert type(read) is UnusableAnswerError
    assert vars(read) == vars(failure)


@given(ANY_TEXT, ANY_TEXT, st.lists(st.floats(-9, 0)), st.integers(0, 10**9))
def test_kept_answer_round_trips(text: str, beside: str, logprobs: list[float], tokens: int) -> None:
    answer = ModelResponse(
        text,
        "end_turn",
        Usage.model_validate({"input_tokens": tokens, "output_tokens": 2, "new_class": 7}),
        "m-1",
        provider_request_id="r",
        provider_response_id="p",
        logprobs=tuple(logprobs),
        beside=beside,
        tool_called="order_book",
    )
    kept = StoredAnswer(**FACTS, response=answer)

    assert StoredAnswer.read(kept.spell()) == kept


@given(ANY_TEXT, st.booleans(), st.none() | st.floats(0, 86_400))
def test_kept_failure_round_trips(text: str, sent: bool, wait_s: float | None) -> None:  # noqa: FBT001
    failure = ProviderError(
        FailureKind.RATE_LIMIT, text, sent=sent, retry_after_s=wait_s, provider_request_id="r", text=text
    )

    again = StoredAnswer.read(StoredAnswer(**FACTS, failure=failure, step="retry").spell())

    assert again.failure is not None
    assert vars(again.failure) == vars(failure)
    assert (again.step, again.response) == ("retry", None)


def test_parsed_answer_is_kept_as_text() -> None:
    kept = StoredAnswer(**FACTS, response=response("", structured={"qty": 1.5, "side": "buy"}))
    again = StoredAnswer.read(kept.spell())

    assert again.response is not None
    assert (again.response.text, again.response.structured) == ('{"qty":1.5,"side":"buy"}', None)


def test_event_other_than_dispatch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Allowed: attempt\.dispatched"):
        AbandonedAttempt.read(event(kind="bar.closed").wire)
