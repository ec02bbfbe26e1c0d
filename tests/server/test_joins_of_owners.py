"""Joined calls and the owners of their answers: keys of one name, runs with a trace each, and limits of the memory."""

from dataclasses import replace

import pytest

from agentic_trading.server import errors, joins
from agentic_trading.server.errors import RequestError
from tests.build import envelope, interaction
from tests.server.test_joins import KEY, NO_ANSWER, Case
from tests.server.test_replies import attempt

PAID = replace(NO_ANSWER, attempts=(attempt(1, None),))
RETRY = {"x-stainless-retry-count": "1"}
NAMED = {"idempotency-key": "a"}


async def test_key_of_the_same_name_in_another_tenant_does_not_join() -> None:
    case = Case()
    first = case.call()
    other = KEY.model_copy(update={"tenant": "other"})

    assert case.joins.call(other, envelope(tenant_id="other"), RETRY, case.run) is not first
    assert case.joins.call(KEY, envelope(), RETRY, case.run) is first
    await case.aclose()


@pytest.mark.parametrize("field", ["agent_id", "agent_type"])
async def test_key_that_was_made_again_for_another_agent_gets_no_answer_of_the_first(field: str) -> None:
    theirs, ours = envelope(**{field: "theirs"}), envelope(**{field: "ours"})
    case = Case(lambda _: [interaction(envelope=theirs)])
    running = case.joins.call(KEY, theirs, {}, case.run)
    retry = case.joins.call(KEY, ours, RETRY, case.run)

    recorded = await case.joins.call(KEY, ours, NAMED, case.run).task

    assert retry is not running
    assert isinstance(recorded, RequestError)
    assert (recorded.failure, recorded.param) == (errors.KEY_REUSED, "Idempotency-Key")
    await case.aclose()


async def test_retry_joins_the_call_of_its_own_trace() -> None:
    case = Case()
    first, second = (case.joins.call(KEY, envelope(), {}, case.run, trace=name) for name in ("a", "b"))

    assert case.joins.call(KEY, envelope(), RETRY, case.run, trace="b") is second
    assert case.joins.call(KEY, envelope(), RETRY, case.run, trace="a") is first
    assert case.joins.call(KEY, envelope(), RETRY, case.run) not in {first, second}
    await case.aclose()


async def test_running_call_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "MOST_CALLS", 2)
    case = Case()
    running = [case.call() for _ in range(3)]

    assert [case.retry() for _ in range(3)] == running
    await case.aclose()


async def test_abandoned_answers_have_a_bound_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.answer = replace(PAID, attempts=(replace(attempt(1, None), text="x" * 1000),))
    case.may_end.set()
    first, second = case.call(), case.call()
    await first.task
    await second.task
    monkeypatch.setattr(joins, "MOST_CHARACTERS", first.size + second.size)
    case.call()
    kept = [*case.joins._calls[KEY.owner].values()]
    monkeypatch.setattr(joins, "MOST_CHARACTERS", first.size + second.size - 1)
    case.call()

    assert first.size > 1000
    assert kept[:2] == [first, second]
    assert first not in case.joins._calls[KEY.owner].values()
    assert second in case.joins._calls[KEY.owner].values()
    await case.aclose()
