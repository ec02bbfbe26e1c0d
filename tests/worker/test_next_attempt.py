"""What follows from an attempt, and after which wait; of one that is on record, what followed then."""

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.limiter import Failed, wait_before_retry
from agentic_trading.ids import fraction
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import LLMResult, NextStep, Usage
from agentic_trading.structured.engine import Prepared, prepare
from agentic_trading.structured.outcome import Rejected
from agentic_trading.worker.attempt_result import AnsweredAttempt, AttemptPlan, plan_next_attempt
from tests.build import NOW
from tests.gateway import GOOD, START, asking, gateway, not_connected
from tests.structured.asking import REASKED, capability, request


def cut_short(recorded: NextStep, *, room: int) -> AttemptPlan | None:
    """Return what follows an answer that reached the cap of a model with `room` for as many tokens more."""
    made = request(output_policy=REASKED)
    model = capability(max_output_tokens=made.max_tokens + room)
    cut = ModelResponse('{"a', "max_tokens", Usage(output_tokens=9), model.model)
    prepared = prepare(made.envelope, model)
    assert isinstance(prepared, Prepared)
    outcome = prepared.read(cut, made)
    assert isinstance(outcome, Rejected)

    def to_result(step: NextStep) -> LLMResult:
        return LLMResult(envelope_id=made.envelope.envelope_id, next_step=step)

    answered = AnsweredAttempt(to_result, outcome, recorded)
    return plan_next_attempt(AttemptPlan(made), answered, prepared, now=NOW)


def test_maximum_cap_ends_the_call() -> None:
    assert cut_short("", room=0) is None


def test_cap_below_maximum_is_raised() -> None:
    following = cut_short("", room=10)

    assert following
    assert following.step == "raise_cap"


def test_recorded_raised_cap_is_followed() -> None:
    following = cut_short("raise_cap", room=0)

    assert following
    assert (following.step, following.request.attempt) == ("raise_cap", 2)


class Noting(SimClock):
    """A clock that notes how long it was to wait."""

    def __init__(self) -> None:
        super().__init__(START)
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_only_retries_wait_for_computed_delay() -> None:
    clock = Noting()
    desk = gateway([GOOD, *[not_connected() for _ in range(3)], GOOD], clock=clock)

    await desk.runner.run(asking(n=0).build())
    assert clock.waits == []
    tried_again = asking(n=1).build()
    last = await desk.runner.run(tried_again)

    assert (last.result.success, last.result.attempt_number) == (True, 4)
    failed = Failed(kind=FailureKind.SERVER_ERROR, sent=False)
    assert clock.waits == [
        wait_before_retry(
            failed, tried_again.retry_policy, workflow=tried_again.workflow, attempt=n, now=START, deadline=tried_again.deadline,
            jitter=fraction("jitter", tried_again.envelope_id, n),
        )
        for n in (1, 2, 3)
    ]  # fmt: skip


class Broken(SimClock):
    """A clock that cannot wait."""

    def __init__(self) -> None:
        super().__init__(START)

    async def sleep(self, seconds: float) -> None:
        raise ZeroDivisionError


async def test_error_after_retry_is_raised_unchanged() -> None:
    desk = gateway([not_connected(), not_connected()], clock=Broken())

    with pytest.raises(ZeroDivisionError):
        await desk.runner.run(asking().build())
