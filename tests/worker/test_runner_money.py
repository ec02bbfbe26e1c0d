"""Every attempt passes the gate and is settled on every way out."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.llm import (
    Event,
    FailureKind,
    LLMInteraction,
    RetryPolicy,
    StoreError,
)
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.result import Usage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.active_claim import ActiveClaim, key_of
from agentic_trading.worker.claim import Claim
from agentic_trading.worker.claims.memory import MemoryClaimStore
from tests.gateway import (
    GOOD,
    START,
    MemoryGateway,
    asking,
    attempts,
    gateway,
    held,
    not_connected,
    timed_out,
)


async def let_go_when_one_is_parked(desk: MemoryGateway, release: asyncio.Event) -> None:
    """Set `release` once a call waits for money."""
    for _ in range(1000):
        await asyncio.sleep(0)
        if desk.gate.statistics().parked:
            break
    release.set()


def tenant(nusd: int) -> Limit:
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd)


async def test_impossible_usage_is_recorded_in_doubt() -> None:
    absurd = ModelResponse(
        GOOD, "end_turn", Usage(output_tokens=10**15), "scripted-1", provider_request_id="r-1"
    )
    desk = gateway([absurd])
    envelope = asking().with_retry_policy(RetryPolicy(max_retries=0)).build()

    result = (await desk.runner.run(envelope)).result

    assert result.failure
    assert (result.failure.category, result.in_doubt) == (FailureKind.SERVER_ERROR, True)
    assert result.provider_request_id == "r-1"
    assert result.cost_nusd == result.reserved_nusd == desk.ledger.statistics().charged_nusd


async def test_malformed_answer_is_reasked_and_paid() -> None:
    desk = gateway(['{"action":"buy","size":1,', GOOD])
    envelope = asking().build()

    final = await desk.runner.run(envelope)

    first, second = await attempts(desk, envelope)
    assert (first.result.success, second.result.success) == (False, True)
    assert (first.result.attempt_number, second.result.attempt_number) == (1, 2)
    assert second == final
    assert desk.ledger.statistics().charged_nusd == first.result.cost_nusd + second.result.cost_nusd


async def test_timeout_is_retried_and_charged_fully() -> None:
    desk = gateway([timed_out(), GOOD])
    envelope = asking().build()

    final = await desk.runner.run(envelope)

    lost, answered = (one.result for one in await attempts(desk, envelope))
    assert (lost.in_doubt, lost.cost_nusd) == (True, lost.reserved_nusd)
    assert lost.failure is not None
    assert lost.failure.category is FailureKind.TIMEOUT
    assert answered.actionable
    assert final.result == answered
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_execution_timeout_is_final() -> None:
    desk = gateway([timed_out(), GOOD])

    final = (await desk.runner.run(asking("execution").build())).result

    assert (final.attempt_number, final.in_doubt, final.success) == (1, True, False)


async def test_unsent_call_is_free_and_retried() -> None:
    desk = gateway([not_connected(), '{"action":"buy","size":1,"end":"ok"}'])
    envelope = asking("execution").build()

    final = (await desk.runner.run(envelope)).result

    first = (await attempts(desk, envelope))[0].result
    assert (first.cost_nusd, first.in_doubt) == (0, False)
    assert final.actionable


async def test_answer_of_unpriced_model_costs_reservation() -> None:
    usage = Usage(input_tokens=100, output_tokens=100)
    charged = {}
    for model in ("scripted-1", "a-model-without-a-price"):
        line = ModelResponse(text=GOOD, stop_reason="end_turn", usage=usage, model=model)
        desk = gateway([line])
        charged[model] = (await desk.runner.run(asking().build())).result

    asked_for, other = charged.values()
    assert 0 < asked_for.cost_nusd < asked_for.reserved_nusd
    assert other.cost_nusd == other.reserved_nusd


async def test_retries_end_with_the_policy() -> None:
    desk = gateway(lambda _request: not_connected())

    final = (await desk.runner.run(asking().with_retry_policy(RetryPolicy(max_retries=2)).build())).result

    assert final.attempt_number == 3
    assert not final.success


async def test_silent_provider_times_out() -> None:
    class Silent(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            await asyncio.Event().wait()
            return await super().complete(request)

    desk = gateway(Silent([GOOD]), clock=SystemClock())
    impatient = RetryPolicy(max_retries=0, attempt_timeout_s=0.01)

    final = (await desk.runner.run(asking().with_retry_policy(impatient).build())).result

    assert final.in_doubt
    assert final.failure is not None
    assert "no answer within 0.01 s" in final.failure.description


async def test_unaffordable_call_is_recorded_unsent() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider, limits=[tenant(1)])
    envelope = asking().build()

    final = (await desk.runner.run(envelope)).result

    assert provider.requests == []
    assert (final.success, final.cost_nusd, final.dispatched_at) == (False, 0, None)
    assert final.failure is not None
    assert final.failure.category is FailureKind.BUDGET_EXHAUSTED
    assert "tenant default has 0.000000001 USD left" in final.failure.description


async def test_call_waits_for_held_money() -> None:
    release = asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            if not self.requests:
                self.requests.append(request)
                await release.wait()
            return await super().complete(request)

    probe = gateway([GOOD])
    reserved = (await probe.runner.run(asking().build())).result.reserved_nusd
    desk = gateway(Slow([GOOD, GOOD]), limits=[tenant(reserved + reserved // 2)])

    async with asyncio.TaskGroup() as group:
        first = group.create_task(desk.runner.run(asking(n=1).build()))
        second = group.create_task(desk.runner.run(asking(n=2).build()))
        group.create_task(let_go_when_one_is_parked(desk, release))

    assert first.result().result.actionable
    assert second.result().result.actionable


@pytest.mark.parametrize("workers", [1, 64])
async def test_concurrent_calls_never_exceed_budget(workers: int) -> None:
    probe = gateway([GOOD])
    reserved = (await probe.runner.run(asking().build())).result.reserved_nusd
    budget = reserved + reserved // 5
    desk = gateway(lambda _request: GOOD, limits=[tenant(budget)])
    gate = asyncio.Semaphore(workers)

    async def one(number: int) -> LLMInteraction:
        async with gate:
            return await desk.runner.run(asking(n=number).build())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(200)]

    results = [task.result().result for task in tasks]
    spent = sum(result.cost_nusd for result in results)
    assert spent == desk.ledger.statistics().charged_nusd <= budget
    assert budget - spent < reserved
    assert {result.failure.category for result in results if result.failure} == {FailureKind.BUDGET_EXHAUSTED}


async def test_cancelled_call_is_charged_and_recorded() -> None:
    started = asyncio.Event()

    class Endless(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await asyncio.Event().wait()
            return await super().complete(request)

    desk = gateway(Endless([GOOD]))
    envelope = asking().build()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(desk.runner.run(envelope))
        await started.wait()
        task.cancel()

    assert task.cancelled()
    (kept,) = await attempts(desk, envelope)
    assert kept.result.in_doubt
    assert kept.result.failure is not None
    assert kept.result.failure.category is FailureKind.SHUTDOWN
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_missed_deadline_prevents_sending_and_charging() -> None:
    deadline = START + timedelta(minutes=1)
    clock = SimClock(START)

    class Slow(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            clock.advance_to(deadline)
            return await super().record(event)

    provider = ScriptedProvider([GOOD])
    desk = gateway(provider, clock=clock, store=Slow())

    final = (await desk.runner.run(asking("execution").with_deadline(deadline).build())).result

    assert provider.requests == []
    assert final.failure is not None
    assert final.failure.category is FailureKind.EXPIRED
    assert (final.cost_nusd, final.dispatched_at) == (0, None)
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_provider_error_is_charged_and_recorded() -> None:
    class Broken(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            raise RuntimeError("a bug")

    desk = gateway(Broken([]))
    envelope = asking().build()

    final = (await desk.runner.run(envelope)).result

    (kept,) = await attempts(desk, envelope)
    assert kept.result == final
    assert (final.in_doubt, final.cost_nusd) == (True, desk.ledger.statistics().charged_nusd)
    assert final.failure is not None
    assert final.failure.category is FailureKind.INTERNAL_ERROR
    assert "RuntimeError: a bug" in final.failure.description
    assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_invalid_schema_is_not_paid() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider)

    final = (await desk.runner.run(asking().with_output_schema({"type": "objekt"}).build())).result

    assert provider.requests == []
    assert not final.success


async def test_an_expired_call_is_not_sent() -> None:
    provider = ScriptedProvider([GOOD])
    desk = gateway(provider)

    final = (await desk.runner.run(asking().with_deadline(START - timedelta(seconds=1)).build())).result

    assert provider.requests == []
    assert final.failure is not None
    assert final.failure.category is FailureKind.EXPIRED


async def test_worker_refuses_evidence_from_the_future() -> None:
    envelope = asking().with_as_of(START).add_evidence("bars", {"c": 1}, available_at=START).build()
    forged = envelope.model_copy(update={"as_of": START - timedelta(minutes=5)})
    provider = ScriptedProvider([GOOD])

    final = (await gateway(provider).runner.run(forged)).result

    assert provider.requests == []
    assert final.failure is not None
    assert final.failure.category is FailureKind.LOOK_AHEAD


async def test_execution_dispatch_is_recorded_before_call() -> None:
    seen: list[Any] = []

    class Looking(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            seen.extend([entry.record async for entry in desk.store.scan()])
            return await super().complete(request)

    desk = gateway(Looking(['{"action":"buy","size":1,"end":"ok"}']))
    envelope = asking("execution").build()

    await desk.runner.run(envelope)

    (dispatched,) = seen
    assert isinstance(dispatched, Event)
    assert (dispatched.kind, dispatched.causation_id) == ("attempt.dispatched", envelope.envelope_id)
    assert dispatched.body["reserved_nusd"] > 0


class Full(MemoryInteractionStore):
    async def record(self, event: Event) -> int:
        raise StoreError(self.path, "the disk is full")

    async def store(self, interaction: LLMInteraction) -> int:
        raise StoreError(self.path, "the disk is full")

    @property
    def path(self) -> Any:
        return "log"


async def test_unstorable_result_is_not_published() -> None:
    for workflow in ("analysis", "execution"):
        desk = gateway([GOOD], store=Full())

        with pytest.raises(StoreError, match="the disk is full"):
            await desk.runner.run(asking(workflow).build())

        assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}
        assert desk.broker.statistics().published.get("llm.replies", 0) == 0


async def test_unsent_attempt_is_recorded_after_takeover() -> None:
    claims, envelope = MemoryClaimStore(), asking().build()
    full = gateway([GOOD], store=Full())
    other = gateway([GOOD], ledger=full.ledger)

    first = await claims.claim(key_of(envelope), envelope.envelope_hash)
    assert isinstance(first, Claim)
    with pytest.raises(StoreError):
        await full.runner.run(envelope, claim=ActiveClaim(claims, first))
    await claims.release(first)
    second = await claims.claim(key_of(envelope), envelope.envelope_hash)
    assert isinstance(second, Claim)
    await other.runner.run(envelope, claim=ActiveClaim(claims, second))

    unsent, answered = await attempts(other, envelope)
    assert unsent.result.failure is not None
    assert unsent.result.failure.description == (
        "the request was not sent: the worker's log cannot be written (log: the disk is full)"
    )
    assert (unsent.result.cost_nusd, unsent.result.in_doubt) == (0, False)
    assert answered.result.actionable
