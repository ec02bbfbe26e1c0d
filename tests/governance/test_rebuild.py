"""From its log a ledger can be told again what it knew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.ledger import Balance, LedgerCheckpoint, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import (
    LedgerRebuild,
    checkpoint_event,
    require_not_behind,
    rollback_error,
)
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm import RetryPolicy
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelResponse, UnusableAnswerError
from agentic_trading.llm.providers.offline import RecordedAnswers
from agentic_trading.llm.result import AttemptTrace, Stage, Usage
from tests.build import event, interaction
from tests.event_bodies import dispatched_body, sample
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway, not_connected, timed_out
from tests.governance.asking import ask, tenant
from tests.governance.away import AwayLedger
from tests.worker.ticking import events

EVERY_COUNTER = [Limit(kind, ANY, window, calls=10**6) for kind in ScopeKind for window in Window]
ONCE = RetryPolicy(max_retries=0)
READING = AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE)
ORDER = '{"action":"buy","size":1,"end":"ok"}'


async def read(desk: MemoryGateway, tenant_id: str = "default", mode: ClockMode = "paper") -> LedgerRebuild:
    """Read all of a log."""
    reading = LedgerRebuild(tenant_id, mode)
    async for entry in desk.store.scan():
        reading.read(entry.record)
    return reading


async def again(desk: MemoryGateway, tenant_id: str = "default", mode: ClockMode = "paper") -> MemoryLedger:
    """Return a new ledger that was told a log."""
    ledger = MemoryLedger(EVERY_COUNTER)
    await ledger.restore(tenant_id, (await read(desk, tenant_id, mode)).entries())
    return ledger


async def used(ledger: MemoryLedger, tenant_id: str = "default") -> list[tuple[Any, ...]]:
    """Return every counter in which something is spent."""
    found = [_seen(one) for one in await ledger.balances(tenant_id) if one.spent != Amount(0, 0, 0)]
    return sorted(found, key=repr)


def _seen(one: Balance) -> tuple[Any, ...]:
    return one.scope, one.id, one.window, one.window_id, one.spent, one.in_doubt, one.held


async def test_rebuild_equals_original_session() -> None:
    broken = '{"action":"buy","size":1,'
    desk = gateway([GOOD, broken, GOOD, not_connected(), GOOD, ORDER], limits=EVERY_COUNTER)
    for number in range(4):
        await desk.runner.run(asking(n=number).with_agent(f"adviser-{number % 2}", "adviser").build())
    await desk.runner.run(asking(n=9).with_deadline(START - timedelta(seconds=1)).build())

    assert await used(await again(desk)) == await used(desk.ledger)
    assert desk.ledger.statistics().settled == 6
    known = await read(desk)
    charged = {id_: sum(one.charged.nusd for one in parts) for id_, parts in known.attempts().items()}
    assert charged == {one.request.reservation_id: one.charged.nusd for one in known.entries()}


async def test_in_doubt_call_rebuilds_unchanged() -> None:
    desk = gateway([timed_out(), ORDER], limits=EVERY_COUNTER)
    for number in range(2):
        await desk.runner.run(asking("execution", n=number).with_retry_policy(ONCE).build())

    booked = (await read(desk)).entries()

    assert [one.state for one in booked] == [ReservationState.IN_DOUBT, ReservationState.SETTLED]
    assert await used(await again(desk)) == await used(desk.ledger)


async def test_in_doubt_result_counts_in_full() -> None:
    desk = gateway([timed_out()], limits=EVERY_COUNTER)
    await desk.runner.run(asking().with_retry_policy(ONCE).build())

    (booked,) = (await read(desk)).entries()

    assert booked.state is ReservationState.IN_DOUBT
    assert booked.charged.nusd == desk.ledger.statistics().charged_nusd > 0
    assert booked.charged.calls == 1


async def test_unsent_call_is_not_booked() -> None:
    desk = gateway([GOOD], limits=[tenant(1)])
    await desk.runner.run(asking().build())

    assert (await read(desk)).entries() == []


async def test_refused_connection_counts_no_call() -> None:
    desk = gateway([not_connected()], limits=EVERY_COUNTER)
    await desk.runner.run(asking().with_retry_policy(ONCE).build())

    (booked,) = (await read(desk)).entries()

    assert (booked.state, booked.charged) == (ReservationState.SETTLED, Amount(0, 0, 0))


async def test_unusable_answer_counts_as_call() -> None:
    usage = Usage(input_tokens=200, output_tokens=50)
    broken_off = UnusableAnswerError(FailureKind.SERVER_ERROR, "broken off", usage=usage)
    desk = gateway([broken_off], limits=EVERY_COUNTER)
    await desk.runner.run(asking().with_retry_policy(ONCE).build())

    (booked,) = (await read(desk)).entries()

    assert (booked.charged.calls, booked.charged.tokens) == (1, 250)
    assert await used(await again(desk)) == await used(desk.ledger)


async def test_recorded_answer_is_not_booked() -> None:
    first = gateway([GOOD])
    recorded = await first.runner.run(asking().build())
    desk = gateway([], recorded=RecordedAnswers([recorded]))
    await desk.runner.run(asking().build())

    assert (await read(desk)).entries() == []


async def test_overrun_counts_in_full() -> None:
    more = Usage(input_tokens=10, output_tokens=10**6)
    desk = gateway([ModelResponse(GOOD, "end_turn", more, "scripted-1")], limits=EVERY_COUNTER)
    await desk.runner.run(asking().build())

    assert desk.ledger.statistics().overruns == 1
    assert await used(await again(desk)) == await used(desk.ledger)


async def test_dispatch_without_result_is_in_doubt() -> None:
    desk = gateway([ORDER], limits=EVERY_COUNTER)
    asked = asking("execution").with_tenant("acme").with_agent("exec-1", "exec").build()
    await desk.runner.run(asked)
    reading = LedgerRebuild("acme", "paper")
    (noted,) = await events(desk, "attempt.dispatched")
    reading.read(noted)

    (lost,) = reading.entries()

    assert (lost.state, lost.request.at) == (ReservationState.IN_DOUBT, START)
    assert lost.charged == Amount(noted.body["reserved_nusd"], noted.body["reserved_tokens"])
    assert lost.request.scope_ids == {
        ScopeKind.CALL: asked.idempotency_key,
        ScopeKind.TRACE: asked.trace_id,
        ScopeKind.AGENT: "exec-1",
        ScopeKind.WORKFLOW: "execution",
        ScopeKind.TENANT: "acme",
    }
    assert lost.request.reservation_id == f"acme:{asked.idempotency_key}:1"


@pytest.mark.parametrize(("mode", "day"), [("backtest", "2025-05-05"), ("live", "2026-01-02")])
def test_window_date_depends_on_mode(mode: ClockMode, day: str) -> None:
    as_of = datetime(2025, 5, 5, tzinfo=UTC)
    reading = LedgerRebuild("default", mode)
    reading.read(interaction(as_of=as_of, dispatched_at=START, finished_at=START))
    reading.read(
        event(
            "attempt.dispatched",
            causation_id="e",
            as_of=as_of,
            time=START,
            body=dispatched_body("e"),
        )
    )

    assert [f"{one.request.at:%Y-%m-%d}" for one in reading.entries()] == [day, day]


def test_missing_as_of_uses_dispatch_time() -> None:
    reading = LedgerRebuild("default", "backtest")
    reading.read(interaction(as_of=None, dispatched_at=START, finished_at=START))
    reading.read(event("attempt.dispatched", causation_id="e", time=START, body=dispatched_body("e")))

    assert [one.request.at for one in reading.entries()] == [START, START]


async def test_calls_of_other_tenants_are_excluded() -> None:
    desk = gateway(lambda _request: GOOD, limits=EVERY_COUNTER)
    for tenant_id in ("acme", "zenith", "acme"):
        await desk.runner.run(asking(n=tenant_id).with_tenant(tenant_id).build())
    await desk.store.record(event("attempt.dispatched", tenant_id="zenith", body=dispatched_body("e")))

    assert await used(await again(desk, "acme"), "acme") == await used(desk.ledger, "acme")
    assert {one.request.tenant for one in (await read(desk, "acme")).entries()} == {"acme"}


def test_farthest_checkpoint_is_kept() -> None:
    reading = LedgerRebuild("acme", "live")
    for sequence in (5, 9, 7):
        reading.read(checkpoint_event("acme", LedgerCheckpoint(2, "m", sequence), START))
    reading.read(checkpoint_event("zenith", LedgerCheckpoint(3, "n", 70), START))
    reading.read(event(tenant_id="acme"))

    assert reading.checkpoint == LedgerCheckpoint(2, "m", 9)
    assert reading.entries() == []


async def test_equal_checkpoints_are_recorded_once() -> None:
    desk = gateway([], clock=SimClock(START))
    for minutes in range(3):
        await desk.store.record(
            checkpoint_event("acme", LedgerCheckpoint(1, "m", 4), START + timedelta(minutes=minutes))
        )

    assert len([entry async for entry in desk.store.scan()]) == 1


@pytest.mark.parametrize(
    ("found", "is_back"),
    [
        (LedgerCheckpoint(2, "m", 9), False),
        (LedgerCheckpoint(2, "m", 10), False),
        (LedgerCheckpoint(3, "n", 0), False),
        (LedgerCheckpoint(2, "m", 8), True),
        (LedgerCheckpoint(2, "n", 10), True),
        (LedgerCheckpoint(1, "m", 99), True),
    ],
)
def test_ledger_behind_checkpoint_is_rolled_back(found: LedgerCheckpoint, *, is_back: bool) -> None:
    problem = rollback_error("acme", LedgerCheckpoint(2, "m", 9), found)

    assert (problem is not None) is is_back
    assert problem is None or "epoch 2, step 9" in str(problem)


def test_alerts_and_commands_book_no_entries() -> None:
    reading = LedgerRebuild("default", "live")
    for kind in ("budget.exhausted", "operator.commanded", "intent.skipped"):
        reading.read(sample(kind))

    assert (reading.entries(), reading.checkpoint) == ([], None)


async def test_ledger_missing_last_call_is_closed() -> None:
    ledger = AwayLedger()
    desk = gateway([GOOD, GOOD], ledger=ledger)
    await desk.runner.run(asking(n=1).build())
    ledger.leave("dispatch")
    await desk.runner.run(asking(n=2).build())  # noted, and taken back
    ledger.return_()
    books, soon = await read(desk), START + timedelta(hours=1)

    await require_not_behind(books, ledger, soon)
    for long_ago_or_simulated in (
        require_not_behind(books, MemoryLedger(), START + timedelta(days=7)),
        require_not_behind(await read(desk, mode="backtest"), MemoryLedger(), soon),
        require_not_behind(LedgerRebuild("default", "paper"), MemoryLedger(), soon),
    ):
        await long_ago_or_simulated
    forgetful = MemoryLedger()
    with pytest.raises(
        LedgerRolledBackError, match="it had come to epoch 1, step 1, now it is at epoch 1, step 0"
    ):
        await require_not_behind(books, forgetful, soon)
    with pytest.raises(LedgerRolledBackError):
        await forgetful.reserve(ask(1, tenant="default"))


async def test_ledger_before_recorded_checkpoint_is_rejected() -> None:
    ledger = MemoryLedger()
    await ledger.reserve(ask(1, tenant="default"))
    come_to = await ledger.checkpoint("default")
    books = LedgerRebuild("default", "paper")
    books.read(checkpoint_event("default", come_to, START))

    await require_not_behind(books, ledger, START)
    with pytest.raises(LedgerRolledBackError):
        await require_not_behind(books, MemoryLedger(), START)
