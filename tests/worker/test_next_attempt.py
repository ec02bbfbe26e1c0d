"""What follows from an attempt that is on record is what followed then."""

from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import LLMResult, NextStep, Usage
from agentic_trading.structured.engine import Prepared, prepare
from agentic_trading.structured.outcome import Rejected
from agentic_trading.worker.next_attempt import AnsweredAttempt, AttemptPlan, plan_next_attempt
from tests.build import NOW
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


def test_a_cap_that_cannot_rise_ends_the_call() -> None:
    assert cut_short("", room=0) is None


def test_a_cap_that_can_rise_is_raised() -> None:
    following = cut_short("", room=10)

    assert following
    assert following.step == "raise_cap"


def test_a_raised_cap_on_record_is_followed_where_it_could_not_rise_today() -> None:
    following = cut_short("raise_cap", room=0)

    assert following
    assert (following.step, following.request.attempt) == ("raise_cap", 2)
