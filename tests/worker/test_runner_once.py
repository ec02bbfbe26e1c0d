"""What was paid is on record once, whoever runs it and however often they are stopped."""

import asyncio

import pytest

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledger import Settlement
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import Event, FailureKind, LLMInteraction
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.error_boundary import AttemptTakenError
from tests.gateway import GOOD, asking, attempts, gateway, held, timed_out
from tests.governance.away import AwayLedger


async def is_asked(provider: ScriptedProvider) -> None:
    """Return once the provider was asked."""
    for _ in range(1000):
        await asyncio.sleep(0)
        if provider.requests:
            break


async def test_paid_answer_is_recorded_despite_cancellations() -> None:
    class SlowToKeep(MemoryInteractionStore):
        def __init__(self) -> None:
            super().__init__()
            self.started, self.release = asyncio.Event(), asyncio.Event()

        async def store(self, interaction: LLMInteraction) -> int:
            self.started.set()
            await self.release.wait()
            return await super().store(interaction)

    class Endless(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            self.requests.append(request)
            await asyncio.Event().wait()
            return await super().complete(request)

    for provider in (ScriptedProvider([GOOD]), Endless([GOOD])):
        store = SlowToKeep()
        desk = gateway(provider, store=store)
        envelope = asking().build()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(desk.runner.run(envelope))
            await is_asked(provider)
            task.cancel()
            await store.started.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            store.release.set()

        assert task.cancelled()
        (kept,) = await attempts(desk, envelope)
        assert kept.result.cost_nusd == desk.ledger.statistics().charged_nusd > 0
        assert held(await desk.ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_attempt_sent_elsewhere_is_left_alone() -> None:
    release, started = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            started.set()
            await release.wait()
            return await super().complete(request)

    desk = gateway(Slow([GOOD]))
    envelope = asking().build()

    async with asyncio.TaskGroup() as group:
        first = group.create_task(desk.runner.run(envelope))
        await started.wait()
        with pytest.raises(AttemptTakenError, match="is already dispatched"):
            await desk.runner.run(envelope)
        assert await attempts(desk, envelope) == []
        release.set()

    with pytest.raises(AttemptTakenError, match="is already on record"):
        await desk.runner.run(envelope)
    assert await attempts(desk, envelope) == [first.result()]
    assert desk.ledger.statistics().charged_nusd == first.result().result.cost_nusd > 0


async def test_concurrent_runs_send_only_once() -> None:
    release = asyncio.Event()
    released: list[str] = []

    class Slow(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            await release.wait()
            return await super().record(event)

    provider = ScriptedProvider(['{"action":"buy","size":1,"end":"ok"}'] * 2)
    desk = gateway(provider, store=Slow())
    envelope = asking("execution").build()

    async def run() -> None:
        try:
            await desk.runner.run(envelope)
        except AttemptTakenError as e:
            released.append(e.state)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(run())
        await asyncio.sleep(0)
        release.set()

    assert len(provider.requests) == len(released) == 1
    (kept,) = await attempts(desk, envelope)
    assert kept.result.cost_nusd == desk.ledger.statistics().charged_nusd > 0


async def test_answer_before_cancellation_is_kept() -> None:
    class Slow(MemoryLedger):
        def __init__(self) -> None:
            super().__init__()
            self.settling = asyncio.Event()

        async def settle(self, reservation_id: str, actual: Amount) -> Settlement:
            self.settling.set()
            await asyncio.sleep(0)
            return await super().settle(reservation_id, actual)

    ledger = Slow()
    desk = gateway([GOOD], ledger=ledger)
    envelope = asking().build()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(desk.runner.run(envelope))
        await ledger.settling.wait()
        task.cancel()

    assert task.cancelled()
    (kept,) = await attempts(desk, envelope)
    assert (kept.result.actionable, kept.result.in_doubt, kept.result.next_step) == (True, False, "final")
    assert kept.result.cost_nusd == ledger.statistics().charged_nusd > 0


async def test_stopped_runner_does_not_retry() -> None:
    later = ProviderError(FailureKind.RATE_LIMIT, "later", sent=False, retry_after_s=600)
    desk = gateway([later, GOOD])
    desk.runner.stop()

    final = (await desk.runner.run(asking().build())).result

    assert (final.attempt_number, final.cost_nusd) == (2, 0)
    assert final.failure is not None
    assert final.failure.category is FailureKind.SHUTDOWN


async def test_answer_stored_during_cancellation_is_recorded() -> None:
    class Slow(MemoryInteractionStore):
        def __init__(self) -> None:
            super().__init__()
            self.started = asyncio.Event()

        async def store(self, interaction: LLMInteraction) -> int:
            self.started.set()
            await asyncio.sleep(0)
            return await super().store(interaction)

    store = Slow()
    desk = gateway([GOOD], store=store)
    envelope = asking().build()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(desk.runner.run(envelope))
        await store.started.wait()
        task.cancel()

    assert task.cancelled()
    (kept,) = await attempts(desk, envelope)
    assert kept.result.cost_nusd == desk.ledger.statistics().charged_nusd > 0


async def test_unsent_cancelled_call_leaves_no_record() -> None:
    class Slow(MemoryLedger):
        def __init__(self) -> None:
            super().__init__()
            self.dispatching = asyncio.Event()

        async def dispatch(self, reservation_id: str, *, lease_s: float = 60.0) -> None:
            self.dispatching.set()
            await asyncio.sleep(0)
            await super().dispatch(reservation_id, lease_s=lease_s)

    ledger, provider = Slow(), ScriptedProvider([GOOD])
    desk = gateway(provider, ledger=ledger)
    envelope = asking().build()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(desk.runner.run(envelope))
        await ledger.dispatching.wait()
        task.cancel()

    assert task.cancelled()
    assert (provider.requests, await attempts(desk, envelope)) == ([], [])
    assert held(await ledger.balances("default")) == {"nusd": 0, "tokens": 0, "calls": 0}


async def test_uncharged_lost_call_raises_without_result() -> None:
    ledger = AwayLedger()
    desk = gateway([timed_out()], ledger=ledger)
    envelope = asking().build()
    ledger.leave("in_doubt")

    with pytest.raises(LedgerUnavailableError):
        await desk.runner.run(envelope)

    assert await attempts(desk, envelope) == []
