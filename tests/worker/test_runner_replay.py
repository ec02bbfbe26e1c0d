"""A recorded call is served again, failures included, without gate or provider."""

from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm import (
    FailureKind,
    LLMEnvelope,
    LLMInteraction,
    RetryPolicy,
)
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.result import Usage
from tests.gateway import GOOD, START, MemoryGateway, asking, attempts, gateway, timed_out

NO_RETRIES = RetryPolicy(max_retries=0)


def tenant(nusd: int) -> Limit:
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd)


async def test_replay_needs_no_gate_or_provider() -> None:
    live = gateway([timed_out(), "not json", GOOD])
    envelope = asking().build()
    first = await live.runner.run(envelope)
    log = await attempts(live, envelope)
    provider = ScriptedProvider([])
    again = gateway(provider, recorded=RecordedAnswers(log), limits=[tenant(0)])

    replayed = await again.runner.run(envelope)

    assert provider.requests == []
    assert replayed.result.parsed_output == first.result.parsed_output
    assert (replayed.result.served_from, replayed.result.cost_nusd) == ("recorded", 0)
    assert (first.result.determinism_level, replayed.result.determinism_level) == ("pinned", "recorded")
    assert [one.result.success for one in await attempts(again, envelope)] == [False, False, True]
    assert again.ledger.statistics().reserved == 0


async def test_replayed_result_keeps_first_cost() -> None:
    desk = gateway([timed_out(), "not json", GOOD])
    envelope = asking().build()
    await desk.runner.run(envelope)
    log = await attempts(desk, envelope)
    costs = [one.result.cost_nusd for one in log]

    for _ in range(2):
        desk = gateway([], recorded=RecordedAnswers(await attempts(desk, envelope)))
        await desk.runner.run(envelope)
        replayed = [one.result for one in await attempts(desk, envelope)]
        assert [one.cost_nusd for one in replayed] == [0, 0, 0]
        assert [one.first_cost_nusd for one in replayed] == costs
        assert [one.original_cost_nusd for one in replayed] == costs

    assert min(costs) > 0
    assert all(one.result.first_cost_nusd is None for one in log)


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_recorded_failures_are_replayed_unchanged(workflow: str) -> None:
    text = '{"action":"buy","size":1,"end":"ok"}'
    other = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(output_tokens=9), model="scripted-2")
    refusal = ModelResponse(text="", stop_reason="refusal", usage=Usage(input_tokens=9), model="scripted-1")
    for line in (other, refusal, timed_out(), "no json"):
        live = gateway(lambda _request, line=line: line)
        envelope = asking(workflow).with_retry_policy(NO_RETRIES).build()
        first = (await live.runner.run(envelope)).result
        again = gateway([], recorded=RecordedAnswers(await attempts(live, envelope)))

        replayed = (await again.runner.run(envelope)).result

        assert (replayed.failure, replayed.actionable) == (first.failure, first.actionable)
        assert replayed.attempt_number == first.attempt_number


async def test_missing_recording_fails_without_a_call() -> None:
    nothing = RecordedAnswers([])
    desk = gateway(nothing, recorded=nothing)

    final = (await desk.runner.run(asking().build())).result

    assert final.failure is not None
    assert final.failure.category is FailureKind.REPLAY_MISS
    assert (final.cost_nusd, final.attempt_number) == (0, 1)


async def replayed_like(live: MemoryGateway, envelope: LLMEnvelope) -> LLMInteraction:
    """Run an envelope and replay it from the log: the attempts must be the same ones, with the same ends."""
    await live.runner.run(envelope)
    log = await attempts(live, envelope)
    nothing = ScriptedProvider([])
    again = gateway(nothing, recorded=RecordedAnswers(log))

    final = await again.runner.run(envelope)

    assert nothing.requests == []
    assert [_end(one) for one in await attempts(again, envelope)] == [_end(one) for one in log]
    return final


def _end(one: LLMInteraction) -> tuple[Any, ...]:
    result = one.result
    return (
        result.attempt_number, result.success, result.actionable, result.failure and result.failure.category,
        result.parsed_output, result.raw_output, result.next_step,
    )  # fmt: skip


def parsed(text: str, **structured: Any) -> ModelResponse:
    """Return an answer that the provider parsed itself."""
    return ModelResponse(
        text=text,
        stop_reason="end_turn",
        usage=Usage(output_tokens=9),
        model="scripted-1",
        structured=structured,
    )


async def test_parsed_answer_is_replayed_with_sentinel() -> None:
    live = gateway([parsed("", action="buy", size=1, end="ok")])

    final = await replayed_like(live, asking("execution").build())

    assert final.result.actionable
    assert final.result.raw_output == '{"action":"buy","size":1,"end":"ok"}'


async def test_parsed_answer_is_replayed_without_prose() -> None:
    final = await replayed_like(gateway([parsed("Let me think.", action="buy", size=1)]), asking().build())

    assert final.result.actionable
    assert "think" not in final.result.raw_output


async def test_unserializable_object_is_refused_in_replay() -> None:
    odd = parsed(GOOD, action="buy", size=float("nan"))

    final = await replayed_like(gateway([odd, odd]), asking().build())

    assert not final.result.actionable


async def test_replay_does_not_retry_final_failure() -> None:
    later = ProviderError(FailureKind.RATE_LIMIT, "in two hours", sent=False, retry_after_s=7200)

    final = await replayed_like(gateway([later, GOOD]), asking().build())

    assert (final.result.attempt_number, final.result.next_step) == (1, "final")


async def test_recorded_retry_is_followed_after_deadline() -> None:
    deadline = START + timedelta(minutes=5)
    envelope = asking().with_deadline(deadline).build()
    live = gateway([timed_out(), GOOD])
    await live.runner.run(envelope)
    late = gateway([], recorded=RecordedAnswers(await attempts(live, envelope)), clock=SimClock(deadline))

    final = await late.runner.run(envelope)

    assert (final.result.attempt_number, final.result.actionable) == (2, True)


async def test_raised_cap_is_followed_in_replay() -> None:
    cut = ModelResponse(
        text='{"a', stop_reason="max_tokens", usage=Usage(output_tokens=9), model="scripted-1"
    )

    final = await replayed_like(gateway([cut, "no json", GOOD]), asking("planning").build())

    assert final.result.actionable
    assert final.result.attempt_number == 3


async def test_unrecorded_next_step_is_decided_again() -> None:
    live = gateway([timed_out(), GOOD])
    envelope = asking().build()
    await live.runner.run(envelope)
    old = [
        one.model_copy(update={"result": one.result.model_copy(update={"next_step": ""})})
        for one in await attempts(live, envelope)
    ]
    again = gateway([], recorded=RecordedAnswers(old))

    final = await again.runner.run(envelope)

    assert (final.result.attempt_number, final.result.actionable) == (2, True)
