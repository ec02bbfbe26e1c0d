"""A schema that a provider refuses is told in words: as a new attempt, on record, and remembered (D6)."""

import pytest

from agentic_trading.llm import FailureKind, LLMEnvelope
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider, ScriptedReply
from tests.gateway import GOOD, SCHEMA, asking, attempts, gateway

EXECUTED = '{"action":"buy","size":1.50,"end":"ok"}'


def refused() -> ProviderError:
    """Return what an adapter raises when the provider cannot compile the schema."""
    return ProviderError(FailureKind.SCHEMA_REFUSED, "the compiled grammar is too large", sent=False)


def takes_no_schema(request: ModelRequest) -> ScriptedReply:
    """Answer as a model does whose provider refuses every schema."""
    if request.transport == "native_schema":
        return refused()
    return EXECUTED if request.envelope.workflow == "execution" else GOOD


@pytest.mark.parametrize("workflow", ["analysis", "planning", "execution", "general"])
async def test_refused_schema_is_prompted_next(workflow: str) -> None:
    desk = gateway(takes_no_schema)
    envelope = asking(workflow).build()

    last = await desk.runner.run(envelope)

    first, second = [one.result for one in await attempts(desk, envelope)]
    assert (first.success, first.cost_nusd, first.next_step) == (False, 0, "prompt")
    assert first.failure
    assert first.failure.category is FailureKind.SCHEMA_REFUSED
    assert (second.success, second.attempt_number, second.next_step) == (True, 2, "final")
    assert second.reading
    assert second.reading.transport == "prompted"
    assert last.result == second


async def test_refused_schema_is_remembered() -> None:
    provider = ScriptedProvider(takes_no_schema)
    desk = gateway(provider)

    await desk.runner.run(asking(symbol="A").build())
    await desk.runner.run(asking(symbol="B").build())

    assert [request.transport for request in provider.requests] == ["native_schema", "prompted", "prompted"]
    assert '"size": number (0 to 10)' in provider.requests[-1].system


async def test_other_schema_is_tried_natively() -> None:
    provider = ScriptedProvider(takes_no_schema)
    desk = gateway(provider)
    other = {**SCHEMA, "$id": "advice.v2"}

    await desk.runner.run(asking().build())
    await desk.runner.run(asking().with_output_schema(other).build())

    assert [request.transport for request in provider.requests] == ["native_schema", "prompted"] * 2


async def test_refused_prompt_ends_the_call() -> None:
    desk = gateway(lambda _request: refused())
    envelope = asking().build()

    last = await desk.runner.run(envelope)

    assert [one.result.next_step for one in await attempts(desk, envelope)] == ["prompt", "final"]
    assert not last.result.success


async def test_replay_takes_same_steps_any_order() -> None:
    live = gateway(takes_no_schema)
    envelopes: list[LLMEnvelope] = [asking(symbol=symbol).build() for symbol in "ABC"]
    for envelope in envelopes:
        await live.runner.run(envelope)
    log = [one for envelope in envelopes for one in await attempts(live, envelope)]
    again = gateway([], recorded=RecordedAnswers(log))

    for envelope in reversed(envelopes):
        await again.runner.run(envelope)

    replayed = [one for envelope in envelopes for one in await attempts(again, envelope)]
    assert [one.result.reading for one in replayed] == [one.result.reading for one in log]
    assert [one.result.next_step for one in replayed] == [one.result.next_step for one in log]
