"""Every call that goes to a provider leaves its dispatch on record first; what was sent and lost is not sent again."""

import asyncio
from datetime import timedelta

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import reservation_id_of
from agentic_trading.governance.ledger import ReservationState
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import LedgerRebuild, LostAttempt
from agentic_trading.llm import Event, LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.error_boundary import AttemptTakenError
from tests.gateway import GOOD, START, MemoryGateway, asking, attempts, gateway, held
from tests.governance.asking import tenant
from tests.governance.away import AwayLedger
from tests.worker.caching import fixed, run
from tests.worker.ticking import events

ORDER = '{"action":"buy","size":1,"end":"ok"}'


async def rebuilt(desk: MemoryGateway) -> LedgerRebuild:
    """Return what the log knows of the ledger."""
    reading = LedgerRebuild("default", "paper")
    async for entry in desk.store.scan():
        reading.read(entry.record)
    return reading


async def nothing_is_booked(desk: MemoryGateway) -> bool:
    """Whether nothing is held, and nothing would be charged by the log."""
    reading = await rebuilt(desk)
    in_flight = held(await desk.ledger.balances("default"))
    return (reading.entries(), reading.lost(), set(in_flight.values())) in [([], {}, {0}), ([], {}, set())]


@pytest.mark.parametrize("workflow", ["analysis", "execution", "general"])
async def test_dispatch_is_recorded_before_sending(workflow: str) -> None:
    seen: list[list[str]] = []

    class Looking(ScriptedProvider):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            seen.append([one.body["reservation_id"] for one in await events(desk, "attempt.dispatched")])
            return await super().complete(request)

    desk = gateway(Looking([ORDER, GOOD]))
    asked = asking(workflow).build()

    final = await desk.runner.run(asked)

    assert seen[0] == [reservation_id_of(asked, 1)]
    assert final.result.reservation_id == seen[-1][-1]
    assert len(seen) == len(await attempts(desk, asked))


async def test_recorded_answer_leaves_no_dispatch() -> None:
    first = gateway([GOOD])
    recorded = await first.runner.run(asking().build())
    desk = gateway([], recorded=RecordedAnswers([recorded]))

    await desk.runner.run(asking().build())

    assert await events(desk, "attempt.dispatched") == []


async def test_cached_answer_leaves_no_dispatch() -> None:
    desk = gateway([GOOD])

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(desk.runner.run(fixed().build()))
    (again,) = await run(desk, fixed().build())

    (dispatched,) = await events(desk)
    assert (dispatched.kind, again.served_from) == ("attempt.dispatched", "recorded")


async def test_missed_deadline_withdraws_the_dispatch() -> None:
    deadline = START + timedelta(minutes=1)
    clock = SimClock(START)

    class Slow(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            clock.advance_to(deadline)
            return await super().record(event)

    desk = gateway([GOOD], clock=clock, store=Slow())

    await desk.runner.run(asking().with_deadline(deadline).build())

    noted, unsent = await events(desk)
    assert (unsent.kind, unsent.causation_id) == ("attempt.unsent", noted.id)
    assert "deadline" in unsent.body["why"]
    assert await nothing_is_booked(desk)


async def test_ledger_outage_withdraws_the_dispatch() -> None:
    ledger = AwayLedger([tenant(10**12)])
    desk = gateway([GOOD], ledger=ledger)
    ledger.leave("dispatch")

    await desk.runner.run(asking().build())

    assert [one.kind for one in await events(desk)] == ["attempt.dispatched", "attempt.unsent"]
    assert await nothing_is_booked(desk)


async def test_losing_run_withdraws_only_own_dispatch() -> None:
    release = asyncio.Event()

    class Slow(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            await release.wait()
            return await super().record(event)

    desk = gateway([ORDER, ORDER], store=Slow())
    asked = asking("execution").build()

    async def run() -> None:
        try:
            await desk.runner.run(asked)
        except AttemptTakenError:
            release.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(run())
        await asyncio.sleep(0)
        release.set()

    (booked,) = (await rebuilt(desk)).entries()
    assert booked.state is ReservationState.SETTLED
    assert booked.charged.nusd == desk.ledger.statistics().charged_nusd
    kinds = [one.kind for one in await events(desk)]
    assert sorted(kinds) == ["attempt.dispatched"] * 2 + ["attempt.unsent"]


@pytest.mark.parametrize("step", ["record", "dispatch"])
async def test_cancelled_call_withdraws_the_dispatch(step: str) -> None:
    reached, forever = asyncio.Event(), asyncio.Event()

    class Store(MemoryInteractionStore):
        async def record(self, event: Event) -> int:
            kept = await super().record(event)
            if step == "record" and not reached.is_set():
                reached.set()
                await forever.wait()
            return kept

    class Ledger(AwayLedger):
        async def dispatch(self, reservation_id: str, *, lease_s: float = 1.0) -> None:
            if step == "dispatch":
                reached.set()
                await forever.wait()
            await super().dispatch(reservation_id, lease_s=lease_s)

    provider = ScriptedProvider([GOOD])
    desk = gateway(provider, store=Store(), ledger=Ledger([tenant(10**12)]))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(desk.runner.run(asking().build()))
        await reached.wait()
        task.cancel()

    assert task.cancelled()
    assert provider.requests == []
    assert [one.kind for one in await events(desk)] == ["attempt.dispatched", "attempt.unsent"]
    assert await nothing_is_booked(desk)


def lost(asked: LLMEnvelope, nusd: int = 700) -> dict[str, LostAttempt]:
    """Return a first attempt of unknown end."""
    id_ = reservation_id_of(asked, 1)
    return {id_: LostAttempt(id_, Amount(nusd, 9), START)}


async def test_lost_attempt_is_charged_and_retried() -> None:
    provider = ScriptedProvider([GOOD])
    asked = asking().build()
    desk = gateway(provider, lost=lost(asked))

    final = await desk.runner.run(asked)

    first, second = await attempts(desk, asked)
    assert (first.result.in_doubt, first.result.cost_nusd, first.result.next_step) == (True, 700, "retry")
    assert first.result.failure is not None
    assert first.result.failure.category is FailureKind.SHUTDOWN
    assert second == final
    assert final.result.actionable
    assert [request.attempt for request in provider.requests] == [2]
    assert final.result.reservation_id == reservation_id_of(asked, 2)
    booked = (await rebuilt(desk)).entries()
    assert [(one.request.reservation_id, one.charged.nusd) for one in booked] == [
        (first.result.reservation_id, 700),
        (final.result.reservation_id, final.result.cost_nusd),
    ]


async def test_lost_execution_is_not_retried() -> None:
    provider = ScriptedProvider([ORDER])
    asked = asking("execution").build()
    desk = gateway(provider, lost=lost(asked))

    final = await desk.runner.run(asked)

    assert provider.requests == []
    assert (final.result.in_doubt, final.result.actionable, final.result.next_step) == (True, False, "final")


async def test_retry_after_lost_attempt_is_replayed() -> None:
    asked = asking().build()
    desk = gateway([GOOD], lost=lost(asked))
    final = await desk.runner.run(asked)
    again = gateway([], recorded=RecordedAnswers(await attempts(desk, asked)))

    replayed = await again.runner.run(asked)

    assert replayed.result.parsed_output == final.result.parsed_output
    assert [one.result.next_step for one in await attempts(again, asked)] == ["retry", "final"]
    assert (await rebuilt(again)).entries() == []
