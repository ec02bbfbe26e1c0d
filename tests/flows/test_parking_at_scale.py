"""Many calls whose caps are far above their use run on a small budget one after the other, instead of being refused."""

import asyncio

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.gate import AdmissionStatistics, Gate
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.result import LLMResult, Usage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from tests.gateway import CAPABILITIES, GOOD, PRICES, asking
from tests.redis_server import namespace

CALLS = 64
CAP = 64_000
USED = Usage(input_tokens=100, output_tokens=1_000)
WORST_CASES = 10
TURNS = 20


class Slowly(ScriptedProvider):
    """Answers after the others had their turns, and counts how many ask at once."""

    def __init__(self) -> None:
        super().__init__(lambda request: ModelResponse(GOOD, "end_turn", USED, request.envelope.model))
        self.at_once = 0
        self.most_at_once = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.at_once -= 1
        return await super().complete(request)


def tenant(nusd: int) -> Limit:
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd)


async def ran(
    ledger: Ledger, envelopes: list[LLMEnvelope]
) -> tuple[list[LLMResult], AdmissionStatistics, int]:
    """Run all calls at once; return their results, what the gate counted, and how many were asked at once at most."""
    provider, results = Slowly(), list[LLMResult]()
    gate = Gate(ledger=ledger, prices=PRICES, capabilities=CAPABILITIES, clock=SystemClock(), mode="live")
    parts = RunnerDependencies(
        gate=gate,
        providers=Providers.every(provider),
        recorder=Recorder(MemoryInteractionStore()),
        capabilities=CAPABILITIES,
        clock=SystemClock(),
        checks={},
    )
    runner = CallRunner(parts)

    async def run(envelope: LLMEnvelope) -> None:
        results.append((await runner.run(envelope)).result)

    async with asyncio.TaskGroup() as group:
        for envelope in envelopes:
            group.create_task(run(envelope))
    return results, gate.statistics(), provider.most_at_once


@pytest.fixture(scope="module")
def envelopes() -> list[LLMEnvelope]:
    return [
        asking(number=number).with_budget(max_output_tokens=CAP, thinking_budget=0).build()
        for number in range(CALLS)
    ]


@pytest.fixture(scope="module")
def worst_nusd(envelopes: list[LLMEnvelope]) -> int:
    """Return what is reserved for one of the calls."""
    ledger = MemoryLedger([tenant(10**15)])
    results, _, _ = asyncio.run(ran(ledger, envelopes[:1]))
    return results[0].reserved_nusd


@pytest.fixture
def shared(redis_url: str, worst_nusd: int) -> RedisLedger:
    """Return a ledger of this test alone; it reads files when it is made."""
    return RedisLedger(redis_url, [tenant(WORST_CASES * worst_nusd)], namespace=namespace())


async def all_complete(ledger: Ledger, envelopes: list[LLMEnvelope], worst_nusd: int) -> None:
    """Check that every call completes on a budget of ten at their worst, and what is then booked."""
    results, statistics, most_at_once = await ran(ledger, envelopes)

    assert [result.success for result in results] == [True] * CALLS
    assert statistics.refused == {}
    assert statistics.parked >= CALLS // 2  # some came when others had ended already
    assert 1 < most_at_once <= WORST_CASES
    booked = {one.scope: one for one in await ledger.balances("default") if one.window is Window.NONE}
    spent = booked[ScopeKind.TENANT].spent.nusd
    assert spent == sum(result.cost_nusd for result in results) < 2 * worst_nusd
    assert booked[ScopeKind.TENANT].held.nusd == 0


async def test_parked_calls_complete_in_single_process(envelopes: list[LLMEnvelope], worst_nusd: int) -> None:
    await all_complete(MemoryLedger([tenant(WORST_CASES * worst_nusd)]), envelopes, worst_nusd)


async def test_parked_calls_complete_on_server(
    shared: RedisLedger, envelopes: list[LLMEnvelope], worst_nusd: int
) -> None:
    await all_complete(shared, envelopes, worst_nusd)
    await shared.aclose()
