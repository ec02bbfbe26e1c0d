"""An answer that the bus does not take: it is on record, its caller is told, and the session goes on."""

import pytest

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.llm import FailureKind, LLMInteraction, NoDecision
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.providers.offline import ScriptedProvider
from tests.gateway import GOOD, asking, attempts, gateway
from tests.worker.running import running

LARGE = "x" * 100_000
SMALL_BUS = 20_000


@pytest.mark.parametrize("workflow", ["general", "execution"])
async def test_oversized_answer_is_recorded_and_reported(
    workflow: str,
) -> None:
    provider = ScriptedProvider([LARGE] if workflow == "execution" else [LARGE, LARGE, LARGE])
    desk = gateway(provider, broker=MemoryBroker(max_message_bytes=SMALL_BUS))
    envelope = asking(workflow).build()

    async with running(desk) as client:
        answer = await client.ask(envelope)

    kept = await attempts(desk, envelope)
    assert isinstance(answer, NoDecision)
    assert "answer_too_large: the answer is in the log as" in answer.reason.description
    assert kept[-1].interaction_id in answer.reason.description
    assert {one.result.raw_output for one in kept} == {LARGE}
    assert len(kept) == len(provider.requests)
    assert (desk.pool.statistics().dead_letters, desk.pool.statistics().given_back) == (1, 0)


async def test_session_continues_after_oversized_answer() -> None:
    provider = ScriptedProvider([LARGE, GOOD, GOOD])
    desk = gateway(provider, broker=MemoryBroker(max_message_bytes=SMALL_BUS))

    async with running(desk) as client:
        asked_again = await client.ask(asking(n=1).build())
        other = await client.ask(asking(n=2).build())

    assert isinstance(asked_again, LLMInteraction)
    assert (asked_again.result.attempt_number, asked_again.result.success) == (2, True)
    assert isinstance(other, LLMInteraction)
    assert other.result.success


async def test_truncated_answer_is_recorded_and_charged() -> None:
    cut = ProviderError(FailureKind.TRUNCATED, "cut off after 4 bytes", sent=True, text="half")
    provider = ScriptedProvider([cut])
    desk = gateway(provider)

    result = (await desk.runner.run(asking().build())).result

    assert (result.raw_output, result.success, result.in_doubt) == ("half", False, True)
    assert result.cost_nusd == result.reserved_nusd
    assert result.failure is not None
    assert result.failure.category is FailureKind.TRUNCATED
    assert len(provider.requests) == 1
