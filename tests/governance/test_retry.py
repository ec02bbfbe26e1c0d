"""Which failures are tried again, and after how long."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.limiter import LONGEST_WAIT_S, Failed, wait_before_retry
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import RETRYABLE, FailureKind
from agentic_trading.llm.limits import RetryPolicy
from tests.build import NOW

OVERLOADED = Failed(FailureKind.SERVER_ERROR, sent=True)


def wait(failure: Failed = OVERLOADED, **changes: Any) -> float | None:
    fields = {
        "policy": RetryPolicy(),
        "workflow": EnvelopeWorkflow.ANALYSIS,
        "attempt": 1,
        "now": NOW,
        "deadline": None,
        "jitter": 0.0,
        **changes,
    }
    return wait_before_retry(failure, **fields)


def test_backoff_doubles_up_to_maximum() -> None:
    policy = RetryPolicy(max_retries=20)

    waits = [wait(policy=policy, attempt=attempt) for attempt in range(1, 9)]

    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_jitter_halves_wait_at_most() -> None:
    assert (wait(jitter=0.0), wait(jitter=0.5), wait(jitter=0.999)) == (0.5, 0.75, pytest.approx(0.9995))


def test_equal_jitter_gives_equal_waits() -> None:
    assert wait(jitter=0.3) == wait(jitter=0.3)


def test_retries_end_at_the_limit() -> None:
    assert [wait(attempt=attempt) is None for attempt in (1, 2, 3, 4)] == [False, False, False, True]
    assert wait(policy=RetryPolicy(max_retries=0)) is None


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - set(RETRYABLE)))
def test_permanent_failure_is_not_retried(kind: FailureKind) -> None:
    assert wait(Failed(kind, sent=False)) is None


@pytest.mark.parametrize("kind", RETRYABLE)
def test_transient_failure_is_retried(kind: FailureKind) -> None:
    assert wait(Failed(kind, sent=True)) is not None


def test_envelope_may_only_narrow_retryable_kinds() -> None:
    policy = RetryPolicy(retryable=(FailureKind.TIMEOUT, FailureKind.BILLING))

    assert wait(Failed(FailureKind.TIMEOUT, sent=True), policy=policy) is not None
    assert wait(Failed(FailureKind.SERVER_ERROR, sent=True), policy=policy) is None
    assert wait(Failed(FailureKind.BILLING, sent=False), policy=policy) is None


@pytest.mark.parametrize(
    ("kind", "sent", "again"),
    [
        (FailureKind.SERVER_ERROR, False, True),  # connection refused, 529 before the first byte
        (FailureKind.RATE_LIMIT, False, True),
        (FailureKind.SERVER_ERROR, True, False),
        (FailureKind.RATE_LIMIT, True, False),
        (FailureKind.TIMEOUT, True, False),
        (FailureKind.TIMEOUT, False, False),
    ],
)
def test_execution_retries_only_unsent_calls(kind: FailureKind, *, sent: bool, again: bool) -> None:
    waited = wait(Failed(kind, sent=sent), workflow=EnvelopeWorkflow.EXECUTION)

    assert (waited is not None) is again


def test_wait_is_at_least_retry_after() -> None:
    limited = Failed(FailureKind.RATE_LIMIT, sent=False, retry_after_s=7.5)

    assert wait(limited) == 7.5
    assert wait(limited, attempt=3, policy=RetryPolicy(base_s=10.0), jitter=0.5) == 22.5


def test_negative_retry_after_is_ignored() -> None:
    assert wait(Failed(FailureKind.RATE_LIMIT, sent=False, retry_after_s=-3.0)) == 0.5


@pytest.mark.parametrize("asked", [LONGEST_WAIT_S + 1, 4_294_967.0, float("inf"), float("nan")])
def test_excessive_retry_after_is_not_retried(asked: float) -> None:
    assert wait(Failed(FailureKind.RATE_LIMIT, sent=False, retry_after_s=asked)) is None


def test_no_retry_at_or_after_deadline() -> None:
    limited = Failed(FailureKind.RATE_LIMIT, sent=False, retry_after_s=10.0)

    assert wait(limited, deadline=NOW + timedelta(seconds=10)) is None
    assert wait(limited, deadline=NOW + timedelta(seconds=10, microseconds=1)) == 10.0
    assert wait(deadline=NOW) is None


@given(
    kind=st.sampled_from(FailureKind),
    sent=st.booleans(),
    asked=st.none() | st.floats(0, 1e7),
    attempt=st.integers(1, 30),
    jitter=st.floats(0, 1, exclude_max=True),
    workflow=st.sampled_from(EnvelopeWorkflow),
    left_s=st.floats(0, 100),
)
def test_every_wait_keeps_all_bounds(
    kind: FailureKind, asked: float | None, attempt: int, jitter: float, workflow: EnvelopeWorkflow,
    left_s: float, *, sent: bool,
) -> None:  # fmt: skip
    policy = RetryPolicy(max_retries=20)
    deadline = NOW + timedelta(seconds=left_s)

    waited = wait_before_retry(
        Failed(kind, sent=sent, retry_after_s=asked), policy, workflow=workflow, attempt=attempt, now=NOW,
        deadline=deadline, jitter=jitter,
    )  # fmt: skip

    if waited is not None:
        assert max(policy.base_s / 2, asked or 0) <= waited <= max(policy.max_s, asked or 0)
        assert NOW + timedelta(seconds=waited) < deadline
        assert attempt <= policy.max_retries
