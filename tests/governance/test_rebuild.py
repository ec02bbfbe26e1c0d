"""From its log a ledger can be told again what it knew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission_decisions import ClockMode
from agentic_trading.governance.events import AttemptDispatched, AttemptUnsent
from agentic_trading.governance.ledger import Balance, LedgerCheckpoint, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import (
    LedgerRebuild,
    LostAttempt,
    checkpoint_event,
    rollback_error,
)
from agentic_trading.llm import Event, RetryPolicy
from agentic_trading.llm.errors import UnknownKindError
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.offline import RecordedAnswers
from agentic_trading.llm.result import AttemptTrace, Stage, Usage
from agentic_trading.llm.store import Record
from tests.build import envelope, event, interaction
from tests.event_bodies import sample
from tests.gateway import GOOD, START, MemoryGateway, asking, gateway, not_connected, timed_out
from tests.governance.asking import tenant
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


async def test_a_ledger_that_is_told_a_session_again_counts_what_the_first_one_counted() -> None:
    broken = '{"action":"buy","size":1,'
    desk = gateway([GOOD, broken, GOOD, not_connected(), GOOD, ORDER], limits=EVERY_COUNTER)
    for number in range(4):
        await desk.runner.run(asking(n=number).with_agent(f"adviser-{number % 2}", "adviser").build())
    await desk.runner.run(asking(n=9).with_deadline(START - timedelta(seconds=1)).build())

    assert await used(await again(desk)) == await used(desk.ledger)
    assert desk.ledger.statistics().settled == 6


async def test_a_call_in_doubt_whose_dispatch_is_on_record_counts_as_it_did() -> None:
    desk = gateway([timed_out(), ORDER], limits=EVERY_COUNTER)
    for number in range(2):
        await desk.runner.run(asking("execution", n=number).with_retry_policy(ONCE).build())

    booked = (await read(desk)).entries()

    assert [one.state for one in booked] == [ReservationState.IN_DOUBT, ReservationState.SETTLED]
    assert await used(await again(desk)) == await used(desk.ledger)


async def test_the_money_of_a_call_in_doubt_counts_in_full_where_only_its_result_is_on_record() -> None:
    desk = gateway([timed_out()], limits=EVERY_COUNTER)
    await desk.runner.run(asking().with_retry_policy(ONCE).build())

    (booked,) = (await read(desk)).entries()

    assert booked.state is ReservationState.IN_DOUBT
    assert booked.charged.nusd == desk.ledger.statistics().charged_nusd > 0
    assert booked.charged.calls == 1


async def test_what_was_never_sent_counts_nothing() -> None:
    desk = gateway([GOOD], limits=[tenant(1)])
    await desk.runner.run(asking().build())

    assert (await read(desk)).entries() == []


async def test_a_refused_connection_counts_no_call() -> None:
    desk = gateway([not_connected()], limits=EVERY_COUNTER)
    await desk.runner.run(asking().with_retry_policy(ONCE).build())

    (booked,) = (await read(desk)).entries()

    assert (booked.state, booked.charged) == (ReservationState.SETTLED, Amount(0, 0, 0))


async def test_what_was_served_from_a_recording_counts_nothing() -> None:
    first = gateway([GOOD])
    recorded = await first.runner.run(asking().build())
    desk = gateway([], recorded=RecordedAnswers([recorded]))
    await desk.runner.run(asking().build())

    assert (await read(desk)).entries() == []


async def test_more_than_was_reserved_counts_in_full() -> None:
    more = Usage(input_tokens=10, output_tokens=10**6)
    desk = gateway([ModelResponse(GOOD, "end_turn", more, "scripted-1")], limits=EVERY_COUNTER)
    await desk.runner.run(asking().build())

    assert desk.ledger.statistics().overruns == 1
    assert await used(await again(desk)) == await used(desk.ledger)


async def test_a_call_of_which_only_the_dispatch_is_on_record_is_in_doubt() -> None:
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


def test_a_dispatch_that_an_earlier_release_noted_is_in_doubt_too() -> None:
    reading = LedgerRebuild("default", "live")
    reading.read(
        event("attempt.dispatched", causation_id="e-1", body={"attempt": 2, "reserved_nusd": 70}, time=START)
    )

    (lost,) = reading.entries()

    assert (lost.request.key, lost.request.attempt, lost.charged) == ("e-1", 2, Amount(70, 0))
    assert lost.request.scope_ids[ScopeKind.AGENT] == "unnamed"


@pytest.mark.parametrize(("mode", "day"), [("backtest", "2025-05-05"), ("live", "2026-01-02")])
def test_windows_go_by_the_market_where_time_is_simulated(mode: ClockMode, day: str) -> None:
    as_of = datetime(2025, 5, 5, tzinfo=UTC)
    reading = LedgerRebuild("default", mode)
    reading.read(interaction(as_of=as_of, dispatched_at=START, finished_at=START))
    reading.read(
        event(
            "attempt.dispatched",
            causation_id="e",
            as_of=as_of,
            time=START,
            body={"attempt": 1, "reserved_nusd": 1},
        )
    )

    assert [f"{one.request.at:%Y-%m-%d}" for one in reading.entries()] == [day, day]


def test_without_a_moment_of_the_market_the_time_of_sending_counts_in_a_backtest_too() -> None:
    reading = LedgerRebuild("default", "backtest")
    reading.read(interaction(as_of=None, dispatched_at=START, finished_at=START))
    reading.read(
        event("attempt.dispatched", causation_id="e", time=START, body={"attempt": 1, "reserved_nusd": 1})
    )

    assert [one.request.at for one in reading.entries()] == [START, START]


def silent(key: str, *, nusd: int = 70, state: str = "in_doubt", tenant_id: str = "default") -> Event:
    """Return the record of a call whose lease was over."""
    body = {"reservation_id": f"default:{key}:1", "state": state, "nusd": nusd, "tokens": 3}
    body["scopes"] = {"agent": "desk-1"}
    return event("reservation.expired", body=body, time=START, tenant_id=tenant_id)


def of(body: EventBody, **more: Any) -> Event:
    """Return an event with this body."""
    return event(body.KIND, body=body.model_dump(mode="json"), **more)


def sent(
    key: str,
    *,
    nusd: int = 40,
    tokens: int = 0,
    tenant_id: str = "default",
    at: datetime = START,
    **more: Any,
) -> Event:
    """Return the record that a call is about to be sent."""
    scopes = {ScopeKind.CALL: key, ScopeKind.TENANT: "default", ScopeKind.AGENT: "desk-1"}
    body = AttemptDispatched(
        attempt=1, request_hash="", provider="", model="", reservation_id=f"default:{key}:1",
        scopes=scopes, reserved_nusd=nusd, reserved_tokens=tokens, window_at=at,
    )  # fmt: skip
    return of(body, tenant_id=tenant_id, **more)


def taken_back(noted: Event) -> Event:
    """Return the record that a dispatch was taken back."""
    body = AttemptUnsent(attempt=1, reservation_id=noted.body["reservation_id"], why="no time left")
    return of(body, causation_id=noted.id)


def answered(key: str, nusd: int, **more: Any) -> LLMInteraction:
    """Return a call that was answered."""
    asked = envelope(idempotency_key=key, envelope_id=more.pop("envelope_id", f"e-{key}"))
    return interaction(envelope=asked, dispatched_at=START, finished_at=START, cost_nusd=nusd, **more)


def booked(*records: Record) -> list[tuple[str, str, int]]:
    """Return what these records book, in whatever order they are read, and however often."""
    found = []
    for order in (records, tuple(reversed(records)), records * 2):
        reading = LedgerRebuild("default", "live")
        for record in order:
            reading.read(record)
        found.append(sorted(reading.entries(), key=lambda one: one.request.reservation_id))
    whole = [[(one.charged, one.state, one.request.at) for one in each] for each in found]
    assert whole[0] == whole[1] == whole[2]
    return [(one.request.reservation_id, one.state.value, one.charged.nusd) for one in found[0]]


def test_a_call_that_was_charged_as_its_lease_was_over_is_in_doubt_if_nothing_else_is_known_of_it() -> None:
    reading = LedgerRebuild("default", "live")
    reading.read(silent("a:b"))

    (lost,) = reading.entries()

    assert (lost.request.reservation_id, lost.state) == ("default:a:b:1", ReservationState.IN_DOUBT)
    assert (lost.charged, lost.request.at) == (Amount(70, 3), START)
    assert lost.request.scope_ids == {
        ScopeKind.AGENT: "desk-1",
        ScopeKind.CALL: "a:b",
        ScopeKind.TENANT: "default",
    }


def test_what_a_late_answer_has_cost_counts_and_not_what_its_lease_was_charged() -> None:
    assert booked(silent("k"), answered("k", 5)) == [("default:k:1", "settled", 5)]


def test_of_a_lease_and_a_dispatch_the_dearer_counts() -> None:
    assert booked(silent("k", nusd=70), sent("k", nusd=40)) == [("default:k:1", "in_doubt", 70)]
    assert booked(silent("k", nusd=30), sent("k", nusd=40)) == [("default:k:1", "in_doubt", 40)]
    assert booked(silent("k", state="released"), sent("k")) == [("default:k:1", "in_doubt", 40)]


def test_a_call_charged_after_its_lease_counts_whatever_tenant_the_record_was_written_for() -> None:
    expected = [("default:k:1", "in_doubt", 70)]

    assert booked(silent("k", tenant_id="platform")) == expected
    assert booked(sent("k", nusd=70, tenant_id="platform")) == expected


def test_a_dispatch_that_was_taken_back_counts_nothing() -> None:
    noted = sent("k", id="d-1")

    assert booked(noted, taken_back(noted)) == []
    assert booked(noted, taken_back(noted), silent("k")) == [("default:k:1", "in_doubt", 70)]


def test_a_dispatch_after_one_that_was_taken_back_counts() -> None:
    first, second = sent("k", id="d-1"), sent("k", id="d-2")

    assert booked(first, taken_back(first), second) == [("default:k:1", "in_doubt", 40)]


def test_the_end_of_a_dispatch_that_was_taken_back_is_none_of_a_lost_one() -> None:
    first, second = sent("k", id="d-1"), sent("k", id="d-2")
    refused = answered("k", 0)  # a connection that was refused

    assert booked(first, taken_back(first), refused, second) == [("default:k:1", "in_doubt", 40)]
    assert booked(first, taken_back(first), refused) == [("default:k:1", "settled", 0)]


def test_of_what_costs_no_money_the_most_tokens_count() -> None:
    few, many = sent("k", id="d-1", nusd=0, tokens=5), sent("k", id="d-2", nusd=0, tokens=90)
    ended = answered("k", 0, input_tokens=1, output_tokens=0, reading=READING)

    assert booked(few, many, ended) == [("default:k:1", "in_doubt", 0)]
    reading = LedgerRebuild("default", "live")
    for record in (few, ended, many):
        reading.read(record)
    (entry,) = reading.entries()
    assert entry.charged == Amount(0, 91, 2)


def test_of_two_records_of_one_lease_the_dearer_counts() -> None:
    assert booked(silent("k", nusd=70), silent("k", nusd=30)) == [("default:k:1", "in_doubt", 70)]


def test_the_window_of_a_call_does_not_depend_on_which_log_is_read_first() -> None:
    later = START + timedelta(days=1)
    booked(sent("k", id="d-1"), sent("k", id="d-2", at=later))
    first, second = sent("k", id="d-1"), sent("k", id="d-2", at=later)
    reading = LedgerRebuild("default", "live")
    for record in (first, taken_back(first), second):
        reading.read(record)

    (entry,) = reading.entries()
    assert entry.request.at == later


def test_a_kind_that_is_not_known_is_refused_whatever_tenant_it_was_written_for() -> None:
    with pytest.raises(UnknownKindError):
        LedgerRebuild("default", "live").read(event("attempt.moved", tenant_id="platform"))


def test_a_refusal_after_a_lost_call_takes_nothing_of_it_back() -> None:
    noted = sent("k", causation_id="e-k")
    refused = interaction(
        envelope=envelope(idempotency_key="k", envelope_id="e-k"), dispatched_at=None, cost_nusd=0
    )

    assert booked(noted, refused) == [("default:k:1", "in_doubt", 40)]


def test_each_time_that_a_call_was_sent_and_not_answered_counts() -> None:
    noted = [sent("k", id=f"d-{n}", nusd=40 + n) for n in range(3)]

    assert booked(*noted) == [("default:k:1", "in_doubt", 123)]
    assert booked(*noted, answered("k", 5)) == [("default:k:1", "in_doubt", 88)]
    assert booked(noted[0], answered("k", 5)) == [("default:k:1", "settled", 5)]


def test_a_connection_that_was_refused_takes_nothing_of_an_answer_back() -> None:
    refused = answered("k", 0)

    assert booked(answered("k", 70), refused) == [("default:k:1", "settled", 70)]


def test_a_call_that_two_envelopes_have_made_counts_twice() -> None:
    twice = [answered("k", 7, envelope_id=f"e-{n}", reservation_id="default:k:1") for n in range(2)]

    assert booked(*twice) == [("default:k:1", "settled", 14)]


def test_attempts_that_were_sent_and_have_no_end_are_lost() -> None:
    noted = sent("k", id="d-1", time=START)
    reading = LedgerRebuild("default", "live")
    for record in (noted, sent("k", id="d-2"), sent("done"), answered("done", 5), silent("only a lease")):
        reading.read(record)

    assert reading.lost() == {"default:k:1": LostAttempt("default:k:1", Amount(80, 0, 2), START)}


async def test_another_tenants_calls_are_left_out() -> None:
    desk = gateway(lambda _request: GOOD, limits=EVERY_COUNTER)
    for tenant_id in ("acme", "zenith", "acme"):
        await desk.runner.run(asking(n=tenant_id).with_tenant(tenant_id).build())
    await desk.store.record(
        event("attempt.dispatched", tenant_id="zenith", body={"attempt": 1, "reserved_nusd": 1})
    )

    assert await used(await again(desk, "acme"), "acme") == await used(desk.ledger, "acme")
    assert {one.request.tenant for one in (await read(desk, "acme")).entries()} == {"acme"}


def test_the_farthest_position_that_was_noted_is_known() -> None:
    reading = LedgerRebuild("acme", "live")
    for sequence in (5, 9, 7):
        reading.read(checkpoint_event("acme", LedgerCheckpoint(2, "m", sequence), START))
    reading.read(checkpoint_event("zenith", LedgerCheckpoint(3, "n", 70), START))
    reading.read(event(tenant_id="acme"))

    assert reading.checkpoint == LedgerCheckpoint(2, "m", 9)
    assert reading.entries() == []


async def test_a_position_is_noted_once() -> None:
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
def test_a_ledger_that_is_found_before_what_is_known_of_it_has_gone_back(
    found: LedgerCheckpoint, *, is_back: bool
) -> None:
    problem = rollback_error("acme", LedgerCheckpoint(2, "m", 9), found)

    assert (problem is not None) is is_back
    assert problem is None or "epoch 2, step 9" in str(problem)


def test_warnings_and_commands_book_nothing() -> None:
    reading = LedgerRebuild("default", "live")
    for kind in ("budget.exhausted", "operator.commanded", "intent.skipped"):
        reading.read(sample(kind))

    assert (reading.entries(), reading.checkpoint) == ([], None)
