"""A recorded call is served again, failures included, without gate or provider."""

import pytest

from agentic_trading.governance.ledger import ANY, Limit, ScopeKind
from agentic_trading.governance.windows import Window
from agentic_trading.llm import (
    FailureKind,
    RetryPolicy,
)
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.recorded import RecordedAnswers
from agentic_trading.llm.providers.scripted import ScriptedProvider
from agentic_trading.llm.result import Usage
from tests.gateway import GOOD, asking, attempts, gateway, timed_out

NO_RETRIES = RetryPolicy(max_retries=0)


def tenant(nusd: int) -> Limit:
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd)


async def test_a_recorded_call_is_served_again_without_gate_or_provider() -> None:
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
    assert [one.result.success for one in await attempts(again, envelope)] == [False, False, True]
    assert again.ledger.statistics().reserved == 0


@pytest.mark.parametrize("workflow", ["analysis", "execution"])
async def test_recorded_failures_are_the_same_failures(workflow: str) -> None:
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


async def test_a_missing_recording_is_an_error_and_not_a_call() -> None:
    nothing = RecordedAnswers([])
    desk = gateway(nothing, recorded=nothing)

    final = (await desk.runner.run(asking().build())).result

    assert final.failure is not None
    assert final.failure.category is FailureKind.REPLAY_MISS
    assert (final.cost_nusd, final.attempt_number) == (0, 1)
